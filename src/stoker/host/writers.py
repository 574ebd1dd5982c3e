"""Writing a large file past the page cache: in order, in large blocks, from a thread of its own.

The kernel then neither copies the bytes nor looks for memory to keep them in, which is most of what a large write costs
(1 GiB on the test machine, which others kept busy: 0.07 s of processor time instead of 0.5 s), and what others have in
the cache stays there. The price: the next reader of the file reads it from the disk. Blocks are written one after the
other, so the file is never longer than its valid content. Linux and some of its local file systems only.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import deque
from contextlib import suppress

BLOCK_BYTES = 4 << 20
ALIGNED_BYTES = 4096
"""Offsets and lengths must be multiples of a disk's block; no disk has larger ones."""
_MOST_PENDING = 2
_FILE_SYSTEMS = frozenset({"ext4", "xfs", "ext3", "f2fs"})


class DirectWriter:
    """Takes bytes in order from an aligned offset on. Nothing raises until `settle`; `failure` is the first error."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._pending: deque[memoryview] = deque()
        """Full blocks in their order; the first one is being written."""
        self._spare: list[memoryview] = []
        self._block = _new_block()
        self._filled_bytes = 0
        self._is_ended = False
        self.written_bytes = offset
        """Everything before it is in the file."""
        self.failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="stoker-write", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        """Append bytes; blocks while two blocks are still to be written."""
        view = memoryview(piece)
        while view:
            taken = min(len(view), BLOCK_BYTES - self._filled_bytes)
            self._block[self._filled_bytes : self._filled_bytes + taken] = view[:taken]
            self._filled_bytes += taken
            view = view[taken:]
            if self._filled_bytes == BLOCK_BYTES:
                self._hand_over()

    def settle(self) -> list[memoryview]:
        """Wait until all full blocks are written, end, and return the rest: the last bytes, or all after a failure."""
        with self._changed:
            while self._pending and self.failure is None:
                self._changed.wait()
        self._end()
        return [*self._pending, self._block[: self._filled_bytes]]

    def abandon(self) -> None:
        """End now; unwritten bytes are lost."""
        with self._changed:
            while len(self._pending) > 1:
                self._pending.pop()
        self._end()

    def _hand_over(self) -> None:
        with self._changed:
            while len(self._pending) >= _MOST_PENDING and self.failure is None:
                self._changed.wait()
            self._pending.append(self._block)
            self._block = self._spare.pop() if self._spare else _new_block()
            self._filled_bytes = 0
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._is_ended:
                    self._changed.wait()
                if not self._pending:
                    return
                block = self._pending[0]
            failure = self._write_block(block)
            with self._changed:
                if failure is None:
                    self._spare.append(self._pending.popleft())
                    self.written_bytes += BLOCK_BYTES
                self.failure = failure
                self._changed.notify_all()
                if failure is not None:
                    return

    def _write_block(self, block: memoryview) -> OSError | None:
        written = 0
        try:
            while written < BLOCK_BYTES:
                written += os.pwrite(self._descriptor, block[written:], self.written_bytes + written)
        except OSError as error:
            return error
        return None


def open_direct(descriptor: int) -> int | None:
    """Open an open file once more, to write past the page cache. `None` where that is not known to work."""
    if sys.platform != "linux" or _file_system(os.fstat(descriptor).st_dev) not in _FILE_SYSTEMS:
        return None
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def _new_block() -> memoryview:
    # From the kernel itself: aligned to a page.
    return memoryview(mmap.mmap(-1, BLOCK_BYTES))


def _file_system(device: int) -> str:
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                mounted, _, kind = line.partition(" - ")
                if mounted.split(" ", 3)[2] == number:
                    return kind.split(" ", 1)[0]
    except OSError:
        pass
    return ""


GENERATION_BYTES = 64 * 1024 * 1024


class LogFile:
    """Appends to one log, which can't fill a disk and can't stop the work it is about. Not thread-safe.

    Two generations of a bounded size are kept, the older one beside the newer. What can't be written is counted and
    left out: a program's result is worth more than its output.
    """

    def __init__(self, path: str, *, generation_bytes: int = GENERATION_BYTES) -> None:
        self._path = path
        self._generation_bytes = generation_bytes
        self._descriptor: int | None = None
        self._size_bytes = 0
        self.lost_bytes = 0
        """Number of bytes lost: a full disk, or a deleted older generation."""
        self._open(os.O_APPEND)

    def write(self, data: bytes) -> None:
        """Append output."""
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
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, flag: int) -> None:
        try:
            # A pipe that the program put in its place must not block.
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
    """Return the name of the older generation of a log."""
    return f"{path.removesuffix('.log')}.1.log"
