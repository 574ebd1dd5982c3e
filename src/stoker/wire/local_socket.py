"""The Unix sockets by which a user's coordinators are reached on their own machine: folders and names.

    socket_folders(environment)              # where to listen and to look, best first
    socket_name("127.0.0.1", 7717)           # "7717"; the file is 7717.sock

Every folder belongs to one user and is closed to all others (`host/door` checks that, and who listens). The one in /tmp
comes first since `/run/user/UID` disappears with the user's last session, and a coordinator may outlive that; programs
that delete old files in /tmp are kept from it (`host/door.KeptDoor`). Another user can create the name in /tmp first;
it is not trusted then, and the next folder is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

SUFFIX = ".sock"
RUNTIME = "STOKER_RUNTIME"
_SESSIONS = "/run/user"
_TEMPORARY = "/tmp"  # noqa: S108 - the same for every process of a user, whatever TMPDIR says
_DEFAULT_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "::")  # noqa: S104 - to be told from others


def socket_folders(
    environment: Mapping[str, str], *, sessions: str = _SESSIONS, temporary: str = _TEMPORARY
) -> tuple[str, ...]:
    """Return the folders for sockets of this user: STOKER_RUNTIME alone if it is set."""
    named = environment.get(RUNTIME, "").strip()
    if named:
        return (os.path.abspath(os.path.expanduser(named)),)
    user = os.geteuid()
    session = os.path.join(sessions, str(user))
    found = [os.path.join(temporary, f"stoker-{user}")]
    if _is_private(session, user):
        found.append(os.path.join(session, "stoker"))
    return tuple(found)


def socket_name(host: str, port: int) -> str:
    """Return the name of a coordinator's socket, without its suffix: its port, with its host if that is unusual."""
    bare = host.strip("[]").lower()
    return str(port) if bare in _DEFAULT_HOSTS else f"{bare}-{port}"


def socket_paths(host: str, port: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return where a coordinator at an address of this machine may have its socket, best first."""
    name = socket_name(host, port) + SUFFIX
    return tuple(os.path.join(folder, name) for folder in socket_folders(environment))


def _is_private(folder: str, user: int) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user and not stat.S_IMODE(found.st_mode) & 0o077
