"""One connection as a stream of bytes: deadlines that hold for slow streams, large reads for fast ones.

A `Wire` is between a connected socket (plain or TLS) and the reader of lines or bodies. Outside exceptions pass
through it: the exchange translates them.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol

from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.host.http.exchange import Headers, HttpAddress
from stoker.host.http.http_errors import TROUBLE, Aborted, Ended, ExchangeStep, Malformed, Overlong, translated


class CancelHandle:
    """The sockets that one exchange waits on. Aborting is safe from any thread and from a signal handler.

    Shutting a socket down, not closing it, is what wakes a thread that waits on it. A TLS socket is shut down below
    TLS, on a descriptor of its own: the `shutdown` of `ssl` would make the waiting thread read ciphertext as if it
    were text.
    """

    def __init__(self) -> None:
        # Reentrant: a signal may come while its own thread holds it. Held only for calls that never wait.
        self._lock = threading.RLock()
        self._sockets: list[socket.socket] = []
        self.is_pulled = False

    def hold(self, sock: socket.socket) -> None:
        """Cut this socket too when the cord is pulled. Raises `Aborted` if it has been."""
        self._sockets.append(sock)
        self.check()

    def let_go(self, sock: socket.socket) -> None:
        """The exchange waits on this socket no longer; it may be closed."""
        with self._lock, suppress(ValueError):
            self._sockets.remove(sock)

    def check(self) -> None:
        """Raise `Aborted` if the cord has been pulled."""
        if self.is_pulled:
            raise Aborted

    def pull(self) -> None:
        """Cut everything that is held now or later."""
        self.is_pulled = True
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


LINGER_S = 0.1
"""How long a read continues to gather once it has data."""
_BUFFER_BYTES = 32 * 1024


class Stream(Protocol):
    """A socket, a TLS socket, or TLS inside TLS."""

    def recv_into(self, buffer: Any, /) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def close(self) -> None: ...


class IdleState(Enum):
    """State of an idle connection."""

    QUIET = auto()
    SPEAKS = auto()
    ENDED = auto()


class Wire:
    """A connected socket with a buffer. One thread reads at a time; any thread may pull the cord."""

    def __init__(self, stream: Stream, handle: socket.socket) -> None:
        self._stream = stream
        self._handle = handle
        self._inflow = _Inflow(stream)
        self._reader = io.BufferedReader(self._inflow, _BUFFER_BYTES)

    @property
    def received_bytes(self) -> int:
        """Number of bytes received so far."""
        return self._inflow.received_bytes

    def begin(self, cord: CancelHandle, *, deadline_s: float) -> None:
        """Serve an exchange: the cord cuts it, and until `expect_body` everything must be there by the deadline."""
        self._inflow.cord = cord
        self._inflow.deadline_s = deadline_s
        cord.hold(self._handle)

    def expect_body(self, read_s: float) -> None:
        """From now on, wait at most so long for each next byte, without a deadline."""
        self._inflow.deadline_s = None
        self._inflow.read_s = read_s

    def expect_by(self, deadline_s: float) -> None:
        """From now on, everything must be there by the deadline."""
        self._inflow.deadline_s = deadline_s

    def finish(self) -> None:
        """End the exchange; its abort handle no longer concerns this wire."""
        if self._inflow.cord is not None:
            self._inflow.cord.let_go(self._handle)
            self._inflow.cord = None

    def send(self, data: bytes) -> None:
        """Send all of it before the deadline."""
        self._inflow.set_wait(self._inflow.wait_s())
        self._stream.sendall(data)

    def read_line(self, at_most_bytes: int) -> bytes:
        """Return the next line with its end, or what there is of it at the size limit or the end of the stream."""
        return self._reader.readline(at_most_bytes)

    def take(self, at_most_bytes: int) -> bytes:
        """Return the next bytes: waits for the first, then gathers for a moment. Empty at the end of the stream."""
        self._inflow.lingers = True
        try:
            return self._reader.read1(at_most_bytes)
        finally:
            self._inflow.lingers = False

    def take_at_once(self, at_most_bytes: int) -> bytes:
        """Return the next bytes without gathering: the result of one call."""
        return self._reader.read1(at_most_bytes)

    def look(self) -> IdleState:
        """Return the state of the other side without waiting."""
        self._inflow.waits = False
        try:
            is_there = bool(self._reader.peek(1))
        except OSError:
            return IdleState.ENDED
        finally:
            self._inflow.waits = True
        if is_there:
            return IdleState.SPEAKS
        return IdleState.ENDED if self._inflow.has_ended else IdleState.QUIET

    def close(self) -> None:
        """Cut the connection."""
        self.finish()
        self._handle.close()
        self._stream.close()


class _Inflow(io.RawIOBase):
    """The raw reader of the buffer above: `readinto` decides how long to wait."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._set_wait_s: float | None = -1.0
        self.cord: CancelHandle | None = None
        self.deadline_s: float | None = None
        self.read_s = 0.0
        self.lingers = False
        self.waits = True
        self.has_ended = False
        self.received_bytes = 0
        self._held_back: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int | None:
        """Fill a buffer: some bytes, 0 at the end of the stream, None if there are none and the call must not wait."""
        if self._held_back is not None:
            raise self._held_back
        try:
            self.set_wait(self.wait_s() if self.waits else 0.0)
            count = self._stream.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if self.waits:
                raise
            return None
        finally:
            if self.cord is not None:
                self.cord.check()
        if count == 0:
            self.has_ended = True
        elif self.lingers and count < len(view):
            count += self._gather(view[count:])
        self.received_bytes += count
        return count

    def wait_s(self) -> float:
        """How long the next call may wait."""
        if self.deadline_s is None:
            return self.read_s
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def set_wait(self, seconds: float) -> None:
        if seconds != self._set_wait_s:
            self._stream.settimeout(seconds)
            self._set_wait_s = seconds

    def _gather(self, view: memoryview) -> int:
        """Read what else comes within a moment. A failure is kept for the next call: received bytes come first."""
        until_s = time.monotonic() + LINGER_S
        gathered = 0
        self.set_wait(LINGER_S)
        while gathered < len(view) and time.monotonic() < until_s:
            try:
                count = self._stream.recv_into(view[gathered:])
            except TimeoutError:
                break
            except OSError as error:
                self._held_back = error
                break
            if count == 0:
                break
            gathered += count
        return gathered


# The framing of a response's body: decided from its head alone, strictly. Contradictions are refused.

_NUMBER = re.compile(r"[0-9]{1,18}")
_WITHOUT_BODY = frozenset({204, 304})


@frozen
class Framing:
    """Where a body ends: after so many bytes, with its last chunk, or (neither) with the connection."""

    length_bytes: int | None = None
    is_chunked: bool = False


def framing(method: str, status: int, headers: Headers) -> Framing:
    """Return the framing of a response's body. Raises `Malformed`."""
    length_bytes = announced_bytes(headers)
    codings = [coding for coding in _listed(headers, "transfer-encoding") if coding != "identity"]
    if method == "HEAD" or status in _WITHOUT_BODY:
        return Framing(length_bytes=0)
    if not codings:
        return Framing(length_bytes=length_bytes)
    if codings != ["chunked"]:
        raise Malformed("an unexpected transfer coding")
    if length_bytes is not None:
        raise Malformed("a length and chunks at once")
    return Framing(is_chunked=True)


def announced_bytes(headers: Headers) -> int | None:
    """Return the value of `Content-Length`, nothing if absent. Raises `Malformed` for an invalid or second value."""
    values = _listed(headers, "content-length")
    if not values:
        if headers.all("content-length"):
            raise Malformed("an empty Content-Length")
        return None
    if not all(_NUMBER.fullmatch(value) for value in values):
        raise Malformed("a Content-Length that is no number")
    lengths = {int(value) for value in values}
    if len(lengths) > 1:
        raise Malformed("two different Content-Lengths")
    return lengths.pop()


def _listed(headers: Headers, name: str) -> list[str]:
    values = (value.strip().lower() for field in headers.all(name) for value in field.split(","))
    return [value for value in values if value]


_FIRST_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]{0,4096})?\r\n")
_NEXT_SIZE = re.compile(rb"\r\n" + _FIRST_SIZE.pattern)
_TRAILER_LINE = re.compile(rb"[^\r\n]{0,4096}\r\n")
_LONGEST_LINE_BYTES = 8 * 1024
_MOST_TRAILER_LINES = 64
_FETCH_BYTES = 64 * 1024


class Body(Protocol):
    """What is left of a body."""

    @property
    def left_bytes(self) -> int | None:
        """Number of bytes to come, nothing if only the end will show."""

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes, nothing at the end. Raises `Ended` where the stream ends first, or `Malformed`."""


def body(wire: Wire, frame: Framing) -> Body:
    """Return the body with this framing."""
    if frame.is_chunked:
        return _Chunked(wire)
    return _UntilClosed(wire) if frame.length_bytes is None else _Counted(wire, frame.length_bytes)


class _Counted:
    def __init__(self, wire: Wire, length_bytes: int) -> None:
        self._wire = wire
        self.left_bytes: int | None = length_bytes
        self._left = length_bytes

    def read(self, at_most_bytes: int) -> bytes:
        if not self._left:
            return b""
        data = self._wire.take(min(at_most_bytes, self._left))
        if not data:
            raise Ended(self._left)
        self._left -= len(data)
        self.left_bytes = self._left
        return data


class _UntilClosed:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.left_bytes: int | None = None

    def read(self, at_most_bytes: int) -> bytes:
        data = b"" if self.left_bytes == 0 else self._wire.take(at_most_bytes)
        if not data:
            self.left_bytes = 0
        return data


class _Chunked:
    """Decodes chunks from what has come so far: an incomplete size never holds back data."""

    def __init__(self, wire: Wire) -> None:
        self.left_bytes: int | None = None
        self._wire = wire
        self._come = b""
        self._at = 0
        self._frame = _FIRST_SIZE
        self._left_of_chunk = 0
        self._trailer_lines = 0
        self._held_back: Exception | None = None

    def read(self, at_most_bytes: int) -> bytes:
        """Small chunks are returned together, as far as they are there: single bytes would be slow."""
        if self._held_back is not None:
            raise self._held_back
        pieces: list[bytes] = []
        try:
            while at_most_bytes and self.left_bytes is None:
                piece = self._next(at_most_bytes, is_first=not pieces)
                if not piece:
                    break
                pieces.append(piece)
                at_most_bytes -= len(piece)
        except Exception as error:
            if not pieces:
                raise
            self._held_back = error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next(self, at_most_bytes: int, *, is_first: bool) -> bytes:
        """Return bytes of one chunk; empty at the end, and if there are none and the call must not wait."""
        while not self._left_of_chunk and self.left_bytes is None:
            if not self._step():
                if not is_first and self._wire.look() is not IdleState.SPEAKS:
                    return b""
                self._fetch()
        if self.left_bytes == 0:
            return b""
        size = min(at_most_bytes, self._left_of_chunk)
        if self._at < len(self._come):
            piece = self._come[self._at : self._at + size]
            self._at += len(piece)
        elif is_first:
            piece = self._wire.take(size)
        elif self._wire.look() is IdleState.SPEAKS:
            piece = self._wire.take_at_once(size)
        else:
            return b""
        if not piece:
            raise Ended
        self._left_of_chunk -= len(piece)
        return piece

    def _step(self) -> bool:
        """Read the next part of the framing. Returns False if it is not complete yet."""
        found = self._frame.match(self._come, self._at)
        if found is None:
            if self._frame is _NEXT_SIZE and not b"\r\n".startswith(self._come[self._at : self._at + 2]):
                raise Malformed("a chunk that does not end where it should")
            if self._come.find(b"\n", self._at + 2) >= 0 or len(self._come) - self._at > _LONGEST_LINE_BYTES:
                raise Malformed("a chunk without a valid size, or a trailer that is none")
            return False
        self._at = found.end()
        if self._frame is _TRAILER_LINE:
            self._end_trailer_line(found[0])
            return True
        self._left_of_chunk = int(found[1], 16)
        self._frame = _NEXT_SIZE if self._left_of_chunk else _TRAILER_LINE
        return True

    def _end_trailer_line(self, line: bytes) -> None:
        self._trailer_lines += 1
        if self._trailer_lines > _MOST_TRAILER_LINES:
            raise Malformed("a trailer without end")
        if line == b"\r\n":
            if self._at < len(self._come):
                raise Overlong
            self.left_bytes = 0

    def _fetch(self) -> None:
        more = self._wire.take_at_once(_FETCH_BYTES)
        if not more:
            raise Ended
        self._come = self._come[self._at :] + more
        self._at = 0


# The response to one request, on its connection.

_WORTH_READING_BYTES = 16 * 1024
_WORTH_WAITING_S = 0.05
"""A rest that is shorter and comes sooner than this is cheaper to read than a new connection."""


@frozen
class HttpResponseHead:
    """The head of an answer."""

    status: int
    headers: Headers
    keeps_open: bool
    """True if the server accepts another request on this connection."""


class ConnectionRelease(Protocol):
    """Takes back a connection: for another exchange, or to be cut."""

    def __call__(self, *, is_usable: bool) -> None: ...


class WireResponse:
    """A `Reply` that reads from a wire. `give_back` is called once, when the wire is no longer needed."""

    def __init__(
        self,
        address: HttpAddress,
        head: HttpResponseHead,
        frame: Framing,
        *,
        wire: Wire,
        cord: CancelHandle,
        give_back: ConnectionRelease,
    ) -> None:
        self.url = address.url
        self.status = head.status
        self.headers = head.headers
        self._host = address.origin.host_and_port
        self._keeps_open = head.keeps_open
        self._is_framed = frame.is_chunked or frame.length_bytes is not None
        self._wire = wire
        self._body = body(wire, frame)
        self._cord = cord
        self._give_back: ConnectionRelease | None = give_back
        self._failure: StokerError | None = None

    def read(self, at_most_bytes: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        if self._give_back is None:
            message = "a reply is read before it is closed"
            raise ValueError(message)
        try:
            self._cord.check()
            data = self._body.read(at_most_bytes)
            if not data and self._is_framed and self._wire.look() is IdleState.SPEAKS:
                raise Overlong
        except BaseException as error:
            # After any error the position in the stream is unknown.
            self._let_go(is_usable=False)
            if isinstance(error, TROUBLE):
                self._failure = translated(error, self._host, ExchangeStep.BODY)
                raise self._failure from error
            raise
        return data

    def close(self) -> None:
        if self._give_back is not None:
            self._let_go(is_usable=self._is_worth_keeping())

    def abort(self) -> None:
        self._cord.pull()

    def _is_worth_keeping(self) -> bool:
        if not (self._keeps_open and self._is_framed) or self._cord.is_pulled:
            return False
        try:
            self._read_rest()
        except TROUBLE:
            return False
        return self._body.left_bytes == 0

    def _read_rest(self) -> None:
        if (self._body.left_bytes or 0) > _WORTH_READING_BYTES:
            return
        self._wire.expect_by(time.monotonic() + _WORTH_WAITING_S)
        read_bytes = 0
        while self._body.left_bytes != 0 and read_bytes <= _WORTH_READING_BYTES:
            read_bytes += len(self._body.read(_WORTH_READING_BYTES))

    def _let_go(self, *, is_usable: bool) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(is_usable=is_usable)
