"""Windows in the memory of a GPU: one block per rank, opened by peers through CUDA's handles between processes.

Speaks to the driver itself: torch's own sharing keeps its counts in named shared memory, which stays behind when a
process is killed. A block ends with the process that made it. Peers on one GPU, or on two that reach each other, can
open it; its maker can't. Needs a current context, which the rank's DEVICE phase made.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from stoker.gang.cuda_driver import Driver
from stoker.gang.layout import aligned
from stoker.gang.windows.seam import WindowKind
from stoker.model.errors import BadInput

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
        from stoker.gang.backend.tensors import over_device  # noqa: PLC0415 - who has a GPU has torch

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
    """The windows of a gang on GPUs."""

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
