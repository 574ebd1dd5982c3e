"""Windows in this computer's memory: one piece of memory without a name, a region of it for each rank.

The owner makes it before any rank starts and hands everybody its descriptor, so a handle is no more than a place.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stoker.gang.layout import aligned
from stoker.gang.windows.seam import WindowKind

_HANDLE = struct.Struct("<QQ")


def regions(sizes_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Give each rank's place and size in the common memory: whole pages, so that each can map its own alone."""
    placed: list[tuple[int, int]] = []
    end = 0
    for size in sizes_bytes:
        room = aligned(size, mmap.ALLOCATIONGRANULARITY)
        placed.append((end, room))
        end += room
    return placed


class HostBlock:
    """A mapped region."""

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        self.actual_bytes = nbytes
        self._map = mmap.mmap(fd, nbytes, offset=offset)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + nbytes]

    def tensor(self, offset: int, nbytes: int, dtype: str) -> Any:
        from stoker.gang.backend.tensors import over_memory  # noqa: PLC0415 - who wants one has torch

        return over_memory(self.view(offset, nbytes), dtype)

    def fill(self, offset: int, data: memoryview) -> None:
        self.view(offset, data.nbytes)[:] = data

    def read(self, offset: int, nbytes: int) -> memoryview:
        return self.view(offset, nbytes)

    def close(self) -> None:
        # Whoever still holds a view keeps the mapping, until the process ends.
        with suppress(BufferError):
            self._map.close()


class HostWindows:
    """The windows of a gang whose memory is at `fd`; ours is the region given."""

    kind = WindowKind.HOST

    def __init__(self, fd: int, region: tuple[int, int]) -> None:
        self._fd = fd
        self._region = region

    def allocate(self, nbytes: int) -> tuple[HostBlock, bytes]:
        offset, room = self._region
        if nbytes > room:
            message = f"{nbytes} bytes are more than the {room} that were set aside"
            raise MemoryError(message)
        return HostBlock(self._fd, offset, room), _HANDLE.pack(offset, room)

    def open(self, handle: bytes) -> HostBlock:
        offset, room = _HANDLE.unpack(handle)
        return HostBlock(self._fd, offset, room)
