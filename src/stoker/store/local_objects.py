"""Objects on this machine's disk: the same blobs that records name, each of them once.

An object is written in a staging folder, hashed on the way, synced, and renamed to its digest, read-only. A crash
leaves a staging folder, which clearing up removes, and never a name without its bytes. An object that no record names
is swept like any blob, once it is older than the grace of a prune.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, TreeEntry, digest_bytes, is_digest
from stoker.core.errors import BadInput, HashMismatch, NoSpace, NotFound, Refused
from stoker.core.text import format_size
from stoker.host.durable import open_regular, remove_tree, translated, write_all
from stoker.host.folders import settle_files
from stoker.host.resources import free_bytes
from stoker.store.local_store import LocalStore
from stoker.store.objects import Condition, LocalUploads, PutOutcome, StoredObject, Upload
from stoker.store.prune import remove_untouched
from stoker.store.trees import HashLane, WalkedEntry, hash_file

_BLOCK_BYTES = 1 << 20
_TOGETHER = 256
"""Files that are open at once."""


class LocalObjects:
    """The objects of a local store."""

    def __init__(self, store: LocalStore, *, clock: Clock, free_bytes: Callable[[str], int] = free_bytes) -> None:
        self._store = store
        self._clock = clock
        self._free_bytes = free_bytes
        self._uploads = LocalUploads(store.places, clock=clock)

    def size(self, digest: Digest) -> int | None:
        entry = self._entry(digest)
        return entry.size_bytes if entry is not None and self._store.holds(entry) else None

    def open(self, digest: Digest, *, start: int = 0, length: int | None = None) -> BinaryIO:
        size_bytes = self.size(digest)
        if size_bytes is None:
            raise _not_here(digest)
        if not 0 <= start <= size_bytes or (length is not None and length < 0):
            raise BadInput(f"object {digest[:12]} has {size_bytes} bytes: there is no range from {start}")
        path = self._store.places.blob(digest)
        with translated(path):
            try:
                file = open_regular(path)
            except FileNotFoundError:
                # Removed between two steps of ours.
                raise _not_here(digest) from None
        file.seek(start)
        return file if length is None else io.BufferedReader(_Range(file, length))

    def put(self, digest: Digest, stream: BinaryIO, *, size_bytes: int | None = None) -> PutOutcome:
        if self._is_known(digest, size_bytes):
            return PutOutcome.KNOWN
        self._check_room(size_bytes or 0)
        staging = self._store.new_staging("put")
        try:
            part = os.path.join(staging, "object")
            found, came_bytes = _receive(stream, part, at_most=size_bytes)
            if found != digest or size_bytes not in (None, came_bytes):
                raise _wrong(digest, found, came_bytes, size_bytes)
            self._keep(part, digest)
        finally:
            remove_tree(staging)
        return PutOutcome.NEW

    def put_all(self, objects: Iterable[tuple[str, bytes]]) -> int:
        wanted = dict(objects)
        for name, data in wanted.items():
            _check_digest(name)
            if (found := digest_bytes(data)) != name:
                raise _wrong(Digest(name), found, len(data), None)
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
                    walked.append(
                        WalkedEntry(TreeEntry("an object", len(wanted[digest]), digest), part, os.lstat(part))
                    )
            keep_small(self._store, walked)
        finally:
            remove_tree(staging)
        return len(new)

    def begin(self, digest: Digest, size_bytes: int, *, owner: str = "") -> Upload:
        _check_digest(digest)
        if size_bytes < 0:
            raise BadInput(f"an object can't have {size_bytes} bytes")
        self._check_room(size_bytes)
        return self._uploads.begin(digest, size_bytes, owner)

    def upload(self, upload_id: str) -> Upload:
        return self._uploads.look(upload_id)

    def append(self, upload_id: str, offset: int, stream: BinaryIO) -> Upload:
        return self._uploads.append(upload_id, offset, stream)

    def finish(self, upload_id: str) -> PutOutcome:
        with self._uploads.finishing(upload_id) as (upload, part):
            if self._is_known(upload.digest, upload.size_bytes):
                return PutOutcome.KNOWN
            if upload.offset != upload.size_bytes:
                raise Refused(
                    f"upload {upload.id[:12]} has {upload.offset} of its {upload.size_bytes} bytes",
                    hint="send the rest first",
                    offset=upload.offset,
                )
            found, came_bytes = hash_file(part)
            if found != upload.digest:
                raise _wrong(upload.digest, found, came_bytes, upload.size_bytes)
            self._keep(part, upload.digest)
        return PutOutcome.NEW

    def abandon(self, upload_id: str) -> bool:
        return self._uploads.abandon(upload_id)

    def stale_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        return self._uploads.stale(grace_s=grace_s)

    def sweep_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        return self._uploads.sweep(grace_s=grace_s)

    def list(self) -> Iterator[StoredObject]:
        for name, _ in self._store.places.blob_files():
            info = self._look(Digest(name)) if is_digest(name) else None
            if info is not None:
                yield StoredObject(digest=Digest(name), size_bytes=info.st_size, touched_s=info.st_ctime)

    def remove(self, digest: Digest, *, grace_s: float = 0.0) -> bool:
        _check_digest(digest)
        info = self._look(digest)
        # By ctime, as a prune does: a writer may bring in files that it was told are years old.
        if info is None or self._clock.wall_s() - info.st_ctime < grace_s:
            return False
        path = self._store.places.blob(digest)
        with translated(path):
            if not remove_untouched(path, info):
                return False
        self._store.memo.forget(digest)
        return True

    def verify(self, digest: Digest) -> Condition:
        entry = self._entry(digest)
        if entry is None:
            return Condition.MISSING
        return Condition.WHOLE if self._store.holds(entry, heed=lambda _: None) else Condition.DAMAGED

    def _entry(self, digest: Digest) -> TreeEntry | None:
        _check_digest(digest)
        info = self._look(digest)
        return None if info is None else TreeEntry("an object", info.st_size, digest)

    def _look(self, digest: Digest) -> os.stat_result | None:
        path = self._store.places.blob(digest)
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
            raise _wrong(digest, digest, entry.size_bytes, size_bytes)
        return True

    def _keep(self, part: str, digest: Digest) -> None:
        with translated(part):
            info = os.lstat(part)
        self._store.keep([WalkedEntry(TreeEntry("an object", info.st_size, digest), part, info)], {})

    def _check_room(self, size_bytes: int) -> None:
        root = self._store.places.root
        free = self._free_bytes(root)
        if size_bytes > free:
            raise NoSpace(
                f"no space left: {root} has {format_size(free)}, and the object needs {format_size(size_bytes)}",
                hint="free some space there, or choose another place",
                path=root,
            )


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


def _receive(stream: BinaryIO, part: str, *, at_most: int | None) -> tuple[Digest, int]:
    """Write a stream into a new file; a byte more than the most is enough to know that it is wrong."""
    digest = sha256()
    came_bytes = 0
    with translated(part):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    # Only what the disk says is translated: what breaks the stream is its owner's affair.
    with open(descriptor, "wb", buffering=0) as file, HashLane() as lane:
        while block := stream.read(_BLOCK_BYTES):
            lane.feed(digest, block)
            with translated(part):
                write_all(file.fileno(), block, came_bytes)
            came_bytes += len(block)
            if at_most is not None and came_bytes > at_most:
                break
        lane.wait()
    return Digest(digest.hexdigest()), came_bytes


def _wrong(digest: Digest, found: Digest, came_bytes: int, size_bytes: int | None) -> HashMismatch:
    of_how_many = f" of {size_bytes}" if size_bytes is not None and size_bytes != came_bytes else ""
    return HashMismatch(
        f"object {digest[:12]}: what came is another ({came_bytes}{of_how_many} bytes, sha256 {found[:12]})",
        hint="send it again; nothing was kept",
        expected=digest,
        found=found,
        size_bytes=came_bytes,
    )


def _not_here(digest: Digest) -> NotFound:
    return NotFound(f"no object {digest[:12]} here", digest=digest)


def _check_digest(digest: str) -> None:
    if not is_digest(digest):
        raise BadInput(f"not a digest: {digest[:80]!r}", hint="it is written as 64 lower-case hex digits")
