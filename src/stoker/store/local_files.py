"""Digests of the user's own files and folders, remembered while the files look the same."""

from __future__ import annotations

import os
import stat
from functools import partial

from stoker.host.durable import translated
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import LocalFile, NoPermission
from stoker.store.memo import Memo, stamp_of
from stoker.store.trees import hash_file, heed_now, scan_tree

_LOOK_BYTES = 1 << 14
"""To look at a file that is known takes as long as to read so many bytes."""


def refuse_unreadable(path: str, readable: tuple[str, ...] | None) -> None:
    """Raise `NoPermission` for a path that a job may not have read. The disk is not looked at.

    `readable` are the only places whose files may be read for the job; None: any.
    """
    if not may_read(path, readable):
        hint = "data = { NAME = PATH } brings it along; this machine's own files are for nobody's job"
        raise NoPermission(f"{path} did not come with the job, and jobs run as other users here", hint=hint)


def may_read(path: str, readable: tuple[str, ...] | None) -> bool:
    """Return True if a path lies in one of the places whose files may be read for a job; None: any."""
    if readable is None:
        return True
    whole = os.path.abspath(path)
    return any(whole == place or whole.startswith(os.path.join(place, "")) for place in map(os.path.abspath, readable))


def digest_path(path: str, *, memo: Memo, clock: Clock) -> str:
    """Digest what lies at a path: `sha256:…` of a file's bytes, `tree:…` of a folder. The path does not enter."""
    absolute = os.path.abspath(path)
    if os.path.isdir(absolute):
        return f"tree:{scan_tree(absolute, hasher=partial(_digest_file, memo=memo, clock=clock)).digest()}"
    return f"sha256:{_digest_file(absolute, memo=memo, clock=clock)[0]}"


def _digest_file(path: str, *, memo: Memo, clock: Clock) -> tuple[Digest, int]:
    heed_now(_LOOK_BYTES)
    with translated(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    stamp = stamp_of(info)
    known = recall_file(path, info, memo=memo)
    if known is not None:
        return known, info.st_size
    digest, size_bytes = hash_file(path)
    with translated(path):
        is_same = stamp_of(os.stat(path)) == stamp
    if is_same:
        remember_file(path, info, digest, memo=memo, clock=clock)
    return digest, size_bytes


def recall_file(path: str, info: os.stat_result, *, memo: Memo) -> Digest | None:
    """Give the digest of a file, by its absolute path, if it is known and the file looks as it did then."""
    return memo.recall(_name(path), stamp_of(info))


def recall_below(folder: str, *, memo: Memo) -> None:
    """Prepare to be asked for many files of a folder, by its absolute path: one look at the memo instead of many."""
    memo.preload(_name(os.path.join(folder, ""))[:-1])


def remember_file(path: str, info: os.stat_result, digest: Digest, *, memo: Memo, clock: Clock) -> None:
    """Note the digest of a file that looked so before and after it was read."""
    memo.remember_settled(_name(path), stamp_of(info), digest, now_s=clock.wall_s())


def note_file(path: str, info: os.stat_result, digest: Digest, *, memo: Memo) -> None:
    """Note the digest of a file that nobody but us wrote, and that was verified on its way."""
    memo.remember(_name(path), stamp_of(info), digest)


def _name(path: str) -> str:
    # In ASCII, because a name that is not Unicode can't be stored as text.
    return f"path:{path!a}"
