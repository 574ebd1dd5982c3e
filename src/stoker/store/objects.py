"""Objects on their way in, over several connections, processes and boots.

An upload is a folder: what it is to become (`sealed`), and the bytes that have come. The former also says how many of
those are known to be on the disk, and in which boot that was written: within the same boot every byte that was written
is there, after a power cut only the durable ones are trusted. Bytes are judged when all have come, not before.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, BinaryIO, Protocol

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadInput, HashMismatch, LocalFile, LockHeld, NotFound, Refused
from stoker.core.frozen import changed, frozen
from stoker.host.durable import read_regular, remove_tree, translated, write_all, write_file
from stoker.host.identity import mine
from stoker.host.locks import FileLock
from stoker.store.places import StorePaths, names_in
from stoker.store.records import seal, unseal

# The one seam for "where objects live": bytes under their plain SHA-256.
#
# Every implementation promises, and `tests/contract/test_objects.py` holds it to that: nothing is seen under a digest
# but the bytes that have it; what can't be finished leaves nothing under the name; equal objects may be put by many at
# once; what is open stays whole while it is removed. It knows no records: whoever removes an object knows that nobody
# names it.
#
# A text that is not a digest is `BadInput` everywhere, before it touches anything.


class PutOutcome(StrEnum):
    """What putting an object changed."""

    NEW = "new"
    KNOWN = "known"
    """It was there, whole, and is young again."""


class Condition(StrEnum):
    """What reading every byte of an object showed."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"
    """It had other bytes than its name says; they are set aside, and a new put repairs it."""


@frozen
class StoredObject:
    """One object that is there."""

    digest: Digest
    size_bytes: int
    touched_s: float
    """When it was last put, as seconds since 1970."""


@frozen
class Upload:
    """An object on its way in, over as many connections and processes as it takes."""

    id: str
    digest: Digest
    size_bytes: int
    offset: int
    """How many of its bytes have come to stay: the next `append` begins here."""
    owner: str = ""
    """Who began it, as they were named then. Whoever lets others in holds them to their own."""


class ObjectStore(Protocol):
    """Objects by digest. Safe to use from several threads and processes at once."""

    def size(self, digest: Digest) -> int | None:
        """Return an object's size in bytes, or nothing if it is not there."""

    def open(self, digest: Digest, *, start: int = 0, length: int | None = None) -> BinaryIO:
        """Open an object, or a range of it, to be read and closed by the caller.

        `NotFound` if it is not there. `BadInput` if it does not reach to `start`; a range may be longer than the rest.
        """

    def put(self, digest: Digest, stream: BinaryIO, *, size_bytes: int | None = None) -> PutOutcome:
        """Take an object in, durable on return. The stream is not read if the object is known.

        `HashMismatch` if the bytes (or their count, where it is given) are others. Whatever ends it, nothing half is
        left behind.
        """

    def put_all(self, objects: Iterable[tuple[str, bytes]]) -> int:
        """Take small objects in, together, durable on return; say how many were new.

        `HashMismatch` if one has other bytes than its digest says: none of them is kept then.
        """

    def begin(self, digest: Digest, size_bytes: int, *, owner: str = "") -> Upload:
        """Begin an upload that may be interrupted, or end with its process, and be gone on with."""

    def upload(self, upload_id: str) -> Upload:
        """Return how far an upload is. `NotFound` if there is none: never begun, finished, or swept."""

    def append(self, upload_id: str, offset: int, stream: BinaryIO) -> Upload:
        """Add bytes to an upload. What came stays, also if the stream breaks and its error is raised.

        A power cut may take the last of a long stream of large pieces; `upload` says what is left.

        `Refused` if `offset` is not where the upload is, `LockHeld` if somebody else adds to it now, `BadInput` if more
        comes than was announced: the upload stays where it was.
        """

    def finish(self, upload_id: str) -> PutOutcome:
        """Check an upload and give it its name. An object that is known by now needs no more bytes.

        `Refused` if bytes are missing. `HashMismatch` if they are the wrong ones; the upload is gone then.
        """

    def abandon(self, upload_id: str) -> bool:
        """Drop an upload. False if there is none."""

    def stale_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Return the uploads that have been idle for so long."""

    def sweep_uploads(self, *, grace_s: float) -> tuple[str, ...]:
        """Drop stale uploads, except those to which somebody adds just now, and say which."""

    def list(self) -> Iterator[StoredObject]:
        """Return all objects, in the order of their digests; one that comes or goes meanwhile may be among them."""

    def remove(self, digest: Digest, *, grace_s: float = 0.0) -> bool:
        """Remove an object that nobody has put for so long. False if it stays, or is not there."""

    def verify(self, digest: Digest) -> Condition:
        """Read every byte of an object again. A damaged one is set aside: no longer served, and not lost."""


_ID_BYTES = 16
_HEX = frozenset("0123456789abcdef")
_BLOCK_BYTES = 1 << 20
_LONGEST_ABOUT_BYTES = 4096
_SEAL = "upload/1"
_LARGE_PIECE_BYTES = 2 << 20
_SYNCED_EVERY_BYTES = 64 << 20
_OPEN_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalUploads:
    """The uploads below a store's root."""

    def __init__(self, places: StorePaths, *, clock: Clock) -> None:
        self._places = places
        self._clock = clock

    def begin(self, digest: Digest, size_bytes: int, owner: str) -> Upload:
        upload = Upload(id=os.urandom(_ID_BYTES).hex(), digest=digest, size_bytes=size_bytes, offset=0, owner=owner)
        folder = self._places.upload(upload.id)
        with translated(folder):
            os.makedirs(folder)
            os.close(os.open(self._part(upload.id), _OPEN_PART, 0o600))
        self._note(upload)
        return upload

    def look(self, upload_id: str) -> Upload:
        return self._read(upload_id)

    def append(self, upload_id: str, offset: int, stream: BinaryIO) -> Upload:
        with self._alone(upload_id) as upload:
            if offset != upload.offset:
                raise Refused(
                    f"upload {upload.id[:12]} goes on at byte {upload.offset}, not at {offset}",
                    hint="ask how far it is, and send from there",
                    offset=upload.offset,
                )
            part = self._part(upload.id)
            with translated(part):
                descriptor = os.open(part, _OPEN_PART, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                try:
                    # What a power cut left behind the durable bytes is not to be trusted.
                    file.truncate(offset)
                    _pour(stream, file, offset, upload)
                finally:
                    with translated(part):
                        came = changed(upload, offset=os.fstat(file.fileno()).st_size)
                    self._settle(came, file.fileno(), came.offset - offset)
            return came

    @contextlib.contextmanager
    def finishing(self, upload_id: str) -> Iterator[tuple[Upload, str]]:
        """Return an upload and where its bytes lie. It is gone after the block.

        `HashMismatch` takes it away as well; any other error leaves it as it is, to be finished later.
        """
        with self._alone(upload_id) as upload:
            try:
                yield upload, self._part(upload.id)
            except HashMismatch:
                remove_tree(self._places.upload(upload.id))
                raise
            remove_tree(self._places.upload(upload.id))

    def abandon(self, upload_id: str) -> bool:
        try:
            with self._alone(upload_id):
                return remove_tree(self._places.upload(upload_id))
        except NotFound:
            return False

    def sweep(self, *, grace_s: float) -> tuple[str, ...]:
        before_s = self._clock.wall_s() - grace_s
        return tuple(name for name in self.stale(grace_s=grace_s) if self._sweep_one(name, before_s))

    def stale(self, *, grace_s: float) -> tuple[str, ...]:
        before_s = self._clock.wall_s() - grace_s
        with translated(self._places.uploads):
            names = names_in(self._places.uploads)
        return tuple(name for name in names if _is_id(name) and _last_touched_s(self._places.upload(name)) <= before_s)

    def _sweep_one(self, name: str, before_s: float) -> bool:
        folder = self._places.upload(name)
        try:
            with FileLock(os.path.join(folder, "lock"), "sweep stale uploads", wait_s=0.0, clock=self._clock):
                return _last_touched_s(folder) <= before_s and remove_tree(folder)
        except (LockHeld, LocalFile):
            # Somebody adds to it, or has just finished it.
            return False

    @contextlib.contextmanager
    def _alone(self, upload_id: str) -> Iterator[Upload]:
        self._read(upload_id)
        lock = os.path.join(self._places.upload(upload_id), "lock")
        with FileLock(lock, "add to an upload", wait_s=0.0, clock=self._clock):
            # Again: it may have grown, or been finished, until we had it alone.
            yield self._read(upload_id)

    def _read(self, upload_id: str) -> Upload:
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
            raise NotFound(f"no upload {upload_id[:12]} here", hint="begin it anew") from None
        try:
            written = min(os.stat(self._part(upload_id), follow_symlinks=False).st_size, size_bytes)
        except FileNotFoundError:
            written = 0
        offset = written if is_of_this_boot else min(written, durable_bytes)
        return Upload(id=upload_id, digest=Digest(digest), size_bytes=size_bytes, offset=offset, owner=owner)

    def _settle(self, upload: Upload, descriptor: int, came_bytes: int) -> None:
        """Make what came durable: at once what is little, of a long stream of large pieces every now and then."""
        about = self._about_of(upload.id)
        is_of_this_boot = about["boot_id"] == mine().boot_id
        is_little_to_lose = upload.offset - about["durable_bytes"] < _SYNCED_EVERY_BYTES
        if is_of_this_boot and is_little_to_lose and came_bytes >= _LARGE_PIECE_BYTES:
            _begin_write_back(descriptor, upload.offset - came_bytes, came_bytes)
            return
        with translated(self._part(upload.id)):
            os.fsync(descriptor)
        self._note(upload)

    def _about_of(self, upload_id: str) -> dict[str, Any]:
        with translated(self._about(upload_id)):
            return unseal(_SEAL, read_regular(self._about(upload_id), _LONGEST_ABOUT_BYTES))

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


def _pour(stream: BinaryIO, file: BinaryIO, start: int, upload: Upload) -> None:
    # Only what the disk says is translated: what breaks the stream is its owner's affair.
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
    """Let the disk begin, so that it has less to do when all of it is waited for."""
    if sys.platform == "linux":
        from stoker.host.linux import start_write_back  # noqa: PLC0415 - loads ctypes, for large files only

        start_write_back(descriptor, offset, size_bytes)


def _last_touched_s(folder: str) -> float:
    if not os.path.isdir(folder):
        # Finished between two looks: nobody left it behind.
        return math.inf
    newest_s = 0.0
    for name in ("", "about.json", "part"):
        with contextlib.suppress(OSError):
            newest_s = max(newest_s, os.lstat(os.path.join(folder, name)).st_mtime)
    return newest_s


def _is_id(text: str) -> bool:
    return len(text) == 2 * _ID_BYTES and _HEX.issuperset(text)
