"""Messages between a shared process and its members: JSON objects, each after its length.

    process ▶ member      hello (its identity, and a file that will hold its exit), then steps, log lines, answer
    member ▶ process      join (the work), stop
    supervisor ▶ member   over (no more members: try again), to members that still wait

Messages are untrusted: a length beyond the limit, or JSON that is no object, ends that connection alone. The end of a
connection frees its slot.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import selectors
import socket
import struct
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import ProcessLost
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.identity import ProcessIdentity
from stoker.host.sockets import user_at

FORMAT = 1
LONGEST_BYTES = 8 << 20
"""Maximum of one message: far more than any stage's arguments."""

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 16
_MOST_FDS = 4
_LONGEST_EXIT_BYTES = 1 << 17


def framed(body: dict[str, Any]) -> bytes:
    """Return a message with its length in front. Raises `ValueError` if it is too long."""
    payload = dumps(body).encode()
    if len(payload) > LONGEST_BYTES:
        message = f"message of {len(payload)} bytes; the maximum is {LONGEST_BYTES}"
        raise ValueError(message)
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self.longest_bytes = LONGEST_BYTES
        """Maximum of the next message, checked when its length arrives."""
        self._bytes = bytearray()

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a message that is not complete yet."""
        return len(self._bytes)

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete now. Raises `ValueError` for invalid bytes."""
        self._bytes += data
        bodies = []
        while len(self._bytes) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._bytes)
            if size > self.longest_bytes:
                message = f"message of {size} bytes; the maximum is {self.longest_bytes}"
                raise ValueError(message)
            end = _LENGTH.size + size
            if len(self._bytes) < end:
                break
            body = loads(bytes(self._bytes[_LENGTH.size : end]))
            if not isinstance(body, dict):
                message = f"message is a {type(body).__name__}, not an object"
                raise ValueError(message)  # noqa: TRY004 - the value is wrong
            del self._bytes[:end]
            bodies.append(body)
        return bodies


def receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for bytes; return them, none if the other end is gone, with the file descriptors that came along."""
    fds = array.array("i")
    try:
        room = socket.CMSG_SPACE(_MOST_FDS * fds.itemsize)
        data, ancillary, _, _ = link.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return b"", []
    for level, kind, rights in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    return data, list(fds)


def is_ready(link: socket.socket, for_what: int, within_s: float) -> bool:
    """Wait up to `within_s` until a connection is readable or writable; return True if it is."""
    poller = select.poll()
    poller.register(link, for_what)
    return bool(poller.poll(max(0.0, within_s) * 1000))


@frozen
class SharedProcessExit:
    """How a shared process ended, as its supervisor saw it: the content of the exit file."""

    how: str
    status: int | None = None
    number: int | None = None
    """The signal that killed it."""
    was_out_of_memory: bool = False
    cap_bytes: int | None = None
    said: str = ""
    """The end of its output."""


def exit_from_json(body: Any) -> SharedProcessExit:
    """Return the exit with these fields. Raises `ValueError`."""
    try:
        return SharedProcessExit(**body)
    except TypeError as error:
        message = f"not the exit of a shared process: {error}"
        raise ValueError(message) from None


def read_exit(descriptor: int) -> SharedProcessExit | None:
    """Return the content of an exit file; None until it is complete."""
    data = os.pread(descriptor, _LONGEST_EXIT_BYTES, 0)
    return exit_from_json(loads(data)) if data.endswith(b"\n") else None


# What a connecting member receives: hello from the process, over from its supervisor, or nothing in time.


@frozen
class SharedProcessHandshake:
    """The process that answered, and its supervisor."""

    identity: ProcessIdentity
    supervisor: ProcessIdentity
    exit_fd: int
    """The exit file, written by the supervisor. This member holds a shared lock on it."""


class JoinAgain(Exception):
    """The shared process ended before this member joined it: find or start the next one."""


class JoinTimeout(Exception):
    """The shared process has a socket and does not answer: it hangs, or was stopped."""


def receive_hello(
    link: socket.socket, frames: Frames, *, within_s: float, clock: Clock
) -> tuple[SharedProcessHandshake, list[dict[str, Any]]]:
    """Wait for the shared process to start; return its hello, and the messages after it.

    From then on its supervisor sees this member. Raises `JoinAgain`, `JoinTimeout`, `ProcessLost` if the process is
    gone, `ValueError` for an invalid message.
    """
    fds: list[int] = []
    deadline_s = clock.monotonic_s() + within_s
    try:
        while True:
            if not is_ready(link, select.POLLIN, deadline_s - clock.monotonic_s()):
                raise JoinTimeout
            data, more_fds = receive(link)
            fds += more_fds
            if not data:
                raise JoinAgain
            bodies = frames.feed(data)
            if bodies:
                return _read_hello(bodies[0], fds), bodies[1:]
    finally:
        for fd in fds:
            os.close(fd)


def _read_hello(body: dict[str, Any], fds: list[int]) -> SharedProcessHandshake:
    if body.get("over") is True:
        if isinstance(body.get("lost"), dict):
            ended = exit_from_json(body["lost"])
            last_line = ended.said.strip().rpartition("\n")[2]
            beside = f": {last_line}" if last_line else ""
            raise ProcessLost(f"its shared process ended before it accepted members ({ended.how}){beside}")
        if isinstance(body.get("refused"), dict):
            refused = body["refused"]
            raise ProcessLost(
                f"its shared process could not start: {refused.get('message')}", hint=str(refused.get("hint", ""))
            )
        raise JoinAgain
    hello = body.get("hello")
    if body.get("v") != FORMAT or not isinstance(hello, dict) or len(fds) != 1:
        message = "not the hello of a shared process"
        raise ValueError(message)
    identity = ProcessIdentity.from_dict(hello.get("identity") or {})
    supervisor = ProcessIdentity.from_dict(hello.get("keeper") or {})
    # A file description of our own, for a lock of our own: the received descriptor is shared by all members.
    exit_fd = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(exit_fd, fcntl.LOCK_SH)
    return SharedProcessHandshake(identity=identity, supervisor=supervisor, exit_fd=exit_fd)


# The connections of a shared process, on its side. One thread reads and writes; the working thread never waits for it.


_JOIN_WITHIN_S = 30.0
_MOST_UNJOINED = 256
_MOST_UNFINISHED_BYTES = 4 * LONGEST_BYTES
_LONGEST_STOP_BYTES = 1 << 10
# Beyond these, what a member does not read is dropped: steps first, then lines of its log.
_STEPS_BYTES = 1 << 18
_LINES_BYTES = 1 << 22
_LONGEST_TEXT = 1 << 18
_LOOK_S = 1.0


class MemberConnection:
    """One connection. The working thread queues messages; the server's thread reads and writes."""

    def __init__(self, link: socket.socket, wake: Callable[[], None], *, join_by_s: float) -> None:
        self.link = link
        self.join_by_s = join_by_s
        self.work: dict[str, Any] | None = None
        """The content of its join message."""
        self.joined_s = 0.0
        """When that message came."""
        self.is_stopped = False
        self.is_gone = False
        """Its run is gone."""
        self.is_answered = False
        self.is_heard = True
        """True until the end of its connection was read."""
        self.frames = Frames()
        self.wants_room = False
        """True if the selector watches it for room to write."""
        self._wake = wake
        self._lock = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0

    def send(self, body: dict[str, Any]) -> None:
        """Queue a message. Never blocks or raises. Progress that the member does not read is dropped."""
        if "log" in body and len(body["log"]) > _LONGEST_TEXT:
            body = {"log": f"{body['log'][:_LONGEST_TEXT]}… (cut)"}
        most = _LINES_BYTES if "log" in body or "told" in body else _STEPS_BYTES if "step" in body else None
        if most is not None and self._unsent_bytes > most:
            return
        try:
            message = framed(body)
        except ValueError:
            # Progress that is too long for a message; answers are short.
            return
        with self._lock:
            self._unsent.append(message)
            self._unsent_bytes += len(message)
            if len(self._unsent) == 1:
                self._send()
            has_more = bool(self._unsent)
        if has_more:
            self._wake()

    def flush(self) -> None:
        """Write as much as the socket accepts."""
        with self._lock:
            self._send()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = self.link.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self.is_gone = True
                self._unsent.clear()
                self._unsent_bytes = 0
                return
            self._unsent_bytes -= sent
            if sent < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][sent:]
            else:
                self._unsent.popleft()


class MemberServer:
    """The connections of one shared process, and the thread that serves them."""

    def __init__(self, listener: socket.socket, greeting: dict[str, Any], exit_fd: int, *, clock: Clock) -> None:
        self.changed = threading.Condition()
        """Held while members are read; notified when one joined or left."""
        self._listener = listener
        self._greeting = framed(greeting)
        self._exit_fd = exit_fd
        self._clock = clock
        self._members: set[MemberConnection] = set()
        self._joined: deque[MemberConnection] = deque()
        self._accepts = True
        self._empty_since_s = clock.monotonic_s()
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (listener, self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._thread = threading.Thread(target=self._serve, name="stoker-members", daemon=True)
        self._thread.start()

    def take_joined(
        self, fits: Callable[[list[MemberConnection]], bool] = lambda _members: True
    ) -> list[MemberConnection]:
        """Return members that joined, in order, as long as all of them fit. The caller holds `changed`."""
        taken: list[MemberConnection] = []
        while self._joined and fits([*taken, self._joined[0]]):
            taken.append(self._joined.popleft())
        return taken

    def empty_for_s(self) -> float | None:
        """Return how long every member has had its answer; None if one has not. The caller holds `changed`."""
        if any(not member.is_answered for member in self._members):
            return None
        return self._clock.monotonic_s() - self._empty_since_s

    def set_accepting(self, accepts: bool) -> None:  # noqa: FBT001 - the only argument
        """Accept new connections, or leave them in the listener's queue."""
        with self.changed:
            self._accepts = accepts
        self._wake()

    def answer(self, member: MemberConnection, answer: dict[str, Any]) -> None:
        """Send a member its answer, the last message."""
        member.send(answer)
        with self.changed:
            member.is_answered = True
            self._note_left()
        self._wake()

    def send_all(self, body: dict[str, Any]) -> None:
        """Send a message to every member that has joined and has no answer yet."""
        with self.changed:
            present = [member for member in self._members if member.work is not None and not member.is_answered]
        for member in present:
            member.send(body)

    def close(self, within_s: float) -> None:
        """Send queued messages, for up to `within_s`, and close all connections."""
        deadline_s = self._clock.monotonic_s() + within_s
        with self.changed:
            while any(member.has_unsent and not member.is_gone for member in self._members):
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                self.changed.wait(min(left_s, 0.05))
            self._is_ending = True
        self._wake()
        self._thread.join(within_s)

    def _note_left(self) -> None:
        if all(member.is_answered for member in self._members):
            self._empty_since_s = self._clock.monotonic_s()
        self.changed.notify_all()

    def _wake(self) -> None:
        # If the buffer is full, the thread is awake already; if the socket is closed, it has ended.
        with suppress(OSError):
            self._wake_write.send(b"\0")

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        except BaseException:  # noqa: BLE001 - without this thread the process must end: its members see that
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)

    def _serve_until_closed(self) -> None:
        while not self._is_ending:
            for key, events in self._selector.select(_LOOK_S):
                if key.data == "listener":
                    self._accept()
                elif key.data == "wake":
                    with suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                elif events & selectors.EVENT_READ:
                    self._hear(key.data)
            self._tend()
        for member in self._members:
            member.link.close()
        for end in (self._selector, self._wake_read, self._wake_write):
            end.close()

    def _accept(self) -> None:
        with self.changed:
            if not self._has_room:
                # A waiting connection would keep the listener ready: do not watch it until there is room.
                self._selector.unregister(self._listener)
                return
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            link.setblocking(False)
            try:
                if user_at(link) != os.geteuid():
                    raise PermissionError
                sent = socket.send_fds(link, [self._greeting], [self._exit_fd])
                if sent < len(self._greeting):
                    raise BlockingIOError
            except OSError:
                link.close()
                return
            member = MemberConnection(link, self._wake, join_by_s=self._clock.monotonic_s() + _JOIN_WITHIN_S)
            self._members.add(member)
            self._selector.register(link, selectors.EVENT_READ, member)

    @property
    def _has_room(self) -> bool:
        return self._accepts and sum(1 for member in self._members if member.work is None) < _MOST_UNJOINED

    def _hear(self, member: MemberConnection) -> None:
        if not member.is_heard:
            # Closed a moment ago, in this round.
            return
        try:
            data, fds = receive(member.link)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            # Members have no reason to send files.
            os.close(fd)
        try:
            if not data:
                self._lose(member)
            for body in member.frames.feed(data):
                self._take(member, body)
        except ValueError:
            self._lose(member)
        if member.frames.unfinished_bytes:
            self._bound_unfinished()

    def _take(self, member: MemberConnection, body: dict[str, Any]) -> None:
        work = body.get("join")
        if body.get("stop") is True:
            member.is_stopped = True
        elif isinstance(work, dict) and member.work is None:
            with self.changed:
                member.work = work
                member.frames.longest_bytes = _LONGEST_STOP_BYTES
                member.joined_s = self._clock.monotonic_s()
                self._joined.append(member)
                self.changed.notify_all()
        else:
            message = "neither join nor stop"
            raise ValueError(message)

    def _bound_unfinished(self) -> None:
        """Close the connections with the longest incomplete messages until all of these fit the limit."""
        with self.changed:
            unfinished = {member: member.frames.unfinished_bytes for member in self._members if member.is_heard}
            while sum(unfinished.values()) > _MOST_UNFINISHED_BYTES:
                longest = max(unfinished, key=lambda member: unfinished[member])
                del unfinished[longest]
                self._lose(longest)

    def _lose(self, member: MemberConnection) -> None:
        """Mark a member as gone. One that is not at work yet leaves at once; the working thread releases the others."""
        with self.changed:
            if not member.is_heard:
                return
            member.is_heard, member.is_gone = False, True
            member.frames = Frames()
            with suppress(KeyError):
                self._selector.unregister(member.link)
            if member.work is None or member in self._joined:
                with suppress(ValueError):
                    self._joined.remove(member)
                member.is_answered = True
            self._note_left()

    def _tend(self) -> None:
        """Write what could not be written, close what is over, and watch the listener again."""
        now_s = self._clock.monotonic_s()
        with self.changed:
            for member in list(self._members):
                if member.work is None and not member.is_gone and now_s >= member.join_by_s:
                    self._lose(member)
                member.flush()
                if member.is_gone and member.is_answered and not member.has_unsent:
                    self._forget(member)
                elif not member.is_gone and member.wants_room != member.has_unsent:
                    member.wants_room = member.has_unsent
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.wants_room else 0)
                    self._selector.modify(member.link, wanted, member)
            if self._has_room:
                # Usually it is registered already.
                with suppress(KeyError):
                    self._selector.register(self._listener, selectors.EVENT_READ, "listener")

    def _forget(self, member: MemberConnection) -> None:
        self._members.discard(member)
        with suppress(KeyError, ValueError):
            self._selector.unregister(member.link)
        member.link.close()
