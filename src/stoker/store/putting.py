"""Put the user's own files into the store: copied, hashed while they are copied, and named.

Order: every file is copied into staging and hashed on its way, blobs durable, record, ref, a line in the index. A crash
between any two leaves staging or bytes without a name, which `prune` sweeps, never a name without bytes. The user's
files are only read. What can't be kept is refused, all of it at once, before a byte is read; what changes while it is
read is refused, too.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from typing import Any, BinaryIO

from stoker.host.durable import NO_STEP, open_regular, remove_tree, translated
from stoker.model.artifacts import Tree, TreeEntry
from stoker.model.clock import Clock
from stoker.model.digests import Digest, digest_value
from stoker.model.errors import Faults, LocalFile, Refused
from stoker.model.faults import Fault
from stoker.model.frozen import frozen
from stoker.store.bundle.unpacking import unpack
from stoker.store.local import Found, LocalStore
from stoker.store.memo import stamp_of
from stoker.store.put_index import add_row
from stoker.store.records import Record
from stoker.store.refs import PUT, Ref, check_ref_name, find_ref, refuse_taken, remove_ref, set_ref
from stoker.store.results import SIDECAR, is_sidecar
from stoker.store.staging_copy import StagingCopy, blob_bytes, changed_meanwhile, size_of
from stoker.store.trees import Heed, Walked, walk_tree

_BLOCK_BYTES = 1 << 20
_TRIES = 3


@frozen
class _TakenIn:
    """A tree whose bytes are in."""

    tree: Tree
    inline: dict[str, bytes]
    """The small files, for its record."""
    new_bytes: int
    """Blobs that the store did not have."""
    archive_sha256: str = ""
    """Of the archive that held it."""


@frozen
class Survey:
    """What lies at a path, looked at and found fit to be put; nothing of it was read."""

    path: str
    found: tuple[Walked, ...]

    @property
    def size_bytes(self) -> int:
        return size_of(self.found)


@frozen
class Wish:
    """What is to become of a thing that is put."""

    name: str
    kind: str = ""
    replace: bool = False
    """Whether the name may be taken from something else."""
    source: str = ""
    """Where it came from, as the index shall say."""


@frozen
class PutThing:
    """A thing that is in the store now, durable and named."""

    ref: Ref
    added_bytes: int
    """What the store did not have before."""
    is_known: bool
    """Whether the very same thing was there already."""
    before: Ref | None = None
    """What the name stood for until now."""
    archive_sha256: str = ""
    """Of the archive that it was unpacked from."""


def survey(path: str) -> Survey:
    """Look at a file or a folder that is to be put; every fault of it at once.

    A path that is a symlink is followed. The list that we keep at the top of a result's folder is no part of it, so
    that what was given out has the same digest when it is put. `LocalFile` for anything else, `Faults` for what a tree
    can't keep.
    """
    real = os.path.realpath(path)
    with translated(path):
        info = os.stat(real)
    if stat.S_ISDIR(info.st_mode):
        found = walk_tree(real, hasher=_unread)
        return Survey(path=real, found=tuple(walked for walked in found if not _is_our_list(walked)))
    if not stat.S_ISREG(info.st_mode):
        raise LocalFile(f"neither a file nor a folder: {path}", hint="copy what it gives into a file first", path=path)
    name = os.path.basename(os.path.abspath(path))
    try:
        name.encode()
    except UnicodeEncodeError:
        fault = Fault(repr(name), "the name is not valid Unicode")
        raise Faults(str(fault), faults=(fault,)) from None
    entry = TreeEntry(name, 0, Digest(""), executable=bool(info.st_mode & stat.S_IXUSR))
    return Survey(path=real, found=(Walked(entry, real, info),))


class Putting:
    """The way into one store; `heed` is told of every byte that goes it."""

    def __init__(
        self, store: LocalStore, *, clock: Clock, heed: Heed, on_step: Callable[[str], None] = NO_STEP
    ) -> None:
        self._store = store
        self._clock = clock
        self._heed = heed
        self._on_step = on_step

    def put(self, surveyed: Survey, wish: Wish, *, staging_name: str = PUT) -> PutThing:
        """Take in what was surveyed. Whatever ends it early leaves nothing in staging."""
        _refuse_overlap(surveyed.path, self._store.places.root)

        def take_in(staging: str) -> _TakenIn:
            copying = StagingCopy(self._store, staging, clock=self._clock, heed=self._heed, on_step=self._on_step)
            copying.copy_all(surveyed.found)
            _refuse_changed(surveyed)
            tree, inline = copying.keep_all()
            return _TakenIn(tree=tree, inline=inline, new_bytes=copying.added_bytes)

        return self._put(wish, staging_name, take_in)

    def put_unpacked(self, path: str, wish: Wish, *, staging_name: str = PUT) -> PutThing:
        """Take in what an archive holds, unpacked and judged in staging: all of it, or nothing."""

        def take_in(staging: str) -> _TakenIn:
            with translated(path):
                archive = open_regular(path)
            with archive, io.BufferedReader(_Heeded(archive, self._heed), _BLOCK_BYTES) as stream:
                unpacked = unpack(stream, os.path.join(staging, "tree"))
            new = {walked.entry for walked in unpacked.found if not self._store.holds(walked.entry)}
            tree, inline = self._store.keep(unpacked.found, unpacked.small)
            return _TakenIn(
                tree=tree,
                inline=inline,
                new_bytes=blob_bytes(new, inline),
                archive_sha256=unpacked.archive_sha256,
            )

        return self._put(wish, staging_name, take_in)

    def _put(self, wish: Wish, staging_name: str, take_in: Callable[[str], _TakenIn]) -> PutThing:
        """Take in and name, again if somebody prunes it between the two."""
        before = find_ref(self._store.places, check_ref_name(wish.name))
        for _ in range(_TRIES):
            staging = self._store.new_staging(staging_name)
            try:
                done = self._enter(take_in(staging), wish)
            finally:
                # Only now: while something lies there, those who prune know that somebody is at work.
                remove_tree(staging)
            if done is not None:
                return done
        if before is None:
            remove_ref(self._store.places, wish.name)
        else:
            set_ref(self._store.places, before, replace=True)
        raise Refused(f"{wish.name} was pruned as often as it was put", hint="put it again when nobody prunes")

    def _enter(self, taken_in: _TakenIn, wish: Wish) -> PutThing | None:
        """Name a tree whose bytes are in: record, ref, line of the index. None: it was pruned."""
        store, tree, inline = self._store, taken_in.tree, taken_in.inline
        digest = tree.digest()
        key = put_key(digest)
        ref = Ref(
            name=wish.name,
            digest=digest,
            key=key,
            kind=wish.kind,
            files=len(tree.entries),
            size_bytes=tree.size_bytes,
            at_s=self._clock.wall_s(),
        )
        refuse_taken(find_ref(store.places, wish.name), key, replace=wish.replace)
        body = {"stage": PUT, "kind": wish.kind, "made_at": ref.at_s}
        published = store.publish(Record.of(key=key, tree=tree, inline=inline, body=body))
        added_bytes = taken_in.new_bytes + (sum(map(len, inline.values())) if published.is_ours else 0)
        before = set_ref(store.places, ref, replace=wish.replace, on_step=self._on_step)
        # Whoever decides from now on sees the name; whoever decided before sees that the record was used since.
        if not store.renew_record(key):
            return None
        found = store.lookup(key)
        if not isinstance(found, Found) or not found.has_bytes:
            return None
        row = {"did": PUT, **ref.to_json(), "added_bytes": added_bytes, "source": wish.source}
        if taken_in.archive_sha256:
            row["archive_sha256"] = taken_in.archive_sha256
        add_row(store.places, row, on_step=self._on_step)
        return PutThing(
            ref=ref,
            added_bytes=added_bytes,
            is_known=not published.is_ours and not taken_in.new_bytes,
            before=before,
            archive_sha256=taken_in.archive_sha256,
        )


class _Heeded(io.RawIOBase):
    """A file that tells of every byte that is read."""

    def __init__(self, file: BinaryIO, heed: Heed) -> None:
        self._file = file
        self._heed = heed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # every file opened to be read has it
        self._heed(count)
        return count


def put_key(digest: Digest) -> Digest:
    """Give the key under which a tree lies that somebody put: its content decides, and nothing else."""
    return digest_value(PUT, digest)


def _is_our_list(walked: Walked) -> bool:
    return walked.entry.path == SIDECAR and is_sidecar(walked.path)


def _unread(_path: str) -> tuple[Digest, int]:
    return Digest(""), 0


def _refuse_overlap(path: str, root: str) -> None:
    store = os.path.realpath(root)
    if os.path.commonpath([path, store]) in (path, store):
        raise Refused(f"{path} and the store lie in one another", hint="put a folder that is not the store's")


def _refuse_changed(surveyed: Survey) -> None:
    """Look again: a thing is put as it was at one moment, or not at all."""
    if len(surveyed.found) == 1 and surveyed.found[0].path == surveyed.path:
        return
    before, now = (
        {walked.entry.path: (walked.entry.link_to, stamp_of(walked.info)) for walked in one.found}
        for one in (surveyed, survey(surveyed.path))
    )
    different = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    if different:
        raise changed_meanwhile(different[0])
