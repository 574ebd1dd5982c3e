"""Folders given to another user, and taken back: walked by descriptors, links never followed.

What is taken back was written by somebody whom nobody trusts. Only what belongs to that user changes hands: a second
name of somebody else's file is removed, not taken. Its modes become ours, which also ends whatever access lists said.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stoker.host.durable import translated
from stoker.host.other_user import OtherUser
from stoker.model.errors import StageInputError

_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST = 500


def give_to(user: OtherUser, folder: str, *, keeps: frozenset[str] = frozenset()) -> None:
    """Make a folder and everything in it a user's own, for nobody else to read. `keeps` are names in it that stay ours.

    A file with a second name (a link to a blob) keeps its owner, and can be read.
    """
    with translated(folder), _opened(folder) as top:
        _give(top, user)
        for _, descriptor, name, info in _walk(top, keeps, on_folder=lambda inner: _give(inner, user)):
            if stat.S_ISLNK(info.st_mode):
                os.chown(name, user.uid, user.gid, dir_fd=descriptor, follow_symlinks=False)
            elif stat.S_ISREG(info.st_mode):
                _on_file(descriptor, name, lambda file, found: _give_file(file, found, user))


def take_back(
    user: OtherUser,
    folder: str,
    *,
    keeps: frozenset[str] = frozenset(),
    keeps_links: bool = True,
    is_public: bool = False,
) -> tuple[str, ...]:
    """Take a folder and what a user made in it; no process of that user may run any more.

    Returns the names that are no part of it, which are removed: what belongs to another user, what is no file, folder
    or link, and with `keeps_links=False` links. `keeps` are names in it that are ours already. With `is_public`, every
    user may read the result; otherwise only ours.
    """
    removed: list[str] = []
    others = 0o055 if is_public else 0

    def take(inner: int) -> None:
        os.fchown(inner, os.geteuid(), os.getegid())
        os.fchmod(inner, 0o700 | others)

    with translated(folder), _opened(folder) as top:
        take(top)
        for where, descriptor, name, info in _walk(top, keeps, on_folder=take):
            is_theirs = info.st_uid == user.uid
            if is_theirs and keeps_links and stat.S_ISLNK(info.st_mode):
                os.chown(name, os.geteuid(), os.getegid(), dir_fd=descriptor, follow_symlinks=False)
            elif not (is_theirs and stat.S_ISREG(info.st_mode) and _on_file(descriptor, name, _taking(user, others))):
                os.unlink(name, dir_fd=descriptor)
                removed.append(os.path.join(where, name))
    return tuple(removed)


def take_file(user: OtherUser, path: str) -> None:
    """Take one file back, if it is a file and still that user's; its folder is ours."""
    with translated(path):
        folder, name = os.path.split(path)
        with _opened(folder) as descriptor:
            _on_file(descriptor, name, _taking(user))


def _walk(
    top: int, keeps: frozenset[str], *, on_folder: Callable[[int], None]
) -> Iterator[tuple[str, int, str, os.stat_result]]:
    """Give what lies below an open folder and is no folder: where, the descriptor of its folder, its name, what it is.

    Folders are handed to `on_folder` before what lies in them is given. As many are open as lie in one another.
    """
    opened = [("", os.dup(top), os.listdir(top))]
    try:
        while opened:
            where, descriptor, names = opened[-1]
            if not names:
                opened.pop()
                os.close(descriptor)
                continue
            name = names.pop()
            if not where and name in keeps:
                continue
            info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                yield where, descriptor, name, info
                continue
            if len(opened) > _DEEPEST:
                raise StageInputError(f"folders lie more than {_DEEPEST} deep in one another")
            inner = os.open(name, _OPEN_DIR, dir_fd=descriptor)
            opened.append((os.path.join(where, name), inner, os.listdir(inner)))
            on_folder(inner)
    finally:
        for _, descriptor, _ in opened:
            os.close(descriptor)


@contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _OPEN_DIR, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _on_file(folder: int, name: str, act: Callable[[int, os.stat_result], bool]) -> bool:
    try:
        file = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError:
        return False
    try:
        info = os.fstat(file)
        return stat.S_ISREG(info.st_mode) and act(file, info)
    finally:
        os.close(file)


def _give(folder: int, user: OtherUser) -> None:
    os.fchmod(folder, 0o700)
    os.fchown(folder, user.uid, user.gid)


def _give_file(file: int, info: os.stat_result, user: OtherUser) -> bool:
    if info.st_nlink > 1:
        if not info.st_mode & stat.S_IROTH:
            os.fchmod(file, info.st_mode | 0o444)
        return True
    os.fchown(file, user.uid, user.gid)
    os.fchmod(file, _mode(info))
    return True


def _taking(user: OtherUser, others: int = 0) -> Callable[[int, os.stat_result], bool]:
    def take(file: int, info: os.stat_result) -> bool:
        if info.st_uid != user.uid:
            return False
        os.fchown(file, os.geteuid(), os.getegid())
        mode = _mode(info)
        os.fchmod(file, mode | (others & (mode >> 3 | mode >> 6)))
        return True

    return take


def _mode(info: os.stat_result) -> int:
    return 0o700 if info.st_mode & 0o111 else 0o600
