"""Folders given to another user, and taken back: walked by descriptors, links never followed.

Content that is taken back is untrusted. Only what belongs to that user changes its owner: a second name of another
user's file is removed, not taken. Its modes become ours, which also ends all access lists.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from stoker.core.errors import BadInput, InternalError, StageInputError, StokerError
from stoker.core.frozen import fields_of, frozen
from stoker.host.durable import remove_tree, translated

_HINT = "--run-as USER[,USER…], or --run-as 60000-60003 for unused user ids"
_MOST = 4096
_CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}


@frozen
class OtherUser:
    """Another user of this computer, as which programs are started.

    `--run-as anna,bert` names users, `--run-as 60000-60003` unused user ids. Each is for one job at a time: what two
    users may not read of each other, two jobs may not either.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Beside its own."""
    home: str = ""
    """Empty: it has none, and gets one for each program."""

    def to_dict(self) -> dict[str, Any]:
        return {**fields_of(self), "groups": list(self.groups)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        return cls(**{**raw, "groups": tuple(raw["groups"])})


def read_users(text: str) -> tuple[OtherUser, ...]:
    """Read the value of `--run-as`. Raises `BadInput` for users that do not exist, or that jobs must not be."""
    first, dash, last = text.partition("-")
    if dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit():
        users = _numbered(int(first), int(last))
    else:
        users = tuple(_named(word.strip()) for word in text.split(",") if word.strip())
    if not users:
        raise BadInput("--run-as: empty user list", hint=_HINT)
    twice = {user.name for user in users if sum(other.uid == user.uid for other in users) > 1}
    if twice:
        raise BadInput(f"--run-as names {min(twice)} twice: each is for one job at a time", hint=_HINT)
    for user in users:
        if user.uid in (0, os.geteuid()):
            raise BadInput(f"--run-as {user.name}: the worker itself runs as {user.name}", hint=_HINT)
    return users


def may_execute(user: OtherUser, path: str) -> bool:
    """Return True if a path is a file that a user may execute. Only for root.

    Its mode decides, and whether the user reaches it with one of its groups. Nothing is opened: the path may be a FIFO
    or a device. Access control lists of the file itself are not read.
    """
    groups = (user.gid, *user.groups)
    info = next(filter(None, (_stat_as(user.uid, gid, path) for gid in groups)), None)
    if info is None or not stat.S_ISREG(info.st_mode):
        return False
    bit = stat.S_IXUSR if info.st_uid == user.uid else stat.S_IXGRP if info.st_gid in groups else stat.S_IXOTH
    return bool(info.st_mode & bit)


def no_such_program(path: str, user: OtherUser) -> str:
    """Return the message that a user can't execute a program. It does not reveal whether the program exists.

    `path` is what the submitter wrote, never what it was resolved to: its folder may be closed to that user.
    """
    return (
        f"{path} is not a program that {user.name} may execute, and jobs run as {user.name} here; "
        "install it where every user may execute it, such as /opt"
    )


def why_not_allowed() -> str:
    """Return why this process can't start programs as other users; empty if it can."""
    if sys.platform != "linux":
        return "it is for Linux only"
    if os.geteuid() != 0:
        return "it needs root"
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            held = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration, ValueError):
        return ""
    missing = [f"CAP_{name}" for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    return f"this process is root without {', '.join(missing)}" if missing else ""


def _stat_as(uid: int, gid: int, path: str) -> os.stat_result | None:
    try:
        with acting_as(uid, gid):
            return os.stat(path)
    except (OSError, ValueError):
        return None


def _numbered(first: int, last: int) -> tuple[OtherUser, ...]:
    if not 0 < first <= last or last - first >= _MOST:
        raise BadInput(f"--run-as {first}-{last} is not a range of user ids", hint=_HINT)
    users = []
    for uid in range(first, last + 1):
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            users.append(OtherUser(name=str(uid), uid=uid, gid=uid))
            continue
        raise BadInput(f"user id {uid} belongs to {owner}; a range is for unused user ids", hint=_HINT)
    return tuple(users)


def _named(name: str) -> OtherUser:
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        hint = f"for an unused user id: {name}-{name}" if name.isdigit() else f"useradd --system {name}"
        raise BadInput(f"user {name} not found", hint=hint) from None
    groups = tuple(sorted(set(os.getgrouplist(name, found.pw_gid)) - {found.pw_gid}))
    if 0 in (found.pw_gid, *groups):
        raise BadInput(f"{name} is in root's group, which may read what jobs must not", hint=_HINT)
    return OtherUser(name=name, uid=found.pw_uid, gid=found.pw_gid, groups=groups, home=found.pw_dir)


_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST = 500


def give_to(user: OtherUser, folder: str, *, keeps: frozenset[str] = frozenset()) -> None:
    """Give a folder and everything in it to a user, unreadable for others. `keeps` are names in it that stay ours.

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
    """Take a folder and what a user made in it; no process of that user may be running.

    Returns the names that were removed: what belongs to another user, what is no file, folder or link, and with
    `keeps_links=False` links. `keeps` are names in it that are ours already. With `is_public`, every
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
    """Yield all below an open folder except folders: where, the descriptor of its folder, its name, its stat.

    Folders are passed to `on_folder` before their content is yielded. As many are open as are nested.
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
                raise StageInputError(f"folders are nested more than {_DEEPEST} deep")
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


SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - others write there, we only clear


def remove_leftovers(uid: int, places: Sequence[str] = SHARED) -> tuple[str, ...]:
    """Remove what belongs to a user directly in these places; no process of it runs. Links are removed, not followed.

    Returns what was removed. What can't be removed stays.
    """
    removed = []
    for place in places:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError, StokerError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        remove_tree(entry.path)
                        removed.append(entry.path)
    return tuple(removed)


# File access with another user's rights, for a block and in this thread alone.

if TYPE_CHECKING:
    import ctypes

_NOBODY = 0xFFFFFFFF
"""Refused by the kernel, which returns the current one."""


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Act as a user on files. Only for root on Linux; blocks do not nest."""
    if os.getgroups():
        os.setgroups([])
    try:
        _set(_libc().setfsgid, gid)
        _set(_libc().setfsuid, uid)
        yield
    finally:
        _set(_libc().setfsuid, os.geteuid())
        _set(_libc().setfsgid, os.getegid())


@contextmanager
def acting_as_owner(folder: str) -> Iterator[None]:
    """Act as the owner of a folder, if root works in one that was given to a user; otherwise as ourselves."""
    if sys.platform != "linux" or os.geteuid() != 0:
        yield
        return
    try:
        info = os.lstat(folder)
    except OSError:
        # The block itself will raise the error.
        yield
        return
    if info.st_uid == 0:
        yield
        return
    with acting_as(info.st_uid, info.st_gid):
        yield


def _set(call: ctypes._NamedFuncPointer, number: int) -> None:
    from ctypes import c_uint  # noqa: PLC0415 - milliseconds that a cached run never needs

    call(c_uint(number))
    if call(c_uint(_NOBODY)) != number:
        raise InternalError(f"the kernel does not let us act as {number}")


@cache
def _libc() -> ctypes.CDLL:
    from ctypes import CDLL  # noqa: PLC0415 - milliseconds that a cached run never needs

    return CDLL(None)
