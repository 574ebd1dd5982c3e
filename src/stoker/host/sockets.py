"""A named Unix socket in a private folder: processes of one user find the one that listens there.

    door = NamedSocket(folder, "3f9a…")
    link = door.knock()                     # a connection, or nothing if no process listens
    opened = door.open()                    # nothing if another process listens meanwhile
    door.close(opened)                      # the name is gone; earlier connections are still queued
    door.take_away(mark)                    # the same, for a listener whose process does not respond any more
    kept = KeptSocket.open(door)            # for a process that listens for days: `kept.renew()` now and then

The folder belongs to this user and is closed to others. Opening and closing exclude each other by a lock; connecting
needs none. The next process replaces what a killed one left. On Linux names may be of any length. Elsewhere the
kernel's limit of about 100 bytes holds; that code is written for macOS and was never run there.

Programs that delete old files in /tmp (systemd-tmpfiles, after 10 days) spare sockets that the kernel lists under their
real path, folders with a lock on them, and files with recent times. A kept socket has all three.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import shlex
import socket
import stat
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

from stoker.core import jsontext
from stoker.core.clock import Clock
from stoker.core.errors import NoPermission, Unavailable
from stoker.core.frozen import frozen
from stoker.host.durable import translated
from stoker.host.locks import FileLock

_BACKLOG = 1024
_KNOCK_S = 10
_CREDENTIALS = struct.Struct("3i")
_MAC_CREDENTIALS = struct.Struct("@2Ih16I")
"""`struct xucred`: version, user, number of groups, groups."""
_MAC_SOL_LOCAL, _MAC_LOCAL_PEERCRED, _MAC_VERSION = 0, 1, 0
_TIME = struct.Struct("@ll")
"""As the kernel wants it: seconds and microseconds."""
_SUFFIX = ".sock"
_LOCK = "lock"
_LOCK_WAIT_S = 30.0
_LONGEST_NAME_BYTES = 107
"""Of a socket, as Linux takes it."""


@frozen
class NamedSocketListener:
    """A socket with a listener."""

    listener: socket.socket
    mark: str
    """Distinguishes this opening of the name from a later one; for closing it from another process."""


class NamedSocket:
    """One name below one folder, which is made if missing. Raises `NoPermission` if that is not ours alone."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder = folder
        self.name = name
        self.path = os.path.join(folder, name + _SUFFIX)

    def knock(self) -> socket.socket | None:
        """Return a connection to the process that listens; None if there is none.

        Raises `NoPermission` if folder or process are another user's: nothing was sent to it. Raises `Unavailable`.
        """
        if not os.path.lexists(self.folder):
            return None
        with own_folder(self.folder, is_made=False) as descriptor:
            return self._knock(descriptor)

    def is_answered(self) -> bool:
        """Return True if a process listens, without waiting for it."""
        with own_folder(self.folder) as descriptor:
            return self._is_answered(descriptor)

    def open(self) -> NamedSocketListener | None:
        """Listen under the name; nothing if another process does already."""
        with own_folder(self.folder) as descriptor, self._locked():
            return self._open(descriptor)

    def renew(self, opened: NamedSocketListener) -> NamedSocketListener | None:
        """Renew the times of the name, or listen under it again if it is gone; None if another process has it.

        The opening that is returned counts from now on. If it has another listener, the old one is left to the caller.
        """
        with own_folder(self.folder) as descriptor, self._locked():
            # While its listener lives, no other file gets the number.
            if _file_of(self.mark()) != _file_of(opened.mark):
                return self._open(descriptor)
            with translated(self.path):
                os.utime(self.path, follow_symlinks=False)
            return NamedSocketListener(listener=opened.listener, mark=self.mark())

    def hold_folder(self) -> int:
        """Return a descriptor of the folder with a shared lock on it, if possible; the caller closes it."""
        with own_folder(self.folder) as descriptor:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return os.dup(descriptor)

    def close(self, opened: NamedSocketListener, *, unless_knocked: bool = False) -> bool:
        """Remove the name, if it still belongs to this opening; the listener itself stays open.

        With `unless_knocked` only if no connection is queued; returns True if it is closed.
        """
        with self._locked():
            if unless_knocked and _is_knocked(opened.listener):
                return False
            self._remove_if(opened.mark)
            return True

    def take_away(self, mark: str) -> None:
        """Remove the name, if it still belongs to that opening; connections stay."""
        with self._locked():
            self._remove_if(mark)

    def clear(self) -> None:
        """Remove the name if no process listens there any more: the rest of a killed process."""
        with own_folder(self.folder) as descriptor, self._locked():
            if not self._is_answered(descriptor):
                self._remove()

    def mark(self) -> str:
        """Return what distinguishes the current opening of the name from a later one; empty if there is none."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return ""
        # Inode numbers of removed files are reused, at another time.
        return f"{found.st_dev}:{found.st_ino}:{found.st_ctime_ns}"

    def _open(self, descriptor: int) -> NamedSocketListener | None:
        if self._is_answered(descriptor):
            return None
        self._remove()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with translated(self.path):
                listener.bind(self._listed_address(descriptor))
                self._check_place(descriptor)
                listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return NamedSocketListener(listener=listener, mark=self.mark())

    def _check_place(self, descriptor: int) -> None:
        """Raise `NoPermission` unless the name leads into the folder that was checked."""
        with suppress(FileNotFoundError):
            inside = os.stat(self.name + _SUFFIX, dir_fd=descriptor, follow_symlinks=False)
            if os.path.samestat(inside, os.lstat(self.path)):
                return
        raise NoPermission(f"{self.folder} was exchanged while its socket was made", path=self.folder)

    def _is_answered(self, descriptor: int) -> bool:
        """True if a process listens. Others wait for the lock meanwhile, so a full queue is not waited for."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.setblocking(False)
            try:
                link.connect(self._address(descriptor))
            except BlockingIOError:
                return True
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except OSError as error:
                raise self._unreachable(error) from error
        return True

    def _knock(self, descriptor: int) -> socket.socket | None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        is_through = False
        try:
            # Not by a timeout of Python's: with that, the kernel refuses at once if the queue is full.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(_KNOCK_S, 0))
            link.connect(self._address(descriptor))
            if user_at(link) != os.geteuid():
                raise NoPermission(f"a process of another user listens at {self.path}", path=self.path)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
            is_through = True
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise self._unreachable(error) from error
        finally:
            if not is_through:
                link.close()
        return link

    def _unreachable(self, error: OSError) -> Unavailable:
        why = "its queue is full" if isinstance(error, BlockingIOError) else error.strerror or "no response"
        return Unavailable(f"{self.path} can't be reached: {why}", path=self.path)

    def _listed_address(self, descriptor: int) -> str:
        """Return the name to listen under: the public one if the kernel takes it."""
        is_short = len(os.fsencode(self.path)) <= _LONGEST_NAME_BYTES
        return self.path if is_short and os.path.isabs(self.path) else self._address(descriptor)

    def _address(self, descriptor: int) -> str:
        # Through the open folder: the kernel limits a name to 107 bytes.
        return f"/proc/self/fd/{descriptor}/{self.name}{_SUFFIX}" if sys.platform == "linux" else self.path

    def _remove_if(self, mark: str) -> None:
        if mark and self.mark() == mark:
            self._remove()

    def _remove(self) -> None:
        with translated(self.path), suppress(FileNotFoundError):
            os.unlink(self.path)

    def _locked(self) -> FileLock:
        return FileLock(os.path.join(self.folder, _LOCK), "open or close a door", wait_s=_LOCK_WAIT_S, mode=0o600)


class DaemonSocket:
    """The socket of a process that listens for days, protected from programs that delete old files."""

    def __init__(self, door: NamedSocket, opened: NamedSocketListener) -> None:
        self.door = door
        self._opened = opened
        self._folder = door.hold_folder()

    @classmethod
    def open(cls, door: NamedSocket) -> Self | None:
        """Listen under the name of a socket; nothing if another process does already."""
        opened = door.open()
        return None if opened is None else cls(door, opened)

    @property
    def listener(self) -> socket.socket:
        """The opening that has the name."""
        return self._opened.listener

    def renew(self) -> socket.socket | None:
        """Renew the times of the name; return another listener if it had to be made again. The caller owns the old one.

        Raises `Unavailable` if another process has the name, and what `NamedSocket.open` raises.
        """
        before, folder = self.listener, self._folder
        # Opened again, since the folder may have been replaced.
        self._folder = self.door.hold_folder()
        os.close(folder)
        opened = self.door.renew(self._opened)
        if opened is None:
            raise Unavailable(f"another process of this user listens at {self.door.path}", path=self.door.path)
        self._opened = opened
        return None if opened.listener is before else opened.listener

    def close(self) -> None:
        """Remove the name, if it is still ours, and stop listening."""
        try:
            if self.door.mark():
                self.door.close(self._opened)
        finally:
            self.listener.close()
            os.close(self._folder)


def user_at(link: socket.socket) -> int:
    """Return the user at the other end of a connection, according to the kernel."""
    if sys.platform == "darwin":
        raw = link.getsockopt(_MAC_SOL_LOCAL, _MAC_LOCAL_PEERCRED, _MAC_CREDENTIALS.size)
        version, user, *_ = _MAC_CREDENTIALS.unpack(raw)
        if version != _MAC_VERSION:
            raise OSError(f"credentials of an unknown form ({version})")
        return int(user)
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def _file_of(mark: str) -> str:
    return mark.rpartition(":")[0]


def _is_knocked(listener: socket.socket) -> bool:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    return bool(poller.poll(0))


@contextmanager
def own_folder(folder: str, *, is_made: bool = True) -> Iterator[int]:
    """Open the folder, created if missing. Raises `NoPermission` unless it is this user's alone."""
    with translated(folder):
        if is_made:
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        _refuse_unless_own(folder, os.lstat(folder))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Once more: it may have been replaced since.
        _refuse_unless_own(folder, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_unless_own(folder: str, found: os.stat_result) -> None:
    """Raise `NoPermission` unless the folder belongs to this user and is closed to others."""
    own, mode = os.geteuid(), stat.S_IMODE(found.st_mode)
    hint = "move it away, or name another folder by STOKER_RUNTIME"
    if stat.S_ISLNK(found.st_mode):
        why = f"{folder} is a link, which others may redirect"
    elif not stat.S_ISDIR(found.st_mode):
        why = f"{folder} is not a folder"
    elif found.st_uid != own:
        why = f"{folder} belongs to user {found.st_uid}, not to this one ({own})"
        hint = "name another folder by STOKER_RUNTIME"
    elif mode & 0o077:
        why = f"others have access to {folder}: its mode is {mode:o}"
        hint = f"chmod 700 {shlex.quote(folder)}, if it is meant for this; or name another folder by STOKER_RUNTIME"
    else:
        return
    raise NoPermission(why, hint=hint, path=folder)


_ADDRESS = "NOTIFY_SOCKET"
_WATCHDOG = "WATCHDOG_USEC"
_OURS_ALONE = (_ADDRESS, _WATCHDOG, "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "SYSTEMD_EXEC_PID")
# So many times within the watchdog timeout, or the extended one of a start.
_BEATS = 4
START_S = 600.0
"""How long a start may take from each of its signs on: longer than a request with all of its retries."""


class NotifySocket:
    """Notifications of one process to its supervisor: ready, alive, ending. systemd's protocol, a datagram each.

    Nothing is sent without a supervisor. A datagram that can't be sent is lost: no service ends because of it.
    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._address = _address(environment.get(_ADDRESS, ""))
        self._clock = clock
        limit = environment.get(_WATCHDOG, "")
        is_meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every_s = int(limit) / 1e6 / _BEATS if limit.isdigit() and is_meant else None
        self._next_s = self._next_start_s = 0.0

    def starting(self) -> None:
        """Report that the start takes longer, if it is time to. Cheap; call it only where it proves progress."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_start_s:
            self._next_start_s = now_s + START_S / _BEATS
            self._say(f"EXTEND_TIMEOUT_USEC={START_S * 1e6:.0f}")

    def ready(self) -> None:
        """Report that the service is ready."""
        self._say("READY=1")

    def alive(self) -> None:
        """Report that the process is alive, if it is time to. Cheap; call it only where it proves progress."""
        if self._every_s is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._say("WATCHDOG=1")

    def ending(self) -> None:
        """Report that the process is stopping."""
        self._say("STOPPING=1")

    @property
    def beats_every_s(self) -> float | None:
        """The interval of `alive`; nothing: never."""
        return self._every_s if self._address else None

    def _say(self, word: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            line.sendto(word.encode(), self._address)


def for_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of a supervisor: children are not that service."""
    return {name: value for name, value in environment.items() if name not in _OURS_ALONE}


def _address(text: str) -> str:
    # An abstract address is written with @ and begins with a zero byte.
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""


# Messages with open files attached, between two of our processes on one computer.

_HEADER = struct.Struct("!IB")
_READ_BYTES = 1 << 16
MOST_FDS = 24
"""How many descriptors one message may carry."""


class ReceivedMessage(NamedTuple):
    """One message and the descriptors that came with it; the receiver closes them."""

    body: dict[str, Any]
    fds: list[int]


class Channel:
    """One end of the channel. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._bytes = bytearray()
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unclaimed_fds(self) -> tuple[int, ...]:
        """Descriptors that arrived before their message."""
        return tuple(self._fds)

    def send(self, body: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message. The descriptors are duplicated; ours stay ours. Raises `OSError` if the peer is gone."""
        if len(fds) > MOST_FDS:
            # The kernel would drop the rest silently.
            message = f"{len(fds)} descriptors are more than the {MOST_FDS} that one message carries"
            raise ValueError(message)
        payload = jsontext.dumps(body).encode()
        frame = _HEADER.pack(len(payload), len(fds)) + payload
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with self._sending:
            sent = self._socket.sendmsg([frame], rights)
            if sent < len(frame):
                self._socket.sendall(memoryview(frame)[sent:])

    def receive(self) -> list[ReceivedMessage] | None:
        """Wait for bytes and return the messages that they complete, perhaps none. `None`: the other end is closed."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            data, ancillary = b"", []
        for level, kind, rights in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
                self._fds.extend(fds)
        if not data:
            return None
        self._bytes += data
        return self._complete()

    def close(self) -> None:
        """Close this end and all descriptors that have arrived without their message."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.pop())

    def _complete(self) -> list[ReceivedMessage]:
        messages = []
        while len(self._bytes) >= _HEADER.size:
            size, count = _HEADER.unpack_from(self._bytes)
            end = _HEADER.size + size
            if len(self._bytes) < end:
                break
            body = jsontext.loads(bytes(self._bytes[_HEADER.size : end]))
            del self._bytes[:end]
            # Descriptors never arrive later than the first byte of the message that they were sent with.
            messages.append(ReceivedMessage(body, self._fds[:count]))
            del self._fds[:count]
        return messages
