"""A door below a private folder: a Unix socket by whose name processes of one user find the one that listens there.

    door = Door(folder, "3f9a…")
    link = door.knock()                     # a connection, or nothing: nobody listens
    opened = door.open()                    # nothing if somebody has opened it meanwhile
    door.close(opened)                      # the name is gone; whoever connected before that is still in line

The folder belongs to this user and nobody else may look in. Opening and closing exclude each other by a lock; knocking
needs none. What a killed process left is opened anew by the next one. Linux only: names may be of any length there.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stoker.host.durable import translated
from stoker.host.lockfile import Lock
from stoker.model.errors import NoPermission, Unavailable
from stoker.model.frozen import frozen

_BACKLOG = 1024
_KNOCK_S = 10.0
_CREDENTIALS = struct.Struct("3i")
_SUFFIX = ".sock"
_LOCK = "lock"
_LOCK_WAIT_S = 30.0


@frozen
class Opened:
    """A door that somebody listens at."""

    listener: socket.socket
    mark: str
    """Tells this opening of the name from a later one; for whoever closes it in another process."""


class Door:
    """One name below one folder, which is made if it is not there. Raises `NoPermission` if that is not ours alone."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder = folder
        self.name = name
        self.path = os.path.join(folder, name + _SUFFIX)

    def knock(self) -> socket.socket | None:
        """Connect to whoever listens. Raises `NoPermission` if that is somebody else's process, `Unavailable`."""
        with _entered(self.folder) as descriptor:
            return self._knock(descriptor)

    def open(self) -> Opened | None:
        """Listen under the name; nothing if somebody does already."""
        with _entered(self.folder) as descriptor, self._locked():
            if self._is_answered(descriptor):
                return None
            self._remove()
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with translated(self.path):
                    listener.bind(self._address(descriptor))
                    listener.listen(_BACKLOG)
            except BaseException:
                listener.close()
                raise
            return Opened(listener=listener, mark=self._mark())

    def close(self, opened: Opened, *, unless_knocked: bool = False) -> bool:
        """Take the name away, if it is still of this opening; the listener itself stays open.

        With `unless_knocked` only if nobody waits to be let in; says whether it is closed.
        """
        with self._locked():
            if unless_knocked and _is_knocked(opened.listener):
                return False
            if self._mark() == opened.mark:
                self._remove()
            return True

    def clear(self) -> None:
        """Remove the name if nobody listens there any more: what a killed process left."""
        with _entered(self.folder) as descriptor, self._locked():
            if not self._is_answered(descriptor):
                self._remove()

    def _is_answered(self, descriptor: int) -> bool:
        there = self._knock(descriptor)
        if there is not None:
            there.close()
        return there is not None

    def _knock(self, descriptor: int) -> socket.socket | None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        is_through = False
        try:
            link.settimeout(_KNOCK_S)
            link.connect(self._address(descriptor))
            if user_at(link) != os.geteuid():
                raise NoPermission(f"another user answers at {self.path}", path=self.path)
            link.settimeout(None)
            is_through = True
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            why = error.strerror or "it is not answered"
            raise Unavailable(f"{self.path} can't be reached: {why}", path=self.path) from error
        finally:
            if not is_through:
                link.close()
        return link

    def _address(self, descriptor: int) -> str:
        # Through the open folder: of a name, the kernel takes no more than 107 bytes.
        return f"/proc/self/fd/{descriptor}/{self.name}{_SUFFIX}"

    def _mark(self) -> str:
        try:
            found = os.lstat(self.path)
        except OSError:
            return ""
        # Numbers of removed files are used again, at another time.
        return f"{found.st_dev}:{found.st_ino}:{found.st_ctime_ns}"

    def _remove(self) -> None:
        with translated(self.path), suppress(FileNotFoundError):
            os.unlink(self.path)

    def _locked(self) -> Lock:
        return Lock(os.path.join(self.folder, _LOCK), "open or close a door", wait_s=_LOCK_WAIT_S, mode=0o600)


def user_at(link: socket.socket) -> int:
    """Give the user at the other end of a connection, as the kernel says."""
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def _is_knocked(listener: socket.socket) -> bool:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    return bool(poller.poll(0))


@contextmanager
def _entered(folder: str) -> Iterator[int]:
    """Open the folder, made if need be. Raises `NoPermission` unless it is this user's alone."""
    with translated(folder):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            hint = "it has to be this user's, with mode 700: remove it, or name another by STOKER_RUNTIME"
            raise NoPermission(f"others may look into {folder}", hint=hint, path=folder)
        yield descriptor
    finally:
        os.close(descriptor)
