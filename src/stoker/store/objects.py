"""Objects on this machine's disk: bytes under their plain SHA-256, the same blobs that records name, each of them once.

Guarantees (`tests/contract/test_objects.py`): nothing is visible under a digest but the bytes that have it; an
interrupted write leaves nothing under the name; equal objects may be put concurrently; an open object stays whole while
it is removed. It knows no records: the caller removes an object only if no record names it. A text that is not a digest
is `BadInput` everywhere, before it touches anything.

An object is written in a staging folder, hashed meanwhile, synced, and renamed to its digest, read-only. A crash leaves
a staging folder, which the cleanup removes, and never a name without its bytes. An object that no record names is swept
like any blob, once it is older than the grace period of a prune.

An upload is a folder: its target (a file of `records.seal`), and the received bytes. The former also has the number of
bytes known to be on the disk, and the boot in which that was written: within the same boot every written byte is there,
after a power cut only the durable ones are trusted. Bytes are checked when all have come, not before.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, TreeEntry, digest_bytes, is_digest
from stoker.core.errors import BadInput, HashMismatch, LocalFile, LockHeld, NoSpace, NotFound, Refused
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.host.durable import open_regular, read_regular, remove_tree, translated, write_all, write_file
from stoker.host.folders import settle_files
from stoker.host.identity import mine
from stoker.host.locks import FileLock
from stoker.host.resources import free_bytes
from stoker.store.local_store import LocalStore
from stoker.store.places import names_in
from stoker.store.prune import remove_untouched
from stoker.store.records import seal, unseal
from stoker.store.trees import HashLane, WalkedEntry, hash_file

_BLOCK_BYTES = 1 << 20
_TOGETHER = 256
"""Maximum number of open files."""
_ID_BYTES = 16
_HEX = frozenset("0123456789abcdef")
_LONGEST_ABOUT_BYTES = 4096
_SEAL = "upload/1"
_LARGE_PIECE_BYTES = 2 << 20
_SYNCED_EVERY_BYTES = 64 << 20
_OPEN_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class PutOutcome(StrEnum):
    """Result of a put."""

    NEW = "new"
    KNOWN = "known"
    """It was there, whole, and is young again."""


class Condition(StrEnum):
    """Result of reading every byte of an object."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"
    """It had other bytes than its name; they are set aside, and a new put repairs it."""


@frozen
class StoredObject:
    """One existing object."""

    digest: Digest
    size_bytes: int
    touched_s: float
    """When it was last put, as seconds since 1970."""


@frozen
class Upload:
    """An upload of an object, over any number of connections and processes."""

    id: str
    digest: Digest
    size_bytes: int
    offset: int
    """Number of bytes received and kept: the next `append` starts here."""
    owner: str = ""
    """The name of the client that began it. The caller checks it."""


class ObjectStore:
    """Objects by digest, of a local store. Safe from several threads and processes."""

    def __init__(self, store: LocalStore, *, clock: Clock, free_bytes: Callable[[str], int] = free_bytes) -> None:
        self._store = store
        self._places = store.places
        self._clock = clock
        self._free_bytes = free_bytes

    def size(self, digest: Digest) -> int | None:
        """Return an object's size in bytes, or nothing if it is not there."""
        _check_digest(digest)
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
            raise _not_here(digest)
        if not 0 <= start <= size_bytes or (length is not None and length < 0):
            raise BadInput(f"object {digest[:12]} has {size_bytes} bytes: there is no range from {start}")
        path = self._places.blob(digest)
        with translated(path):
            try:
                file = open_regular(path)
            except FileNotFoundError:
                # Removed between two steps of ours.
                raise _not_here(digest) from None
        file.seek(start)
        return file if length is None else io.BufferedReader(_Range(file, length))

    def put(self, digest: Digest, stream: BinaryIO, *, size_bytes: int | None = None) -> PutOutcome:
        """Put an object, durable on return. The stream is not read if the object is known.

        `HashMismatch` if the bytes (or their number, if given) differ. In every case nothing partial is left
        behind.
        """
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
        """Put small objects together, durable on return; return how many were new.

        `HashMismatch` if one has other bytes than its digest: none of them is kept then.
        """
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
        _check_digest(digest)
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

    def begin(self, digest: Digest, size_bytes: int, *, owner: str = "") -> Upload:
        """Begin an upload that may be interrupted, or end with its process, and be continued."""
        _check_digest(digest)
        if size_bytes < 0:
            raise BadInput(f"an object can't have {size_bytes} bytes")
        self._check_room(size_bytes)
        upload = Upload(id=os.urandom(_ID_BYTES).hex(), digest=digest, size_bytes=size_bytes, offset=0, owner=owner)
        folder = self._places.upload(upload.id)
        with translated(folder):
            os.makedirs(folder)
            os.close(os.open(self._part(upload.id), _OPEN_PART, 0o600))
        self._note(upload)
        return upload

    def upload(self, upload_id: str) -> Upload:
        """Return the state of an upload. `NotFound` if there is none: never begun, finished, or swept."""
        if not _is_id(upload_id):
            raise BadInput(f"not the id of an upload: {upload_id[:80]!r}")
        try:
            about = unseal(_SEAL, read_regular(self._about(upload_id), _LONGEST_ABOUT_BYTES))
            digest, size_bytes, durable_bytes = about["digest"], about["size_bytes"], about["durable_bytes"]
            is_of_this_boot, owner = about["boot_id"] == mine().boot_id, about.get("owner", "")
            if not (is_digest(digest) and 0 <= durable_bytes <= size_bytes and isinstance(owner, str)):
                message = "out of bounds"
                raise ValueError(message)
        except (OSError, ValueError, KeyError, TypeError):
            raise NotFound(f"no upload {upload_id[:12]} here", hint="begin it again") from None
        try:
            written = min(os.stat(self._part(upload_id), follow_symlinks=False).st_size, size_bytes)
        except FileNotFoundError:
            written = 0
        offset = written if is_of_this_boot else min(written, durable_bytes)
        return Upload(id=upload_id, digest=Digest(digest), size_bytes=size_bytes, offset=offset, owner=owner)

    def append(self, upload_id: str, offset: int, stream: BinaryIO) -> Upload:
        """Append bytes to an upload. Received bytes stay, also if the stream breaks and its error is raised.

        A power cut may lose the last of a long stream of large pieces; `upload` returns what is left.

        `Refused` if `offset` is not the end of the upload, `LockHeld` if another process appends to it now, `BadInput`
        if more comes than was announced: the upload stays where it was.
        """
        with self._alone(upload_id) as upload:
            if offset != upload.offset:
                raise Refused(
                    f"upload {upload.id[:12]} continues at byte {upload.offset}, not at {offset}",
                    hint="query its offset, and send from there",
                    offset=upload.offset,
                )
            part = self._part(upload.id)
            with translated(part):
                descriptor = os.open(part, _OPEN_PART, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                try:
                    # Bytes behind the durable ones are not trusted after a power cut.
                    file.truncate(offset)
                    _pour(stream, file, offset, upload)
                finally:
                    with translated(part):
                        came = changed(upload, offset=os.fstat(file.fileno()).st_size)
                    self._settle(came, file.fileno(), came.offset - offset)
            return came

    def finish(self, upload_id: str) -> PutOutcome:
        """Check an upload and name it. An object that is known by now needs no more bytes.

        `Refused` if bytes are missing. `HashMismatch` if they are wrong; the upload is deleted then. Any other
        error leaves it as it is, to be finished later.
        """
        with self._alone(upload_id) as upload:
            folder, part = self._places.upload(upload.id), self._part(upload.id)
            outcome = PutOutcome.KNOWN
            try:
                if not self._is_known(upload.digest, upload.size_bytes):
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
                    outcome = PutOutcome.NEW
            except HashMismatch:
                remove_tree(folder)
                raise
            remove_tree(folder)
        return outcome

    def abandon(self, upload_id: str) -> bool:
        """Delete an upload. Returns False if there is none."""
        try:
            with self._alone(upload_id):
                return remove_tree(self._places.upload(upload_id))
        except NotFound:
            return False

    def stale_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Return the uploads that have been idle for so long."""
        before_s = self._clock.wall_s() - grace_s
        with translated(self._places.uploads):
            names = names_in(self._places.uploads)
        return tuple(name for name in names if _is_id(name) and _last_touched_s(self._places.upload(name)) <= before_s)

    def sweep_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Delete stale uploads, except those to which a process appends now, and return them."""
        before_s = self._clock.wall_s() - grace_s
        return tuple(name for name in self.stale_uploads(grace_s=grace_s) if self._sweep_one(name, before_s))

    def _sweep_one(self, name: str, before_s: float) -> bool:
        folder = self._places.upload(name)
        try:
            with FileLock(os.path.join(folder, "lock"), "sweep stale uploads", wait_s=0.0, clock=self._clock):
                return _last_touched_s(folder) <= before_s and remove_tree(folder)
        except (LockHeld, LocalFile):
            # A process appends to it, or has just finished it.
            return False

    @contextlib.contextmanager
    def _alone(self, upload_id: str) -> Iterator[Upload]:
        self.upload(upload_id)
        lock = os.path.join(self._places.upload(upload_id), "lock")
        with FileLock(lock, "add to an upload", wait_s=0.0, clock=self._clock):
            # Again: it may have grown, or been finished, until we had the lock.
            yield self.upload(upload_id)

    def _settle(self, upload: Upload, descriptor: int, came_bytes: int) -> None:
        """Make received bytes durable: little at once, a long stream of large pieces now and then."""
        with translated(self._about(upload.id)):
            about = unseal(_SEAL, read_regular(self._about(upload.id), _LONGEST_ABOUT_BYTES))
        is_of_this_boot = about["boot_id"] == mine().boot_id
        is_little_to_lose = upload.offset - about["durable_bytes"] < _SYNCED_EVERY_BYTES
        if is_of_this_boot and is_little_to_lose and came_bytes >= _LARGE_PIECE_BYTES:
            _begin_write_back(descriptor, upload.offset - came_bytes, came_bytes)
            return
        with translated(self._part(upload.id)):
            os.fsync(descriptor)
        self._note(upload)

    def _note(self, upload: Upload) -> None:
        about = {
            "digest": upload.digest,
            "size_bytes": upload.size_bytes,
            "durable_bytes": upload.offset,
            "boot_id": mine().boot_id,
            "owner": upload.owner,
        }
        write_file(self._about(upload.id), seal(_SEAL, about))

    def _about(self, upload_id: str) -> str:
        return os.path.join(self._places.upload(upload_id), "about.json")

    def _part(self, upload_id: str) -> str:
        return os.path.join(self._places.upload(upload_id), "part")

    def _entry(self, digest: Digest) -> TreeEntry | None:
        _check_digest(digest)
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
            raise _wrong(digest, digest, entry.size_bytes, size_bytes)
        return True

    def _keep(self, part: str, digest: Digest) -> None:
        with translated(part):
            staged = _staged(part, digest)
        self._store.keep([staged], {})

    def _check_room(self, size_bytes: int) -> None:
        root = self._places.root
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


def _staged(part: str, digest: Digest) -> WalkedEntry:
    info = os.lstat(part)
    return WalkedEntry(TreeEntry("an object", info.st_size, digest), part, info)


def _receive(stream: BinaryIO, part: str, *, at_most: int | None) -> tuple[Digest, int]:
    """Write a stream into a new file; a byte more than the limit is enough to know that it is wrong."""
    digest = sha256()
    came_bytes = 0
    with translated(part):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    # Only errors of the disk are translated: errors of the stream are the caller's.
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
        f"object {digest[:12]}: other bytes received ({came_bytes}{of_how_many} bytes, sha256 {found[:12]})",
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


def _pour(stream: BinaryIO, file: BinaryIO, start: int, upload: Upload) -> None:
    # Only errors of the disk are translated: errors of the stream are the caller's.
    at = start
    while block := stream.read(_BLOCK_BYTES):
        if at + len(block) > upload.size_bytes:
            file.truncate(start)
            most = upload.size_bytes
            raise BadInput(f"more bytes came than the {most} that were announced", hint="begin a new upload")
        with translated(f"upload {upload.id[:12]}"):
            write_all(file.fileno(), block, at)
        at += len(block)


def _begin_write_back(descriptor: int, offset: int, size_bytes: int) -> None:
    """Start write-back, so that the final sync has less to do."""
    if sys.platform == "linux":
        from stoker.host.linux import start_write_back  # noqa: PLC0415 - loads ctypes, for large files only

        start_write_back(descriptor, offset, size_bytes)


def _last_touched_s(folder: str) -> float:
    if not os.path.isdir(folder):
        # Finished between two checks: not stale.
        return math.inf
    newest_s = 0.0
    for name in ("", "about.json", "part"):
        with contextlib.suppress(OSError):
            newest_s = max(newest_s, os.lstat(os.path.join(folder, name)).st_mtime)
    return newest_s


def _is_id(text: str) -> bool:
    return len(text) == 2 * _ID_BYTES and _HEX.issuperset(text)
