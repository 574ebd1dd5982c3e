"""Windows in this computer's memory: one piece of memory without a name, a region of it for each rank.

The owner makes it before any rank starts and hands every rank its descriptor, so a handle is no more than a place.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

from stoker.core.errors import BadInput
from stoker.gang.rank_config import aligned

_HANDLE = struct.Struct("<QQ")


class WindowKind(IntEnum):
    """The kinds, as numbers that stand in a rank's page."""

    NONE = 0
    HOST = 1
    CUDA_IPC = 2


def regions(sizes_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Return each rank's place and size in the common memory: whole pages, so that each can map its own alone."""
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
        from stoker.gang.torch_backend import over_memory  # noqa: PLC0415 - who wants one has torch

        return over_memory(self.view(offset, nbytes), dtype)

    def fill(self, offset: int, data: memoryview) -> None:
        self.view(offset, data.nbytes)[:] = data

    def read(self, offset: int, nbytes: int) -> memoryview:
        return self.view(offset, nbytes)

    def close(self) -> None:
        # A view that is still held keeps the mapping until the process ends.
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


# The driver packs smaller blocks into one of this size, and peers would see what else is in there.
_GRAIN_BYTES = 2 * 1024 * 1024


class CudaBlock:
    """A block of device memory, our own or a peer's."""

    def __init__(self, driver: Driver, base: int, nbytes: int, *, is_own: bool) -> None:
        self._driver = driver
        self._is_own = is_own
        self._is_closed = False
        self.base = base
        self.actual_bytes = nbytes

    def view(self, offset: int, nbytes: int) -> memoryview:
        raise BadInput("a window on a GPU can't be read by the processor", hint="use tensor(name)")

    def tensor(self, offset: int, nbytes: int, dtype: str) -> Any:
        from stoker.gang.torch_backend import over_device  # noqa: PLC0415 - who has a GPU has torch

        return over_device(self.base + offset, nbytes, dtype, keep=self)

    def fill(self, offset: int, data: memoryview) -> None:
        self._driver.copy_in(self.base + offset, data)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self._driver.copy_out(self.base + offset, nbytes)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._driver.free(self.base) if self._is_own else self._driver.close_peer(self.base)


class CudaWindows:
    """The windows of a gang on GPUs: one block per rank, opened by peers through CUDA's handles between processes.

    Speaks to the driver itself: torch's own sharing keeps its counts in named shared memory, which stays behind when a
    process is killed. A block ends with the process that made it. Peers on one GPU, or on two that reach each other,
    can open it; its maker can't. Needs a current context, which the rank's DEVICE phase made.
    """

    kind = WindowKind.CUDA_IPC

    def __init__(self) -> None:
        self._driver = Driver()

    def allocate(self, nbytes: int) -> tuple[CudaBlock, bytes]:
        room = aligned(nbytes, _GRAIN_BYTES)
        base = self._driver.allocate(room)
        try:
            return CudaBlock(self._driver, base, room, is_own=True), self._driver.handle_of(base)
        except BaseException:
            with suppress(OSError):
                self._driver.free(base)
            raise

    def open(self, handle: bytes) -> CudaBlock:
        base = self._driver.open_peer(handle)
        return CudaBlock(self._driver, base, self._driver.size_of(base), is_own=False)


WindowBlock = HostBlock | CudaBlock
"""Memory of a window, our own or a peer's that we opened.

`base` is its address here; `view` raises `BadInput` where the processor can't reach it; `fill` returns once the bytes
have arrived; `close` may be called twice.
"""
RankWindows = HostWindows | CudaWindows
"""Makes a rank's own block (`allocate`; raises `OSError`, `MemoryError`) and opens its peers' by their handles."""


HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class Driver:
    """The calls of CUDA's driver that ranks need. Raises `OSError` with its message, and `MemoryError`."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            message = f"CUDA's driver is not here: {error}"
            raise OSError(message) from error

    def context(self) -> int:
        """Return the context that is current in this thread; zero if none is."""
        found = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value or 0

    def allocate(self, nbytes: int) -> int:
        base = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(nbytes), what=f"to allocate {nbytes} bytes")
        return base.value

    def free(self, base: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(base))

    def handle_of(self, base: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle)

    def open_peer(self, handle: bytes) -> int:
        base = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(base), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return base.value

    def close_peer(self, base: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(base))

    def size_of(self, base: int) -> int:
        start, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(base))
        return size.value - (base - start.value)

    def copy_in(self, to: int, data: memoryview) -> None:
        source = (ctypes.c_char * data.nbytes).from_buffer_copy(data)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(to), source, ctypes.c_size_t(data.nbytes))

    def copy_out(self, base: int, nbytes: int) -> bytes:
        got = ctypes.create_string_buffer(nbytes)
        self._call("cuCtxSynchronize")
        self._call("cuMemcpyDtoH_v2", got, ctypes.c_uint64(base), ctypes.c_size_t(nbytes))
        return got.raw

    def _call(self, name: str, *arguments: Any, what: str = "") -> None:
        code = getattr(self._cuda, name)(*arguments)
        if not code:
            return
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorName(code, ctypes.byref(text))
        said = text.value.decode() if text.value else f"error {code}"
        message = f"{said} from {name}" + (f", asked {what}" if what else "")
        raise MemoryError(message) if code == _OUT_OF_MEMORY else OSError(message)
