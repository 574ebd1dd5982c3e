"""The few calls of CUDA's driver that ranks need, by its own library: no headers, no other package."""

from __future__ import annotations

import ctypes
from typing import Any

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class Driver:
    """The driver. Raises `OSError` with its own words, and `MemoryError` where it has no more."""

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
