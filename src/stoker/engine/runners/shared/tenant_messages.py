"""What a company and its members say to each other, and how: JSON objects, each behind its length.

    company ▶ member   hello (who it is; its last words come in an open file beside it), then steps, log lines, answer
    member ▶ company   join (the work), stop
    keeper ▶ member    over (nobody is let in any more: come again), when it was still waiting at the door

Whatever arrives is checked before it is believed: a length beyond the limit, or what is no object, ends the connection
and nothing else. The end of a connection frees the seat.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import ProcessLost
from stoker.core.frozen import fields_of, frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.identity import ProcessIdentity

FORMAT = 1
LONGEST_BYTES = 8 << 20
"""Of one message: far more than any stage's arguments."""

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 16
_MOST_FDS = 4
_LONGEST_LAST_WORDS = 1 << 17


def framed(body: dict[str, Any]) -> bytes:
    """Return a message as it is sent. Raises `ValueError` for one that nobody would take."""
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
    """How a company's process ended, as its keeper saw it."""

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


# How whoever knocks at a company's door is greeted: by the company, by its keeper if that is over, or not in time.


@frozen
class SharedProcessHandshake:
    """Who answered at the door."""

    identity: ProcessIdentity
    keeper: ProcessIdentity
    words_fd: int
    """Where the keeper leaves last words. Held shared as long as this member lives, for the keeper to see."""


class ComeAgain(Exception):
    """The company ended before this member was in it: the next one is to be found."""


class Unanswered(Exception):
    """The company has a door and does not answer: it hangs, or somebody stopped it."""


def be_greeted(
    link: socket.socket, frames: Frames, *, within_s: float, clock: Clock
) -> tuple[SharedProcessHandshake, list[dict[str, Any]]]:
    """Wait for the company to begin, which may take a while; give who greets, and what it said beside that.

    From then on its keeper sees this member. Raises `ComeAgain`, `Unanswered` if it takes too long, `ProcessLost` if
    there is nobody any more, `ValueError` for what is no greeting.
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
    # An opening of our own, for a lock of our own: what came by a message is the same as everybody's.
    words_fd = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(words_fd, fcntl.LOCK_SH)
    return SharedProcessHandshake(identity=identity, keeper=keeper, words_fd=words_fd)
