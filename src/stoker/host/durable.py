"""Files that are whole or absent, and stay so through a crash.

Everything that gets a name is written beside it first, synced, and then named in one step; the folder is synced last,
so when a call returns the bytes and the name both survive a power cut. A crash in between leaves the old content and
perhaps a temporary file, which `sweep_temps` removes once its writer is gone. Nothing here follows symbolic links when
it removes, and every `OSError` comes out as one of our own errors (`translated`).

`on_step` is called with a step's name just before the step, so that tests can crash at each of them.
What the bytes mean is not known here: digests and records live in the store.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import BinaryIO

from stoker.core.errors import LocalFile, NoPermission, NoSpace, StokerError
from stoker.host.identity import read_row

if sys.platform == "darwin":
    import fcntl

StrPath = str | os.PathLike[str]

WRITE_STEPS = ("write", "sync", "rename", "sync_dir")
CREATE_STEPS = ("write", "sync", "link", "unlink", "sync_dir")
MOVE_STEPS = ("sync", "rename")

_TEMP_PREFIX = ".stoker-tmp-"
_ABANDONED_S = 600.0
"""Age from which a temporary folder without a process here is no other machine's either."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_OPEN_REGULAR = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Measured alone on ext4 with early write-back: 1 MiB at a time took twice the processor time of 256 KiB.
_SLICE_BYTES = 256 * 1024
_own_tags: dict[int, str] = {}


def _is_everybodys(path: str) -> bool:
    """Return True if a name is a device, or leads to one, to a pipe or to a process's own: /dev/null, /dev/stdout."""
    try:
        if not os.path.islink(path):
            mode = os.lstat(path).st_mode
            # A pipe of that very name is replaced, as damage in our own folders may be.
            return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
        mode = os.stat(path).st_mode
        return os.readlink(path).startswith("/proc/") or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    except OSError:
        return False


def _no_step(name: str, /) -> None:
    """Do nothing."""


NO_STEP: Callable[[str], None] = _no_step


def write_file(
    path: StrPath,
    data: bytes,
    *,
    mode: int = 0o644,
    on_step: Callable[[str], None] = NO_STEP,
    is_followed: bool = False,
) -> None:
    """Replace the content of a file durably: readers see the old bytes or the new ones. The umask limits `mode`.

    With `is_followed`, the caller writes another file of the folder next, and that makes the names of both durable.
    """
    with writing(path, mode=mode, on_step=on_step, is_followed=is_followed) as file:
        write_all(file.fileno(), data, 0)


@contextmanager
def writing(
    path: StrPath, *, mode: int = 0o644, on_step: Callable[[str], None] = NO_STEP, is_followed: bool = False
) -> Iterator[BinaryIO]:
    """Open a new file for the block to write; after the block it has its name, durably, and replaces the old file.

    If the block fails nothing is left, and the old file stays. A device, or a link that leads to one or to a pipe
    (/dev/stdout), is refused: root would replace it for all processes.
    """
    name = os.fspath(path)
    parent = os.path.dirname(name) or "."
    with translated(name):
        if _is_everybodys(name):
            raise OSError(errno.EINVAL, "this is not a regular file", name)
        temp = temp_name(parent)
        on_step("write")
        try:
            with open(os.open(temp, _CREATE, mode), "wb") as file:
                yield file
                file.flush()
                on_step("sync")
                sync_descriptor(file.fileno())
            on_step("rename")
            os.replace(temp, name)
        except BaseException:
            _discard(temp)
            raise
        if not is_followed:
            on_step("sync_dir")
            _sync_dir(parent)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it at that place of a file. Raises `OSError`."""
    view, written = memoryview(data), 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written : written + _SLICE_BYTES], offset + written)


def begin_write_back(descriptor: int, offset: int = 0, size_bytes: int = 0) -> None:
    """Start write-back of these bytes of a file (0: to its end), so that a later sync has less to do."""
    if sys.platform == "linux":
        from stoker.host.linux import start_write_back  # noqa: PLC0415 - loads ctypes, for large files only

        start_write_back(descriptor, offset, size_bytes)


def open_regular(path: StrPath) -> BinaryIO:
    """Open a file to read it. Raises `OSError`, and never waits, where a pipe, a device or a link is in its place."""
    descriptor = os.open(path, _OPEN_REGULAR)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "this is not a regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: StrPath, limit_bytes: int) -> bytes:
    """Read a file whole, on the terms of `open_regular`; a larger one is refused as well."""
    with open_regular(path) as file:
        return _read_whole(file, path, limit_bytes)


def read_secret(path: StrPath, limit_bytes: int) -> bytes:
    """Read a file of this user whole, on the terms of `read_regular`.

    Raises `LocalFile` if others than its owner have access, or if it belongs to another user: root could read such a
    file, but the other user chose its content.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            raise LocalFile(
                f"the secret in {path} belongs to another user ({found.st_uid})",
                hint=f"run the command as that user, or trust the file: chown {os.geteuid()} {path}",
                path=os.fspath(path),
            )
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LocalFile(f"others may read the secret in {path}", hint=f"chmod 600 {path}", path=os.fspath(path))
        return _read_whole(file, path, limit_bytes)


def _read_whole(file: BinaryIO, path: StrPath, limit_bytes: int) -> bytes:
    data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
    return data


def create_file(path: StrPath, data: bytes, mode: int = 0o644, *, on_step: Callable[[str], None] = NO_STEP) -> bool:
    """Publish a file under a name that must be new. Returns False if the name exists; that file is untouched.

    Either way the name is durable when this returns.
    """
    name = os.fspath(path)
    parent = os.path.dirname(name) or "."
    with translated(name):
        was_first = False
        if not os.path.lexists(name):
            temp = _write_temp(parent, data, mode, on_step)
            try:
                on_step("link")
                was_first = _name_exclusively(temp, name)
                on_step("unlink")
            finally:
                _discard(temp)
        on_step("sync_dir")
        # Also if the name exists: the caller may now write something that relies on it.
        _sync_dir(parent)
    return was_first


def move_into(src: StrPath, dst: StrPath, *, mode: int | None = None, on_step: Callable[[str], None] = NO_STEP) -> None:
    """Promote a file that is already written: sync it, set its mode, rename it.

    Replaces what lies at `dst`. The caller syncs the folder (`sync_dir`), once for however many files it moves.
    """
    source, name = os.fspath(src), os.fspath(dst)
    with translated(source):
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            on_step("sync")
            sync_descriptor(fd)
        finally:
            os.close(fd)
    with translated(name):
        on_step("rename")
        os.replace(source, name)


def replace_symlink(target: StrPath, path: StrPath) -> None:
    """Point a symbolic link at `target`, durably: readers see the old target or the new one."""
    name = os.fspath(path)
    parent = os.path.dirname(name) or "."
    with translated(name):
        temp = temp_name(parent)
        os.symlink(target, temp)
        try:
            os.replace(temp, name)
        except BaseException:
            _discard(temp)
            raise
        _sync_dir(parent)


def sync_dir(path: StrPath) -> None:
    """Make the names in a folder survive a power cut."""
    with translated(path):
        _sync_dir(os.fspath(path))


def remove_tree(path: StrPath) -> bool:
    """Remove a file, a link or a whole folder, read-only parts included. Returns False if there was nothing.

    Links are removed, never followed, even if a link is swapped in meanwhile. Names may disappear meanwhile.
    """
    name = os.fspath(path).rstrip("/") or "/"
    with translated(name):
        try:
            if stat.S_ISDIR(os.lstat(name).st_mode):
                _empty(name)
                os.rmdir(name)
            else:
                os.unlink(name)
        except FileNotFoundError:
            return False
    return True


def temp_name(folder: str) -> str:
    """Return a name for a file or folder that is only temporary; `sweep_temps` recognises it."""
    # By pid, so that a forked child makes its own; with the start time, because in a container a restarted program
    # often gets the very number of the one that crashed.
    pid = os.getpid()
    tag = _own_tags.get(pid)
    if tag is None:
        row = read_row(pid)
        tag = _own_tags[pid] = f"{_TEMP_PREFIX}{pid}-{row.start_ticks if row else 0}-"
    return f"{folder}/{tag}{os.urandom(6).hex()}"


@contextmanager
def temp_folder(parent: StrPath, now_s: float) -> Iterator[str]:
    """Make a folder for the block. Those that killed processes left in `parent` minutes ago are removed before."""
    top = os.fspath(parent)
    with translated(top):
        os.makedirs(top, exist_ok=True)
    sweep_temps(top, older_than_s=_ABANDONED_S, now_s=now_s)
    path = temp_name(top)
    with translated(path):
        os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        remove_tree(path)


def is_temp_name(name: str) -> bool:
    """Return True if a file has such a name."""
    return name.startswith(_TEMP_PREFIX)


def sweep_temps(directory: StrPath, older_than_s: float, now_s: float) -> tuple[str, ...]:
    """Remove temporary files and folders that a crash left in one folder, and return their names.

    Younger ones stay, and those that a process of this machine may still be writing. Age is the only guard against
    writers on other machines that share the folder.
    """
    removed = []
    with translated(directory), os.scandir(directory) as entries:
        for entry in entries:
            if not is_temp_name(entry.name):
                continue
            try:
                age_s = now_s - entry.stat(follow_symlinks=False).st_mtime
                if age_s >= older_than_s and not _has_living_writer(entry.name):
                    remove_tree(entry.path)
                    removed.append(entry.path)
            except FileNotFoundError:
                continue
    return tuple(removed)


def translated(path: StrPath) -> Translation:
    """Turn any `OSError` of the block into an error of ours about `path`."""
    return Translation(path)


def translate(error: OSError, path: StrPath) -> StokerError:
    """Return our error for an error of the operating system."""
    name = os.fspath(path)
    number = error.errno or 0
    word = errno.errorcode.get(number, "")
    if number in {errno.ENOSPC, errno.EDQUOT}:
        what = "no space left" if number == errno.ENOSPC else "disk quota used up"
        return NoSpace(f"{what}: {name}", hint="free some space there, or choose another place", path=name, errno=word)
    if number == errno.EROFS:
        return NoPermission(
            f"read-only file system: {name}", hint="choose a place that can be written", path=name, errno=word
        )
    if number in {errno.EACCES, errno.EPERM}:
        return NoPermission(f"no permission: {name}", hint="check its owner and mode", path=name, errno=word)
    what = _WORDS.get(number) or (error.strerror or str(error)).lower()
    return LocalFile(f"{what}: {name}", hint=_HINTS.get(number, ""), path=name, errno=word)


class Translation:
    """The context manager of `translated`."""

    __slots__ = ("_path",)

    def __init__(self, path: StrPath) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise translate(error, self._path) from error


_WORDS = {
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "there is something of that name already",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.EISDIR: "this is a folder",
    errno.ENOTEMPTY: "the folder is not empty",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "this is a symbolic link, or a circle of them",
    errno.EXDEV: "this is on another file system",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
}
_HINTS = {
    errno.ENOENT: "check the spelling",
    errno.EXDEV: "files are promoted by rename, so both places have to be on one file system",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}

# Errors of file systems without hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def _write_temp(parent: str, data: bytes, mode: int, on_step: Callable[[str], None]) -> str:
    temp = temp_name(parent)
    on_step("write")
    fd = os.open(temp, _CREATE, mode)
    try:
        try:
            write_all(fd, data, 0)
            on_step("sync")
            sync_descriptor(fd)
        finally:
            os.close(fd)
    except BaseException:
        _discard(temp)
        raise
    return temp


def _name_exclusively(temp: str, name: str) -> bool:
    try:
        os.link(temp, name)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return rename_exclusively(temp, name)
    return True


def rename_exclusively(src: str, dst: str) -> bool:
    """Rename unless `dst` exists, in one step, for file systems without hard links. Returns False if it exists.

    Linux (`renameat2`) and macOS (`renamex_np`, untested) only.
    """
    import ctypes  # noqa: PLC0415 - costs milliseconds, and file systems without hard links are rare

    libc = ctypes.CDLL(None, use_errno=True)
    old, new = os.fsencode(src), os.fsencode(dst)
    if sys.platform == "darwin":
        failed = libc.renamex_np(old, new, 4)
    else:
        at_cwd, no_replace = -100, 1
        failed = libc.renameat2(at_cwd, old, at_cwd, new, no_replace)
    if not failed:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        return False
    raise OSError(number, os.strerror(number), dst)


def sync_descriptor(fd: int) -> None:
    """Make the bytes of an open file survive a power cut. Raises `OSError`."""
    if sys.platform == "darwin":
        # fsync stops at the drive's own cache there.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _discard(temp: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(temp)


def _has_living_writer(name: str) -> bool:
    try:
        pid, start_ticks, _ = name.removeprefix(_TEMP_PREFIX).split("-")
        row = read_row(int(pid))
        return row is not None and not row.is_gone and row.start_ticks == int(start_ticks)
    except ValueError:
        return False


def _empty(top: str) -> None:
    """Remove everything in a folder, by descriptors: no path is walked twice, and depth costs no recursion."""
    open_folders: list[tuple[int, str, list[str]]] = []
    try:
        _open_to_empty(top, None, open_folders)
        while open_folders:
            fd, name, subfolders = open_folders[-1]
            if subfolders:
                _open_to_empty(subfolders.pop(), fd, open_folders)
                continue
            open_folders.pop()
            os.close(fd)
            if open_folders:
                with suppress(FileNotFoundError):
                    os.rmdir(name, dir_fd=open_folders[-1][0])
    finally:
        for fd, _, _ in open_folders:
            os.close(fd)


def _open_to_empty(name: str, parent_fd: int | None, open_folders: list[tuple[int, str, list[str]]]) -> None:
    """Open a folder, unlink what is not a folder in it, and put it on the stack with the folders that remain."""
    try:
        fd = _open_writable_dir(name, parent_fd)
    except FileNotFoundError:
        return
    subfolders: list[str] = []
    open_folders.append((fd, name, subfolders))
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                subfolders.append(entry.name)
                continue
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=fd)


def _open_writable_dir(name: str, parent_fd: int | None) -> int:
    try:
        fd = os.open(name, _OPEN_DIR, dir_fd=parent_fd)
    except PermissionError:
        _unlock_dir(name, parent_fd)
        fd = os.open(name, _OPEN_DIR, dir_fd=parent_fd)
    if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(fd, stat.S_IRWXU)
    return fd


def _unlock_dir(name: str, parent_fd: int | None) -> None:
    if sys.platform != "linux":
        os.chmod(name, stat.S_IRWXU, dir_fd=parent_fd, follow_symlinks=False)
        return
    # Linux has no chmod that spares links before 6.6; a descriptor without access rights names exactly one folder.
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)
    finally:
        os.close(fd)


# A file's stamp: equal stamps mean equal bytes, once the last change is a moment ago.

SETTLED_NS = 2_000_000_000
"""A file that changed more recently than this may change again without its times showing it."""

Stamp = tuple[int, int, int, int]


def stamp_of(info: os.stat_result) -> Stamp:
    """Return what must not change while facts about a file are kept: size, inode, mtime and ctime."""
    return (info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
