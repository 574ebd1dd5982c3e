"""Memory without a name, which processes share by handing its descriptor on: nothing of it outlives the last of them.

On Linux it is sealed: it can neither shrink under a reader nor grow. Elsewhere (untested) it is an open file that has
no name.
"""

from __future__ import annotations

import os
import sys
import tempfile

# One call moves at most 2 GiB.
_PIECE_BYTES = 1 << 30


def unnamed_memory(name: str, size_bytes: int, *, may_grow: bool = False) -> int:
    """Give a descriptor of so much zeroed memory (`name` is for `/proc` alone). Raises `OSError`."""
    if sys.platform != "linux":
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), size_bytes)
            return os.dup(file.fileno())
    import fcntl  # noqa: PLC0415 - its seals are Linux's alone

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        if not may_grow:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of it to this place."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done : done + _PIECE_BYTES], at + done)


def read_at(fd: int, nbytes: int, at: int) -> bytearray:
    """Read so much from this place. Raises `EOFError` if the memory ends before."""
    got = bytearray(nbytes)
    view = memoryview(got)
    done = 0
    while done < nbytes:
        count = os.preadv(fd, [view[done : done + _PIECE_BYTES]], at + done)
        if not count:
            message = f"the memory ends after {at + done} bytes"
            raise EOFError(message)
        done += count
    return got
