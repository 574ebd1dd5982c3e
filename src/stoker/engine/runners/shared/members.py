"""What a company and its members say to each other, and how: JSON objects, each behind its length.

    company ▶ member   hello (who it is; its last words come in an open file beside it), then steps, log lines, answer
    member ▶ company   join (the work), stop
    supervisor ▶ member  over (no member is accepted any more: try again), while it was still waiting

Whatever arrives is checked before it is believed: a length beyond the limit, or what is no object, ends the connection
and nothing else. The end of a connection frees its slot.
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
from stoker.core.frozen import fields_of, frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.identity import ProcessIdentity
from stoker.host.sockets import user_at

FORMAT = 1
LONGEST_BYTES = 8 << 20
"""Of one message: far more than any stage's arguments."""

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 16
_MOST_FDS = 4
_LONGEST_LAST_WORDS = 1 << 17


def framed(body: dict[str, Any]) -> bytes:
    """Return a message as it is sent. Raises `ValueError` for one that is too long."""
    payload = dumps(body).encode()
    if len(payload) > LONGEST_BYTES:
        message = f"a message of {len(payload)} bytes, and {LONGEST_BYTES} are the most"
        raise ValueError(message)
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self.longest_bytes = LONGEST_BYTES
        """Of the next message: a longer one is refused as soon as it is announced."""
        self._bytes = bytearray()

    @property
    def unfinished_bytes(self) -> int:
        """How much is held of a message that is not whole yet."""
        return len(self._bytes)

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that are whole now. Raises `ValueError` for bytes that are none of ours."""
        self._bytes += data
        bodies = []
        while len(self._bytes) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._bytes)
            if size > self.longest_bytes:
                message = f"a message of {size} bytes is announced, and {self.longest_bytes} are the most"
                raise ValueError(message)
            end = _LENGTH.size + size
            if len(self._bytes) < end:
                break
            body = loads(bytes(self._bytes[_LENGTH.size : end]))
            if not isinstance(body, dict):
                message = f"a message that is a {type(body).__name__}, not an object"
                raise ValueError(message)  # noqa: TRY004 - the value is wrong
            del self._bytes[:end]
            bodies.append(body)
        return bodies


def receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for bytes; give them, none if the other end is gone, with the open files that came along."""
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
    """Wait until a connection can be read from, or written to, for so long at most; says whether it can."""
    poller = select.poll()
    poller.register(link, for_what)
    return bool(poller.poll(max(0.0, within_s) * 1000))


@frozen
class SharedProcessExit:
    """How a company's process ended, as its supervisor saw it."""

    how: str
    status: int | None = None
    number: int | None = None
    """Of the signal that killed it."""
    was_out_of_memory: bool = False
    cap_bytes: int | None = None
    said: str = ""
    """The end of what it printed."""


def words_as_json(words: SharedProcessExit) -> dict[str, Any]:
    """Return last words as they are left."""
    return fields_of(words)


def words_from_json(body: Any) -> SharedProcessExit:
    """Read what `words_as_json` gave. Raises `ValueError`."""
    try:
        return SharedProcessExit(**body)
    except TypeError as error:
        message = f"no last words of a company: {error}"
        raise ValueError(message) from None


def read_last_words(descriptor: int) -> SharedProcessExit | None:
    """Return the last words that were left in an open file; nothing as long as they are not whole."""
    data = os.pread(descriptor, _LONGEST_LAST_WORDS, 0)
    return words_from_json(loads(data)) if data.endswith(b"\n") else None


# What a member that connects gets: a greeting of the process, the end from its supervisor, or nothing in time.


@frozen
class SharedProcessHandshake:
    """Who answered at the door."""

    identity: ProcessIdentity
    keeper: ProcessIdentity
    words_fd: int
    """Where the supervisor writes how the process ended. This member holds a shared lock on it."""


class ComeAgain(Exception):
    """The company ended before this member was in it: the next one is to be found."""


class Unanswered(Exception):
    """The company has a door and does not answer: it hangs, or was stopped."""


def be_greeted(
    link: socket.socket, frames: Frames, *, within_s: float, clock: Clock
) -> tuple[SharedProcessHandshake, list[dict[str, Any]]]:
    """Wait for the company to begin, which may take a while; give who greets, and what it said beside that.

    From then on its supervisor sees this member. Raises `ComeAgain`, `Unanswered` if it takes too long, `ProcessLost`
    if the process is gone, `ValueError` for what is no greeting.
    """
    fds: list[int] = []
    deadline_s = clock.monotonic_s() + within_s
    try:
        while True:
            if not is_ready(link, select.POLLIN, deadline_s - clock.monotonic_s()):
                raise Unanswered
            data, more_fds = receive(link)
            fds += more_fds
            if not data:
                raise ComeAgain
            bodies = frames.feed(data)
            if bodies:
                return _read_greeting(bodies[0], fds), bodies[1:]
    finally:
        for fd in fds:
            os.close(fd)


def _read_greeting(body: dict[str, Any], fds: list[int]) -> SharedProcessHandshake:
    if body.get("over") is True:
        if isinstance(body.get("lost"), dict):
            words = words_from_json(body["lost"])
            said = words.said.strip().rpartition("\n")[2]
            raise ProcessLost(f"its company ended before it began ({words.how}){f': {said}' if said else ''}")
        if isinstance(body.get("refused"), dict):
            refused = body["refused"]
            raise ProcessLost(
                f"its company could not begin: {refused.get('message')}", hint=str(refused.get("hint", ""))
            )
        raise ComeAgain
    hello = body.get("hello")
    if body.get("v") != FORMAT or not isinstance(hello, dict) or len(fds) != 1:
        message = "it greets in another way"
        raise ValueError(message)
    identity = ProcessIdentity.from_dict(hello.get("identity") or {})
    keeper = ProcessIdentity.from_dict(hello.get("keeper") or {})
    # An opening of our own, for a lock of our own: the descriptor that came by a message is shared by all.
    words_fd = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(words_fd, fcntl.LOCK_SH)
    return SharedProcessHandshake(identity=identity, keeper=keeper, words_fd=words_fd)


# Who is connected to a company, in its own process: one thread reads and writes, the one that works is never held up.


_JOIN_WITHIN_S = 30.0
_MOST_UNJOINED = 256
_MOST_UNFINISHED_BYTES = 4 * LONGEST_BYTES
_LONGEST_STOP_BYTES = 1 << 10
# Beyond these, what a member has not read is dropped: steps first, then lines of its log.
_STEPS_BYTES = 1 << 18
_LINES_BYTES = 1 << 22
_LONGEST_TEXT = 1 << 18
_LOOK_S = 1.0


class MemberConnection:
    """One connection. The working thread talks to it; the other one reads and writes."""

    def __init__(self, link: socket.socket, wake: Callable[[], None], *, join_by_s: float) -> None:
        self.link = link
        self.join_by_s = join_by_s
        self.work: dict[str, Any] | None = None
        """What it came for, once it has said so."""
        self.is_stopped = False
        self.is_gone = False
        """Its run is gone."""
        self.is_answered = False
        self.is_heard = True
        """Whether it is listened to: also one that is gone, until the end of its connection was read."""
        self.frames = Frames()
        self.wants_room = False
        """Whether it is watched for room to write."""
        self._wake = wake
        self._lock = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0

    def say(self, body: dict[str, Any]) -> None:
        """Tell it something; never waits and never raises. Progress that it does not read is dropped."""
        if "log" in body and len(body["log"]) > _LONGEST_TEXT:
            body = {"log": f"{body['log'][:_LONGEST_TEXT]}… (cut)"}
        most = _LINES_BYTES if "log" in body or "told" in body else _STEPS_BYTES if "step" in body else None
        if most is not None and self._unsent_bytes > most:
            return
        try:
            said = framed(body)
        except ValueError:
            # Progress that is too long for a message; answers are short.
            return
        with self._lock:
            self._unsent.append(said)
            self._unsent_bytes += len(said)
            if len(self._unsent) == 1:
                self._send()
            has_more = bool(self._unsent)
        if has_more:
            self._wake()

    def flush(self) -> None:
        """Send what there is room for."""
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
    """All connections of one company, and the thread that serves them."""

    def __init__(self, listener: socket.socket, greeting: dict[str, Any], words_fd: int, *, clock: Clock) -> None:
        self.changed = threading.Condition()
        """Held while members are read; notified when one joined or left."""
        self._listener = listener
        self._greeting = framed(greeting)
        self._words_fd = words_fd
        self._clock = clock
        self._members: set[MemberConnection] = set()
        self._joined: deque[MemberConnection] = deque()
        self._lets_in = True
        self._empty_since_s = clock.monotonic_s()
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (listener, self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._thread = threading.Thread(target=self._serve, name="stoker-company-members", daemon=True)
        self._thread.start()

    def take_joined(
        self, fits: Callable[[list[MemberConnection]], bool] = lambda _members: True
    ) -> list[MemberConnection]:
        """Return who has joined, in order and as long as all of them fit; the caller holds `changed`."""
        taken: list[MemberConnection] = []
        while self._joined and fits([*taken, self._joined[0]]):
            taken.append(self._joined.popleft())
        return taken

    def empty_for_s(self) -> float | None:
        """Return for how long no member has waited for an answer; the caller holds `changed`."""
        if any(not member.is_answered for member in self._members):
            return None
        return self._clock.monotonic_s() - self._empty_since_s

    def let_in(self, *, is_open: bool) -> None:
        """Let newcomers in, or leave them waiting at the door."""
        with self.changed:
            self._lets_in = is_open
        self._wake()

    def told(self, member: MemberConnection, answer: dict[str, Any]) -> None:
        """Give a member its answer: it has none to wait for any more."""
        member.say(answer)
        with self.changed:
            member.is_answered = True
            self._note_left()
        self._wake()

    def tell_all(self, body: dict[str, Any]) -> None:
        """Send a message to every member that has joined and has no answer yet."""
        with self.changed:
            present = [member for member in self._members if member.work is not None and not member.is_answered]
        for member in present:
            member.say(body)

    def close(self, within_s: float) -> None:
        """Send what is unsent, for so long at most, and end all connections."""
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
        # Full means that it is awake already; closed, that it has ended.
        with suppress(OSError):
            self._wake_write.send(b"\0")

    def _serve(self) -> None:
        try:
            self._serve_until_the_end()
        except BaseException:  # noqa: BLE001 - no member would be served any more: the end of the process tells them
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)

    def _serve_until_the_end(self) -> None:
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
                # A waiting connection keeps the listener ready: it is not watched until there is room.
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
                sent = socket.send_fds(link, [self._greeting], [self._words_fd])
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
        return self._lets_in and sum(1 for member in self._members if member.work is None) < _MOST_UNJOINED

    def _hear(self, member: MemberConnection) -> None:
        if not member.is_heard:
            # Lost a moment ago, for another's sake.
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
                self._joined.append(member)
                self.changed.notify_all()
        else:
            message = "neither a join nor a stop"
            raise ValueError(message)

    def _bound_unfinished(self) -> None:
        """Lose who holds the most of what is not whole, as long as all of that is too much."""
        with self.changed:
            unfinished = {member: member.frames.unfinished_bytes for member in self._members if member.is_heard}
            while sum(unfinished.values()) > _MOST_UNFINISHED_BYTES:
                longest = max(unfinished, key=lambda member: unfinished[member])
                del unfinished[longest]
                self._lose(longest)

    def _lose(self, member: MemberConnection) -> None:
        """It is gone. Who was not seated yet leaves at once; a seat is left by whoever works for it."""
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
        """Write what could not be written, close what is over, and look at the door again."""
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
                # It is there already, mostly.
                with suppress(KeyError):
                    self._selector.register(self._listener, selectors.EVENT_READ, "listener")

    def _forget(self, member: MemberConnection) -> None:
        self._members.discard(member)
        with suppress(KeyError, ValueError):
            self._selector.unregister(member.link)
        member.link.close()
