"""What a window is, whatever memory it is made of."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol


class WindowKind(IntEnum):
    """The kinds, as numbers that stand in a rank's page."""

    NONE = 0
    HOST = 1
    CUDA_IPC = 2


class WindowBlock(Protocol):
    """Memory of a window, our own or a peer's that we opened."""

    @property
    def base(self) -> int:
        """Its address in this process."""

    @property
    def actual_bytes(self) -> int:
        """At least what was asked for."""

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Return a part of it to read and write. Raises `BadInput` where the processor can't reach it."""

    def tensor(self, offset: int, nbytes: int, dtype: str) -> Any:
        """Return a part of it as a torch tensor over the same bytes."""

    def fill(self, offset: int, data: memoryview) -> None:
        """Copy bytes of ours into it, and see that they have arrived."""

    def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        """Return a part of it as bytes of ours."""

    def close(self) -> None:
        """Give it back. Twice is fine."""


class RankWindows(Protocol):
    """Makes a rank's own block and opens its peers'."""

    @property
    def kind(self) -> WindowKind: ...

    def allocate(self, nbytes: int) -> tuple[WindowBlock, bytes]:
        """Make our own; give it with the handle by which peers open it. Raises `OSError`, `MemoryError`."""

    def open(self, handle: bytes) -> WindowBlock:
        """Open a peer's."""
