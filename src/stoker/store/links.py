"""The bytes of a file under another name, as cheaply as the file system can: shared blocks, a shared inode, or a copy.

The new name shows the whole file or does not exist; by default it survives a power cut when the call returns. An
existing file of that name is replaced, a symlink itself and not its target. Everything is done by the descriptor of the
folder: a link that is put in its place meanwhile has no effect.
"""

from __future__ import annotations

import contextlib
import os
import sys
from enum import StrEnum
from typing import BinaryIO

from stoker.core.errors import LocalFile
from stoker.host.durable import open_regular, stamp_of, sync_descriptor, temp_name, translated
from stoker.host.folders import AnchoredFolder

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
