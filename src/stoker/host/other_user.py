"""Another user of this computer, as whom a program is started: who that is, and whether we may.

`--run-as anna,bert` names users, `--run-as 60000-60003` numbers that nobody has. One of each is for one job at a time:
what two users may not read of each other, two jobs may not either.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from typing import Any, Self

from stoker.host.acting_as import acting_as
from stoker.model.errors import BadInput
from stoker.model.frozen import fields_of, frozen

_HINT = "--run-as USER[,USER…], or --run-as 60000-60003 for numbers that nobody has"
_MOST = 4096
_CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}


@frozen
class OtherUser:
    """One user."""

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
    """Read what `--run-as` says. Raises `BadInput` for users that are not there, or that jobs must not be."""
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
            raise BadInput(f"jobs can't be kept apart from the worker as {user.name}, who runs it", hint=_HINT)
    return users


def may_execute(user: OtherUser, path: str) -> bool:
    """Return True if a path is a file that a user may execute. Only for root.

    Its mode decides, and whether the user gets to it with one of its groups. Nothing is opened: the path may be a FIFO
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
        f"{path} is no program that {user.name} may execute, and jobs run as {user.name} here; "
        "install it where every user may execute it, such as /opt"
    )


def why_not_allowed() -> str:
    """Say why this process can't start programs as other users; empty if it can."""
    if sys.platform != "linux":
        return "it is for Linux only"
    if os.geteuid() != 0:
        return "only root may"
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
        raise BadInput(f"--run-as {first}-{last} is no range of users", hint=_HINT)
    users = []
    for uid in range(first, last + 1):
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            users.append(OtherUser(name=str(uid), uid=uid, gid=uid))
            continue
        raise BadInput(f"number {uid} is {owner}'s, and a range is for numbers that nobody has", hint=_HINT)
    return tuple(users)


def _named(name: str) -> OtherUser:
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        hint = f"{name}-{name}: numbers that nobody has are a range" if name.isdigit() else f"useradd --system {name}"
        raise BadInput(f"there is no user {name}", hint=hint) from None
    groups = tuple(sorted(set(os.getgrouplist(name, found.pw_gid)) - {found.pw_gid}))
    if 0 in (found.pw_gid, *groups):
        raise BadInput(f"{name} is in root's group, which reads what jobs must not", hint=_HINT)
    return OtherUser(name=name, uid=found.pw_uid, gid=found.pw_gid, groups=groups, home=found.pw_dir)
