"""A folder held by its descriptor, so that nothing planted below it can lead a write elsewhere.

Only the folder that a person named is opened the way a person means it, links followed. Below it every part is opened
by the descriptor of the one before, refusing links, and every file is opened, renamed and removed by its name in a
folder that is held. Who moves the folder away moves our files with it; who replaces a part by a link gets nothing.
A pipe or a device under a name of ours is never waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from stoker.host.durable import NO_STEP, sync_descriptor, temp_name, translated, write_all
from stoker.model.closable import Closable

_OPEN_BASE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_BELOW = _OPEN_BASE | os.O_NOFOLLOW
_OPEN_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class AnchoredFolder(Closable):
    """An open folder. Use it in a `with`, or `close` it. Names given to its methods are single components."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        """As people know it; nothing is opened by it again."""
        self.descriptor = descriptor

    @classmethod
    def open(cls, base: str, below: str = "", *, makes: bool = True) -> Self:
        """Open the folder `below` a folder `base` (`/`-separated, a checked name), making what is missing."""
        path = os.path.join(base, below) if below else base
        with translated(path):
            descriptor = _open_base(base, makes=makes)
            try:
                for part in below.split("/") if below else ():
                    inner = _open_below(descriptor, part, makes=makes)
                    os.close(descriptor)
                    descriptor = inner
            except BaseException:
                os.close(descriptor)
                raise
        return cls(path, descriptor)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def path_of(self, name: str) -> str:
        """Give the path of a name, for messages."""
        return os.path.join(self.path, name)

    def is_in_place(self) -> bool:
        """Whether whoever goes by the path still gets to this very folder."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def look(self, name: str) -> os.stat_result | None:
        """Say what lies under a name, a link itself and not its target; nothing if nothing does."""
        with translated(self.path_of(name)):
            try:
                return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def open_file(self, name: str, *, writes: bool = False) -> int | None:
        """Open a regular file that has this name and no other, and give its descriptor; `None` for anything else.

        A file with a second name is somebody else's as well, so it counts as anything else where we would write to it.
        """
        access = os.O_RDWR if writes else os.O_RDONLY
        with translated(self.path_of(name)):
            try:
                descriptor = os.open(name, access | _OPEN_FILE, dir_fd=self.descriptor)
            except OSError as error:
                if error.errno in _NOT_A_FILE:
                    return None
                raise
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or (writes and info.st_nlink != 1):
                os.close(descriptor)
                return None
            return descriptor

    def create_file(self, name: str, mode: int = 0o644) -> int:
        """Make a new file to write and read, in the place of whatever has that name; a folder there is refused."""
        with translated(self.path_of(name)):
            while True:
                try:
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FILE
                    return os.open(name, flags, mode, dir_fd=self.descriptor)
                except FileExistsError:
                    self.remove(name)

    def remove(self, name: str) -> bool:
        """Remove a file, a link, a pipe, whatever it is but a folder. False if there was nothing."""
        with translated(self.path_of(name)):
            try:
                os.unlink(name, dir_fd=self.descriptor)
            except FileNotFoundError:
                return False
            return True

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in this folder, replacing what has it: a link itself, not what it points to."""
        with translated(self.path_of(new)):
            os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def write_file(
        self, name: str, data: bytes, mode: int = 0o644, *, on_step: Callable[[str], None] = NO_STEP
    ) -> None:
        """Give a name new content that is whole and on the disk; the name itself is once `sync` was called."""
        temp = os.path.basename(temp_name(""))
        with translated(self.path_of(name)):
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FILE, mode, dir_fd=self.descriptor)
            try:
                try:
                    on_step("write")
                    write_all(descriptor, data, 0)
                    on_step("sync")
                    sync_descriptor(descriptor)
                finally:
                    os.close(descriptor)
                on_step("rename")
                self.rename(temp, name)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=self.descriptor)
                raise

    def read_file(self, name: str, limit_bytes: int) -> bytes | None:
        """Read a small regular file; `None` if there is none, or if it is larger than that."""
        descriptor = self.open_file(name)
        if descriptor is None:
            return None
        with translated(self.path_of(name)), open(descriptor, "rb") as file:
            data = file.read(limit_bytes + 1)
        return data if len(data) <= limit_bytes else None

    def names(self) -> list[str]:
        """Give the names in the folder."""
        with translated(self.path):
            return os.listdir(self.descriptor)

    def sync(self) -> None:
        """Make the names in the folder survive a power cut."""
        with translated(self.path):
            os.fsync(self.descriptor)


# Nothing there, a link, a folder, a socket, a device without a driver.
_NOT_A_FILE = frozenset({errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})


def _open_base(path: str, *, makes: bool) -> int:
    try:
        return os.open(path, _OPEN_BASE)
    except FileNotFoundError:
        if not makes:
            raise
    parent = os.path.dirname(os.path.abspath(path))
    above = _open_base(parent, makes=True)
    try:
        _make(above, os.path.basename(os.path.abspath(path)))
    finally:
        os.close(above)
    return os.open(path, _OPEN_BASE)


def _open_below(parent: int, part: str, *, makes: bool) -> int:
    try:
        return os.open(part, _OPEN_BELOW, dir_fd=parent)
    except FileNotFoundError:
        if not makes:
            raise
    _make(parent, part)
    return os.open(part, _OPEN_BELOW, dir_fd=parent)


def _make(parent: int, part: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=parent)
    # Whoever was first: a file that is durable in a folder that is not would be lost with it.
    os.fsync(parent)
