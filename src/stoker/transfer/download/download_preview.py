"""What a fetch would do, before it does: file by file what is there, what would come, and whether there is room.

Whoever fetches makes the preview, by the same decisions. It goes by names and sizes: bytes are read, and damage is
found, when a file is fetched. Making one changes nothing on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from stoker.core.frozen import frozen
from stoker.host.resources import has_space
from stoker.transfer.download.paths import PART, beside
from stoker.transfer.download.types import Status, TargetFile


@frozen
class PlannedDownload:
    """One file that would be fetched."""

    label: str
    path: str
    """Where a person will find it."""
    size_bytes: int | None = None
    status: Status
    """How it would come to be there."""
    partial_bytes: int = 0
    """What an earlier try has left of it, and would be gone on with."""
    is_missing: bool = False
    """Whether it is not here, and nobody may be asked: it would not come."""

    @property
    def is_there(self) -> bool:
        """Whether its bytes are on this machine."""
        return self.status is not Status.DOWNLOADED

    @property
    def to_come_bytes(self) -> int | None:
        """How much a server would send."""
        if self.is_there or self.is_missing:
            return 0
        return None if self.size_bytes is None else max(0, self.size_bytes - self.partial_bytes)


@frozen
class DownloadPreview:
    """Everything that would be fetched at once."""

    files: Sequence[PlannedDownload]
    folder: str
    """Where a person will find the files."""
    needed_bytes: int | None
    """How much would be written, copies of what is here included."""
    free_bytes: int
    """What may be written where that would be."""

    @property
    def size_bytes(self) -> int | None:
        return known_sum(one.size_bytes for one in self.files)

    @property
    def to_come_bytes(self) -> int | None:
        return known_sum(one.to_come_bytes for one in self.files)

    @property
    def has_space(self) -> bool | None:
        return None if self.needed_bytes is None else has_space(self.needed_bytes, self.free_bytes)

    @property
    def missing(self) -> int:
        """How many files would not come."""
        return sum(one.is_missing for one in self.files)


def known_sum(sizes: Iterable[int | None]) -> int | None:
    """Add sizes up; nothing is known of the sum if one of them is not."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def partial_bytes(landing: TargetFile) -> int:
    """Return how much of a file an earlier try has left."""
    folder, leaf = os.path.split(landing.path)
    try:
        return os.lstat(os.path.join(folder, beside(leaf, PART))).st_size
    except OSError:
        return 0


def is_plain_file(path: str) -> bool:
    """Return whether a regular file lies at a path, and not a link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def seems_there(path: str, size_bytes: int | None) -> bool:
    """Return whether a file of this size lies at a path; of any size where none is known."""
    try:
        return os.path.isfile(path) and size_bytes in {None, os.path.getsize(path)}
    except OSError:
        return False
