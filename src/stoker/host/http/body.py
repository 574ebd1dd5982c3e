"""The body of an answer, read off the wire by its framing. Its end is only ever where the framing says it is."""

from __future__ import annotations

import re
import time
from typing import Protocol

from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.host.http.addresses import HttpAddress
from stoker.host.http.exchange import Headers
from stoker.host.http.http_errors import TROUBLE, Ended, ExchangeStep, Malformed, Overlong, translated
from stoker.host.http.streams import CancelHandle, IdleState, Wire

# How the body of an answer is framed: decided from its head alone, strictly. What contradicts itself is refused.

_NUMBER = re.compile(r"[0-9]{1,18}")
_WITHOUT_BODY = frozenset({204, 304})


@frozen
class Framing:
    """Where a body ends: after so many bytes, with its last chunk, or (neither) where the connection does."""

    length_bytes: int | None = None
    is_chunked: bool = False


def framing(method: str, status: int, headers: Headers) -> Framing:
    """Decide how the body of an answer is framed. Raises `Malformed`."""
    length_bytes = announced_bytes(headers)
    codings = [coding for coding in _listed(headers, "transfer-encoding") if coding != "identity"]
    if method == "HEAD" or status in _WITHOUT_BODY:
        return Framing(length_bytes=0)
    if not codings:
        return Framing(length_bytes=length_bytes)
    if codings != ["chunked"]:
        raise Malformed("a transfer coding that nobody asked for")
    if length_bytes is not None:
        raise Malformed("a length and chunks at once")
    return Framing(is_chunked=True)


def announced_bytes(headers: Headers) -> int | None:
    """Give what `Content-Length` says, nothing where it is absent. Raises `Malformed` for nonsense or two opinions."""
    said = _listed(headers, "content-length")
    if not said:
        if headers.all("content-length"):
            raise Malformed("an empty Content-Length")
        return None
    if not all(_NUMBER.fullmatch(value) for value in said):
        raise Malformed("a Content-Length that is no number")
    lengths = {int(value) for value in said}
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
        """How many bytes are still to come, nothing where only the end will tell."""

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes, nothing at the end. Raises `Ended` where the stream ends first, or `Malformed`."""


def body(wire: Wire, frame: Framing) -> Body:
    """Return the body that is framed like that."""
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
    """Chunks, taken apart from what has come so far: a size that is not all there yet never holds back what is."""

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
        """Small chunks are given together, as far as they are there: a byte at a time would drown the reader."""
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
        """Return bytes of one chunk; nothing at the end, and where nothing is there and it need not be waited for."""
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
        """Take the next bit of framing from what has come. False means that it is not all there yet."""
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


# The answer to one request, on the connection that it came on.

_WORTH_READING_BYTES = 16 * 1024
_WORTH_WAITING_S = 0.05
"""A rest that is shorter and comes sooner than this is cheaper to read than a new connection is to make."""


@frozen
class HttpResponseHead:
    """The head of an answer."""

    status: int
    headers: Headers
    keeps_open: bool
    """Whether the server means to take another request on this connection."""


class ConnectionRelease(Protocol):
    """Whom a connection goes back to: for another exchange, or to be cut."""

    def __call__(self, *, is_usable: bool) -> None: ...


class WireResponse:
    """A `Reply` that reads off a wire. `give_back` is called once, when the wire is no longer needed."""

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
            # Whatever it was, nobody knows any more where in the stream we are.
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
