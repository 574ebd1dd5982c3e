"""Files written past the page cache, in order and in large blocks; and a file's bytes under another name.

The kernel then neither copies the bytes nor looks for memory to keep them in, which is most of what a large write costs
(1 GiB on the test machine, which others kept busy: 0.07 s of processor time instead of 0.5 s), and what others have in
the cache stays there. The price: the next reader of the file reads it from the disk. Blocks are written one after the
other, so the file is never longer than its valid content. Linux and some of its local file systems only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from enum import StrEnum
from typing import BinaryIO

from stoker.core.errors import LocalFile
from stoker.host.durable import open_regular, stamp_of, sync_descriptor, temp_name, translated
from stoker.host.folders import AnchoredFolder

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


# The bytes of a file under another name, as cheaply as the file system can: shared blocks, a shared inode, or a copy.
#
# The new name shows the whole file or does not exist; by default it survives a power cut when the call returns. An
# existing file of that name is replaced, a symlink itself and not its target. Everything is done by the descriptor of
# the folder: a link that is put in its place meanwhile has no effect.


if sys.platform == "linux":
    import fcntl

_FICLONE = 0x40049409
_AT_ONCE_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 20
_TRIES = 5
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class MaterialiseMethod(StrEnum):
    """How a file got its bytes, in the order in which it is tried."""

    REFLINK = "reflink"
    """A file of its own on shared blocks: takes no space until one of the two is written."""
    HARDLINK = "hardlink"
    """The same file under one more name: a write to one changes both."""
    KERNEL_COPY = "kernel_copy"
    """A copy made by the kernel."""
    COPY = "copy"


def materialise(
    source: str,
    folder: AnchoredFolder,
    name: str,
    *,
    may_share: bool = False,
    mode: int = 0o644,
    is_durable: bool = True,
) -> MaterialiseMethod:
    """Put the bytes of a regular file under a name in a held folder, and return how.

    `may_share` allows a hard link, which keeps the source's mode and changes its ctime. Otherwise the new file is
    writable for its owner, with `mode` whatever the umask is. `LocalFile` if the source is no regular file, or changes
    meanwhile.
    """
    with translated(source):
        original = open_regular(source)
    with original, translated(folder.path_of(name)):
        part = os.path.basename(temp_name(""))
        try:
            how = _make(original, source, folder, part, may_share=may_share)
            _finish(folder, part, mode=None if how is MaterialiseMethod.HARDLINK else mode, is_durable=is_durable)
            folder.rename(part, name)
        finally:
            # Also after success: renaming one name of a file to another name of it leaves both.
            folder.remove(part)
        if is_durable:
            folder.sync()
    return how


def copy_bytes(source: BinaryIO, target: BinaryIO) -> MaterialiseMethod:
    """Fill an empty file with the bytes of another, both open and untouched so far, and return how."""
    return MaterialiseMethod.REFLINK if reflink(source, target) else _copy(source, target)


def reflink(source: BinaryIO, target: BinaryIO) -> bool:
    """Let an empty file share the blocks of another, both open. Returns False if the file system can't."""
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _make(original: BinaryIO, source: str, folder: AnchoredFolder, part: str, *, may_share: bool) -> MaterialiseMethod:
    for _ in range(_TRIES):
        before = stamp_of(os.fstat(original.fileno()))
        how = _make_once(original, source, folder, part, may_share=may_share)
        # A name that is added or removed changes its stamp, too, and none of its bytes.
        if how is MaterialiseMethod.HARDLINK or stamp_of(os.fstat(original.fileno())) == before:
            return how
        folder.remove(part)
        original.seek(0)
    raise LocalFile(f"changed while it was copied: {source}", hint="something writes to it", path=source)


def _make_once(
    original: BinaryIO, source: str, folder: AnchoredFolder, part: str, *, may_share: bool
) -> MaterialiseMethod:
    if sys.platform == "darwin" and _clone(source, folder, part):
        return MaterialiseMethod.REFLINK
    with open(os.open(part, _CREATE, 0o600, dir_fd=folder.descriptor), "wb") as copy:
        if reflink(original, copy):
            return MaterialiseMethod.REFLINK
        if may_share and _link(original, source, folder, part):
            return MaterialiseMethod.HARDLINK
        return _copy(original, copy)


def _clone(source: str, folder: AnchoredFolder, part: str) -> bool:
    """Do what `reflink` does on macOS, where it makes the file, too. Untested."""
    import ctypes  # noqa: PLC0415 - costs milliseconds, and only macOS needs it

    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, no_follow = -2, 1
    return not libc.clonefileat(at_cwd, os.fsencode(source), folder.descriptor, os.fsencode(part), no_follow)


def _link(original: BinaryIO, source: str, folder: AnchoredFolder, part: str) -> bool:
    """Replace `part` by one more name of the source. Returns False if there can be none."""
    link = os.path.basename(temp_name(""))
    try:
        os.link(source, link, dst_dir_fd=folder.descriptor, follow_symlinks=False)
    except OSError:
        return False
    try:
        made = folder.look(link)
        if made is None or not os.path.samestat(made, os.fstat(original.fileno())):
            return False
        folder.rename(link, part)
    finally:
        folder.remove(link)
    return True


def _copy(source: BinaryIO, target: BinaryIO) -> MaterialiseMethod:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            while os.copy_file_range(source.fileno(), target.fileno(), _AT_ONCE_BYTES):
                pass
    import shutil  # noqa: PLC0415 - milliseconds that a cached run never needs

    by_kernel = os.lseek(target.fileno(), 0, os.SEEK_CUR)
    # From where the kernel stopped, should it not support this at all, or not between these two.
    shutil.copyfileobj(source, target, _BLOCK_BYTES)
    target.flush()
    is_all = by_kernel and by_kernel == os.lseek(target.fileno(), 0, os.SEEK_CUR)
    return MaterialiseMethod.KERNEL_COPY if is_all else MaterialiseMethod.COPY


def _finish(folder: AnchoredFolder, part: str, *, mode: int | None, is_durable: bool) -> None:
    """Set the mode of a written file and sync it, before it gets its name."""
    if mode is None and not is_durable:
        return
    descriptor = os.open(part, _OPEN, dir_fd=folder.descriptor)
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)
        if is_durable:
            sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
