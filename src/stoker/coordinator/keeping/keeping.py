"""What workers send to be kept, under one roof: attempts' files, archives, and the plain view of results.

    FOLDER/attempts/    mirrors of attempts' folders
    FOLDER/store/       objects: archives of results and checkpoints
    FOLDER/models/      the view of results by model, and its index

The objects are in a store of their own, not in the machine's: there a prune sweeps every blob that no record of a
local run names, and these are named by the queue's database.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.coordinator.keeping.attempts import AttemptFiles, Growth, KeptFile
from stoker.coordinator.keeping.bundles import Bundles
from stoker.coordinator.keeping.limits import KeepingLimits
from stoker.coordinator.keeping.models import ModelView
from stoker.host.disk import free_bytes
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import NoSpace
from stoker.model.units import format_size
from stoker.store.local import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.objects.seam import ObjectStore


class Keeping:
    """Everything that is kept for one coordinator. Safe to use from several threads; one process at a time writes."""

    def __init__(
        self,
        folder: str,
        objects: ObjectStore,
        clock: Clock,
        *,
        limits: KeepingLimits | None = None,
        place_of: Callable[[Digest], str] | None = None,
        free_bytes: Callable[[str], int] = free_bytes,
    ) -> None:
        """Keep below a folder; `place_of` says where an object lies, if it lies in a file."""
        self._free_bytes = free_bytes
        self.folder = folder
        self.limits = limits or KeepingLimits()
        self.clock = clock
        self.objects = objects
        booted_s = clock.wall_s() - clock.boottime_s()
        self.attempt_files = AttemptFiles(os.path.join(folder, "attempts"), limits=self.limits, booted_s=booted_s)
        self.bundles = Bundles(objects, limits=self.limits, check_room=self.check_room)
        self.models = ModelView(os.path.join(folder, "models"), place_of)

    def check_room(self, coming_bytes: int) -> None:
        """Raise `NoSpace` where bytes would leave the disk with less than the floor. All that is kept asks this."""
        if not coming_bytes:
            return
        free, floor_bytes = self._free_bytes(self.folder), self.limits.free_floor_bytes
        if coming_bytes > free - floor_bytes:
            raise NoSpace(
                f"{format_size(coming_bytes)} have no room with the coordinator: {format_size(free)} are free there,"
                f" and {format_size(floor_bytes)} stay so",
                hint="free some space on its machine; `stoker store prune --fleet` shows what could go",
                needed_bytes=coming_bytes,
                free_bytes=free,
            )

    def append(self, job: str, attempt: int, path: str, offset: int, data: bytes) -> int:
        """Add a piece to a mirrored file: `AttemptFiles.append`."""
        self.check_room(len(data))
        return self.attempt_files.append(job, attempt, path, offset, data)

    def read(self, job: str, attempt: int, path: str, offset: int, limit: int) -> bytes:
        """Give bytes of a mirrored file. `NotFound`."""
        return self.attempt_files.read(job, attempt, path, offset, limit)

    def files(self, job: str, attempt: int) -> tuple[KeptFile, ...]:
        """Give what is mirrored of an attempt."""
        return self.attempt_files.files(job, attempt)

    def on_growth(self, listener: Growth) -> None:
        """Tell somebody of every mirrored file that grew."""
        self.attempt_files.on_growth(listener)

    def has_archive(self, sha256: str) -> int | None:
        """Give an archive's size if it is here and whole: what the queue asks before a job may point at it."""
        return self.bundles.has_archive(sha256)


class LocalKeeping(Keeping):
    """Everything that is kept, on this machine's disk."""

    def __init__(
        self,
        folder: str,
        clock: Clock,
        *,
        limits: KeepingLimits | None = None,
        free_bytes: Callable[[str], int] = free_bytes,
    ) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._store = LocalStore(os.path.join(folder, "store"), clock=clock)
        self._store.open()
        objects = LocalObjects(self._store, clock=clock)
        place_of = self._store.places.blob
        super().__init__(folder, objects, clock, limits=limits, place_of=place_of, free_bytes=free_bytes)

    def close(self) -> None:
        """Let go of what is remembered of the disk."""
        self._store.close()
