"""What shipping needs of the line to a coordinator. `wire.client.FleetClient` has it; tests bring their own.

Every call may be made again after a lost answer. `Unavailable` means later, `StaleLease` means never again; what is
refused for its offset carries the right one in its data.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from stoker.model.clock import Clock
from stoker.model.errors import Bug, LocalFile, StokerError, Unavailable
from stoker.model.frozen import frozen
from stoker.model.leases import Token
from stoker.wire.asking import FileList, UploadBegun
from stoker.wire.leasing import PointCheckpoint, Settled


class Incoming(Protocol):
    """The bytes of one object, from `offset` on."""

    offset: int

    def read(self, at_most_bytes: int) -> bytes:
        """Give the next bytes; nothing at the end."""


class FleetLine(Protocol):
    """One coordinator, as far as bytes go."""

    def put_file(self, token: Token, path: str, data: bytes, *, offset: int) -> int:
        """Add to a mirrored file, and give its size there."""

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        """Say what lies there of an attempt's folder, and how much of each file."""

    def begin_upload(self, digest: str, size_bytes: int) -> UploadBegun:
        """Begin or go on with an upload."""

    def append_upload(self, upload: str, data: bytes, *, offset: int) -> int:
        """Send the next bytes of an upload, and give how many lie there now."""

    def finish_upload(self, upload: str) -> UploadBegun:
        """Have the bytes checked and kept."""

    def get_object(self, sha256: str, *, offset: int = 0) -> AbstractContextManager[Incoming]:
        """Open an object's bytes from an offset on, or from 0 where the server knows no ranges."""

    def checkpoint(self, job: str, said: PointCheckpoint) -> Settled:
        """Point the job at a checkpoint that lies there."""


class Stop(Protocol):
    """What `threading.Event` is: somebody may say stop, and waiting ends early then."""

    def is_set(self) -> bool:
        """Whether it was said."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is said, at most so long."""


@frozen
class Passage:
    """A line, and how whoever sends or fetches something over it waits."""

    line: FleetLine
    stop: Stop
    clock: Clock
    tries: int = 5
    """How often in a row something may be fetched without a new byte."""
    chance: Callable[[], float] | None = None


def is_later(error: StokerError) -> bool:
    """Say whether what failed may work later: the coordinator is away, full, busy, or has a bug."""
    # A file of the coordinator's own that it can't open just now: too many are.
    return isinstance(error, Unavailable | Bug | LocalFile)
