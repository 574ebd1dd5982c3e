"""The body of an answer, read off the wire by its framing. Its end is only ever where the framing says it is."""

from __future__ import annotations

import re
from typing import Protocol

from stoker.host.http.failures import Ended, Malformed, Overlong
from stoker.host.http.framing import Framing
from stoker.host.http.wire import Line, Wire

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
        """Give the next bytes, nothing at the end. Raises `Ended` where the stream ends first, or `Malformed`."""


def body(wire: Wire, frame: Framing) -> Body:
    """Give the body that is framed like that."""
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
        """Give bytes of one chunk; nothing at the end, and where nothing is there and it need not be waited for."""
        while not self._left_of_chunk and self.left_bytes is None:
            if not self._step():
                if not is_first and self._wire.look() is not Line.SPEAKS:
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
        elif self._wire.look() is Line.SPEAKS:
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
