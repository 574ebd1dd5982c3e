"""A log that can't fill a disk and can't stop the work it is about.

Two generations of a bounded size are kept, the older one beside the newer. Whatever can't be written is counted and
left out: a program's result is worth more than what it printed.
"""

from __future__ import annotations

import os
from contextlib import suppress

GENERATION_BYTES = 64 * 1024 * 1024


class LogFile:
    """Appends to one log. Not for several threads."""

    def __init__(self, path: str, *, generation_bytes: int = GENERATION_BYTES) -> None:
        self._path = path
        self._generation_bytes = generation_bytes
        self._descriptor: int | None = None
        self._size_bytes = 0
        self.lost_bytes = 0
        """How much could not be kept: a full disk, or an older generation that made room."""
        self._open(os.O_APPEND)

    def write(self, data: bytes) -> None:
        """Add what was printed."""
        if self._size_bytes + len(data) > self._generation_bytes and self._size_bytes:
            self._turn_over()
        view = memoryview(data)
        while view and self._descriptor is not None:
            try:
                written = os.write(self._descriptor, view)
            except OSError:
                break
            self._size_bytes += written
            view = view[written:]
        self.lost_bytes += len(view)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, flag: int) -> None:
        try:
            # A pipe that the program put in its place is not waited for.
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flag
            self._descriptor = os.open(self._path, flags, 0o644)
            self._size_bytes = os.fstat(self._descriptor).st_size
        except OSError:
            self._descriptor = None

    def _turn_over(self) -> None:
        older = older_log(self._path)
        with suppress(OSError):
            self.lost_bytes += os.stat(older).st_size
        with suppress(OSError):
            os.replace(self._path, older)
        self.close()
        self._open(os.O_TRUNC)


def older_log(path: str) -> str:
    """Give the name under which a full log is set aside."""
    return f"{path.removesuffix('.log')}.1.log"
