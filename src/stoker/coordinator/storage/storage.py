"""Objects under their digest: uploads, stored bytes, and what a prune is removing.

Objects need no fence: their digest says what they are. Naming them in a job's record does, and the queue checks that
they are here (`has_archive`) before it records a result. Bytes that are being uploaded have no digest yet, so only the
owner of an upload may append to it or finish it. What a prune removes counts as absent from its start (`removing`), so
no job can name it.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import BinaryIO

from stoker.coordinator.storage.attempt_files import (
    UPLOAD_OPTION,
    AttemptFiles,
    CoordinatorStorageLimits,
)
from stoker.coordinator.storage.models import ModelView
from stoker.coordinator.storage.object_place import STORE_NAME, open_objects, read_place
from stoker.coordinator.storage.telemetry import FleetTelemetry
from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadInput, HashMismatch, NoSpace, NotFound, StokerError, TooLarge, Unavailable
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.host.durable import remove_tree
from stoker.host.resources import free_bytes
from stoker.protocol.mirror_pieces import MirrorPiece
from stoker.store.local_store import LocalStore
from stoker.store.objects.s3 import S3Objects
from stoker.store.objects.seam import Objects, PutOutcome, Upload

_REMEMBERED = 10_000


@frozen
class BundleUpload:
    """An upload that may start or resume at `offset`. If it is known, nothing has to be sent."""

    id: str
    offset: int
    is_known: bool = False


class Bundles:
    """Archives in an object store. Thread-safe."""

    def __init__(
        self,
        objects: Objects,
        *,
        limits: CoordinatorStorageLimits | None = None,
        check_room: Callable[[int], None] = lambda _coming_bytes: None,
    ) -> None:
        self._objects = objects
        self._check_room = check_room
        self._limits = limits or CoordinatorStorageLimits()
        self._turn = threading.Lock()
        self._uploads: OrderedDict[tuple[str, str, int], str] = OrderedDict()
        self._going: set[str] = set()

    def has_archive(self, sha256: str) -> int | None:
        """Return the size of a complete archive that no prune removes; None if it is not here. Cheap."""
        if not is_digest(sha256) or self.is_going(sha256):
            return None
        return self._objects.size(Digest(sha256))

    def begin(self, sha256: str, size_bytes: int, *, owner: str = "") -> BundleUpload:
        """Start an upload, or return the owner's unfinished upload of the same bytes."""
        digest = self.check_coming(sha256, size_bytes)
        if self.is_known(digest):
            return BundleUpload(id="", offset=size_bytes, is_known=True)
        key = (owner, sha256, size_bytes)
        with self._turn:
            under_way = self._uploads.get(key)
        if under_way is not None:
            try:
                return BundleUpload(id=under_way, offset=self._objects.upload(under_way).offset)
            except NotFound:
                pass
        self._check_room(size_bytes)
        upload = self._objects.begin(digest, size_bytes, owner=owner)
        with self._turn:
            self._uploads[key] = upload.id
            while len(self._uploads) > _REMEMBERED:
                self._uploads.popitem(last=False)
        return BundleUpload(id=upload.id, offset=upload.offset)

    def append(self, upload_id: str, offset: int, data: bytes | BinaryIO, *, owner: str = "") -> int:
        """Append bytes to an upload of the owner, durable on return; return its size.

        Raises `NotFound` if there is none, `Refused` with the right `offset` if that is another one, `LockHeld` if
        another request appends to it.
        """
        self.upload(upload_id, owner=owner)
        if isinstance(data, bytes):
            # Checked again: it may have been started long ago.
            self._check_room(len(data))
        stream = io.BytesIO(data) if isinstance(data, bytes) else data
        return self._objects.append(upload_id, offset, stream).offset

    def upload(self, upload_id: str, *, owner: str = "") -> Upload:
        """Return an upload of the owner. Raises `NotFound` also for another owner's: its existence is secret."""
        found = self._objects.upload(upload_id)
        if found.owner != owner:
            raise NotFound(f"no upload {upload_id[:12]} here", hint="start it again")
        return found

    def finish(self, upload_id: str, *, owner: str = "") -> PutOutcome:
        """Verify the bytes of an upload and name them. Raises `HashMismatch` if they differ; they are deleted then.

        Raises `Refused` with the right `offset` if some are missing.
        """
        self.refuse_going(self.upload(upload_id, owner=owner).digest)
        return self._objects.finish(upload_id)

    def open(self, sha256: str, *, start: int = 0, length: int | None = None) -> BinaryIO:
        """Open an archive, or a range of it. Caller closes. Raises `NotFound`."""
        return self._objects.open(Digest(sha256), start=start, length=length)

    @contextmanager
    def removing(self, archives: AbstractSet[str]) -> Iterator[None]:
        """Count archives as absent during a with-block: no job can name them, and no upload can add them."""
        with self._turn:
            if self._going & archives:
                raise Unavailable("another prune is removing some of these", hint="one prune at a time")
            self._going |= archives
        try:
            yield
        finally:
            with self._turn:
                self._going -= archives

    def is_going(self, digest: str) -> bool:
        """Return True if a prune is removing an object or a tree."""
        with self._turn:
            return digest in self._going

    def refuse_going(self, sha256: str) -> None:
        """Raise `Unavailable` for an object that a prune is removing."""
        if self.is_going(sha256):
            raise Unavailable(f"object {sha256[:12]} is being removed", hint="send it again in a moment")

    def is_known(self, digest: Digest) -> bool:
        """Return True if it is here; update its age then, so that no prune removes it before a job names it."""
        if self._objects.size(digest) is None:
            return False
        try:
            return self._objects.put(digest, io.BytesIO()) is PutOutcome.KNOWN
        except HashMismatch:
            # Removed between the two calls: the empty body does not match the digest.
            return False

    def check_coming(self, sha256: str, size_bytes: int) -> Digest:
        """Raise if an object may not be sent: `BadInput`, `TooLarge`, or `Unavailable` while a prune removes it."""
        if not is_digest(sha256):
            raise BadInput(f"not a digest: {sha256[:80]!r}", hint="it is written as 64 lower-case hex digits")
        most = self._limits.archive_bytes
        if size_bytes > most:
            raise TooLarge(
                f"an upload of {format_size(size_bytes)}: {format_size(most)} are the most",
                hint=f"send less, or let the coordinator take more: `{UPLOAD_OPTION}`",
                most_bytes=most,
            )
        self.refuse_going(sha256)
        return Digest(sha256)


class CoordinatorStorage:
    """Files of attempts, objects, the plain view of results, and telemetry. Thread-safe; one process at a time writes.

    The objects are in a store of their own, not in the machine's: a prune of that one removes every blob that no local
    run names, and these are named by the queue's database.
    """

    def __init__(
        self,
        folder: str,
        clock: Clock,
        *,
        limits: CoordinatorStorageLimits | None = None,
        free_bytes: Callable[[str], int] = free_bytes,
        environment: Mapping[str, str] | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the storage below a folder; `environment` has the key of an object store, if it uses one.

        `progress` is called while this takes long.
        """
        self._free_bytes = free_bytes
        self.folder = folder
        self.limits = limits or CoordinatorStorageLimits()
        self.clock = clock
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._store = LocalStore(os.path.join(folder, STORE_NAME), clock=clock)
        self._store.open()
        self.objects: Objects = open_objects(folder, self._store, environment or {}, clock=clock, progress=progress)
        self._remote = self.objects if isinstance(self.objects, S3Objects) else None
        self.place = read_place(folder)
        self.direct = self._remote if self.place.is_direct else None
        """The object store with which machines exchange bytes directly; None: all go through the coordinator."""
        booted_s = clock.wall_s() - clock.boottime_s()
        self.attempt_files = AttemptFiles(os.path.join(folder, "attempts"), limits=self.limits, booted_s=booted_s)
        self.bundles = Bundles(self.objects, limits=self.limits, check_room=self.check_object_room)
        self.telemetry = FleetTelemetry(os.path.join(folder, "telemetry"), clock)
        self.models = ModelView(os.path.join(folder, "models"), None if self._remote else self._store.places.blob)

    def close(self) -> None:
        """Close the store."""
        if self._remote is not None:
            self._remote.close()
        self._store.close()

    def check_room(self, coming_bytes: int) -> None:
        """Raise `NoSpace` if bytes would leave less free space than the floor. Everything that is stored calls this."""
        if not coming_bytes:
            return
        free, floor_bytes = self._free_bytes(self.folder), self.limits.free_floor_bytes
        if coming_bytes > free - floor_bytes:
            raise NoSpace(
                f"{format_size(coming_bytes)} do not fit on the coordinator's disk: {format_size(free)} are free,"
                f" and {format_size(floor_bytes)} of them are reserved",
                hint="free some space on its machine; `stoker store prune --fleet` shows what could be removed",
                needed_bytes=coming_bytes,
                free_bytes=free,
            )

    def check_object_room(self, coming_bytes: int) -> None:
        """Raise `NoSpace` if bytes of objects would not fit on the disk. An object store has room."""
        if self._remote is None:
            self.check_room(coming_bytes)

    def append(self, job: str, attempt: int, path: str, offset: int, data: bytes) -> int:
        """Append to a mirrored file: `AttemptFiles.append`."""
        self.check_room(len(data))
        return self.attempt_files.append(job, attempt, path, offset, data)

    def append_all(self, job: str, attempt: int, pieces: Sequence[MirrorPiece]) -> list[int | StokerError]:
        """Append to several mirrored files: `AttemptFiles.append_all`."""
        self.check_room(sum(len(one.data) for one in pieces))
        return self.attempt_files.append_all(job, attempt, pieces)

    def has_archive(self, sha256: str) -> int | None:
        """Return an object's size; None if it is not here, or is being removed."""
        return self.bundles.has_archive(sha256)

    @contextmanager
    def staging(self) -> Iterator[str]:
        """Make a folder on the same disk, which is removed in the end; after a crash, by the store's cleanup."""
        folder = self._store.new_staging("unpack")
        try:
            yield folder
        finally:
            remove_tree(folder)
