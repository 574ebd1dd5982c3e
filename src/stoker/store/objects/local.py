"""Objects on this machine's disk: the same blobs that records name.

An object is synced and renamed to its digest, read-only. An object that no record names is swept like any blob, once it
is older than the grace period of a prune.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from stoker.core.digests import Digest, TreeEntry, is_digest
from stoker.core.errors import BadInput
from stoker.host.durable import open_regular, remove_tree, translated, write_all
from stoker.host.folders import settle_files
from stoker.store.local_store import LocalStore
from stoker.store.objects.seam import Condition, StoredObject, check_digest, checked, not_here, wrong_bytes
from stoker.store.objects.staging import StagedObjects
from stoker.store.prune import remove_untouched
from stoker.store.trees import WalkedEntry

_TOGETHER = 256
"""Maximum number of open files."""


class LocalObjects(StagedObjects):
    """Objects by digest, of a local store. Safe from several threads and processes."""

    def size(self, digest: Digest) -> int | None:
        """Return an object's size in bytes, or nothing if it is not there."""
        check_digest(digest)
        info = self._look(digest)
        if info is None:
            return None
        return info.st_size if self._store.holds(TreeEntry("an object", info.st_size, digest), info=info) else None

    def open(self, digest: Digest, *, start: int = 0, length: int | None = None) -> BinaryIO:
        """Open an object, or a range of it. Caller closes.

        `NotFound` if it is not there. `BadInput` if it is shorter than `start`; a range may be longer than the rest.
        """
        size_bytes = self.size(digest)
        if size_bytes is None:
            raise not_here(digest)
        if not 0 <= start <= size_bytes or (length is not None and length < 0):
            raise BadInput(f"object {digest[:12]} has {size_bytes} bytes: there is no range from {start}")
        path = self._places.blob(digest)
        with translated(path):
            try:
                file = open_regular(path)
            except FileNotFoundError:
                # Removed between two steps of ours.
                raise not_here(digest) from None
        file.seek(start)
        return file if length is None else io.BufferedReader(_Range(file, length))

    def put_all(self, objects: Iterable[tuple[str, bytes]]) -> int:
        """Put small objects together, durable on return; return how many were new.

        `HashMismatch` if one has other bytes than its digest: none of them is kept then.
        """
        wanted = checked(objects)
        new = [Digest(name) for name, data in wanted.items() if not self._is_known(Digest(name), len(data))]
        if not new:
            return 0
        self._check_room(sum(len(wanted[digest]) for digest in new))
        staging = self._store.new_staging("put")
        try:
            walked = []
            for digest in new:
                part = os.path.join(staging, digest)
                with translated(part):
                    with open(part, "wb", buffering=0) as file:
                        write_all(file.fileno(), wanted[digest], 0)
                    walked.append(_staged(part, digest))
            keep_small(self._store, walked)
        finally:
            remove_tree(staging)
        return len(new)

    def list(self) -> Iterator[StoredObject]:
        """Return all objects, in the order of their digests; concurrent changes may be among them."""
        for name, _ in self._places.blob_files():
            info = self._look(Digest(name)) if is_digest(name) else None
            if info is not None:
                yield StoredObject(digest=Digest(name), size_bytes=info.st_size, touched_s=info.st_ctime)

    def remove(self, digest: Digest, *, grace_s: float = 0.0) -> bool:
        """Remove an object that was not put for so long. Returns False if it stays, or is not there."""
        check_digest(digest)
        info = self._look(digest)
        # By ctime, as a prune does: a writer may bring in files with old times.
        if info is None or self._clock.wall_s() - info.st_ctime < grace_s:
            return False
        path = self._places.blob(digest)
        with translated(path):
            if not remove_untouched(path, info):
                return False
        self._store.memo.forget(digest)
        return True

    def verify(self, digest: Digest) -> Condition:
        """Read every byte of an object again. A damaged one is set aside: no longer served, and not lost."""
        entry = self._entry(digest)
        if entry is None:
            return Condition.MISSING
        return Condition.WHOLE if self._store.holds(entry, heed=lambda _: None) else Condition.DAMAGED

    def _entry(self, digest: Digest) -> TreeEntry | None:
        check_digest(digest)
        info = self._look(digest)
        return None if info is None else TreeEntry("an object", info.st_size, digest)

    def _look(self, digest: Digest) -> os.stat_result | None:
        path = self._places.blob(digest)
        with translated(path):
            try:
                return os.lstat(path)
            except FileNotFoundError:
                return None

    def _is_known(self, digest: Digest, size_bytes: int | None) -> bool:
        entry = self._entry(digest)
        if entry is None or not self._store.renew(entry):
            return False
        if size_bytes not in (None, entry.size_bytes):
            raise wrong_bytes(digest, digest, entry.size_bytes, size_bytes)
        return True

    def _keep(self, part: str, digest: Digest) -> None:
        with translated(part):
            staged = _staged(part, digest)
        self._store.keep([staged], {})


def keep_small(store: LocalStore, staged: Sequence[WalkedEntry]) -> None:
    """Make files in a staging folder blobs, durable: step by step for all of them, not file by file."""
    for start in range(0, len(staged), _TOGETHER):
        settle_files([walked.path for walked in staged[start : start + _TOGETHER]], 0o444)
    store.keep(staged, {}, are_settled=True)


class _Range(io.RawIOBase):
    """The next so many bytes of a file, which it owns."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: self._left]
        count = self._file.readinto(view)  # type: ignore[attr-defined]  # every file that is opened to be read has it
        self._left -= count
        return int(count)

    def close(self) -> None:
        self._file.close()
        super().close()


def _staged(part: str, digest: Digest) -> WalkedEntry:
    info = os.lstat(part)
    return WalkedEntry(TreeEntry("an object", info.st_size, digest), part, info)
