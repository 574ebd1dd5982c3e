"""Digests of the user's own files and folders, remembered while the files look the same."""

from __future__ import annotations

import os
import stat
from functools import partial

from stoker.host.durable import translated
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import LocalFile
from stoker.store.memo import Memo, stamp_of
from stoker.store.trees import hash_file, scan_tree


def digest_path(path: str, *, memo: Memo, clock: Clock) -> str:
    """Digest what lies at a path: `sha256:…` of a file's bytes, `tree:…` of a folder. The path does not enter."""
    absolute = os.path.abspath(path)
    if os.path.isdir(absolute):
        return f"tree:{scan_tree(absolute, hasher=partial(_digest_file, memo=memo, clock=clock)).digest()}"
    return f"sha256:{_digest_file(absolute, memo=memo, clock=clock)[0]}"


def _digest_file(path: str, *, memo: Memo, clock: Clock) -> tuple[Digest, int]:
    with translated(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    stamp = stamp_of(info)
    # In ASCII, because a name that is not Unicode can't be stored as text.
    name = f"path:{path!a}"
    known = memo.recall(name, stamp)
    if known is not None:
        return known, info.st_size
    digest, size_bytes = hash_file(path)
    with translated(path):
        is_same = stamp_of(os.stat(path)) == stamp
    if is_same:
        memo.remember_settled(name, stamp, digest, now_s=clock.wall_s())
    return digest, size_bytes
