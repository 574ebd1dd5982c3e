"""Receives objects on this machine's disk: streams that are hashed meanwhile, and uploads in pieces that resume.

An object is written in a staging folder, hashed meanwhile, and named by the implementation (`_keep`). A crash leaves a
staging folder, which the cleanup removes, and never a name without its bytes.

An upload is a folder: its target (a file of `records.seal`), and the received bytes. The former also has the number of
bytes known to be on the disk, and the boot in which that was written: within the same boot every written byte is there,
after a power cut only the durable ones are trusted. Bytes are checked when all have come, not before.
"""

from __future__ import annotations

import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadInput, HashMismatch, LocalFile, LockHeld, NoSpace, NotFound, Refused
from stoker.core.frozen import changed
from stoker.core.text import format_size
from stoker.host.durable import begin_write_back, read_regular, remove_tree, translated, write_all, write_file
from stoker.host.identity import mine
from stoker.host.locks import FileLock
from stoker.host.resources import free_bytes
from stoker.store.local_store import LocalStore
from stoker.store.objects.seam import PutOutcome, Upload, check_digest, wrong_bytes
from stoker.store.places import names_in
from stoker.store.records import seal, unseal
from stoker.store.trees import HashLane, hash_file

_BLOCK_BYTES = 1 << 20
_ID_BYTES = 16
_HEX = frozenset("0123456789abcdef")
_LONGEST_ABOUT_BYTES = 4096
_SEAL = "upload/1"
_LARGE_PIECE_BYTES = 2 << 20
_SYNCED_EVERY_BYTES = 64 << 20
_OPEN_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class StagedObjects(ABC):
    """Objects that are received below a local store first."""

    def __init__(self, store: LocalStore, *, clock: Clock, free_bytes: Callable[[str], int] = free_bytes) -> None:
        self._store = store
        self._places = store.places
        self._clock = clock
        self._free_bytes = free_bytes

    @abstractmethod
    def _is_known(self, digest: Digest, size_bytes: int | None) -> bool:
        """Return True if an object is there; it is young again then. `HashMismatch` if its size is another one."""

    @abstractmethod
    def _keep(self, part: str, digest: Digest) -> None:
        """Name a file of this machine whose bytes have the digest, durable on return. It may be moved."""

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
                raise wrong_bytes(digest, found, came_bytes, size_bytes)
            self._keep(part, digest)
        finally:
            remove_tree(staging)
        return PutOutcome.NEW

    def begin(self, digest: Digest, size_bytes: int, *, owner: str = "") -> Upload:
        """Begin an upload that may be interrupted, or end with its process, and be continued."""
        check_digest(digest)
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
                        raise wrong_bytes(upload.digest, found, came_bytes, upload.size_bytes)
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
            begin_write_back(descriptor, upload.offset - came_bytes, came_bytes)
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

    def _check_room(self, size_bytes: int) -> None:
        root = self._places.root
        free = self._free_bytes(root)
        if size_bytes > free:
            raise NoSpace(
                f"no space left: {root} has {format_size(free)}, and the object needs {format_size(size_bytes)}",
                hint="free some space there, or choose another place",
                path=root,
            )


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
