"""What is read goes through one buffer that all connections share, instead of one that is made for every read.

The event loop fills it and hands it on within one call, so no other connection uses it meanwhile. With TLS that saves a
third of what reading and answering costs. How much of it is filled is said by the protocol that gets the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

READ_BYTES = 32 * 1024
"""Read at once: also the most that one connection has parsed before others have their turn."""
BULK_BYTES = 256 * 1024
"""The same in the middle of a large body, of which nothing has to be parsed."""

_SHARED = memoryview(bytearray(BULK_BYTES))


class Reader(asyncio.Protocol):
    """A protocol that says how much may be read for it at once, at most `BULK_BYTES`."""

    read_bytes = READ_BYTES


_GONE = Reader()
"""In the place of a protocol whose connection is lost: what TLS keeps of it is then freed at once, not at some later
collection of cycles, before which a stranger who connects again and again would have filled the memory."""


def _nothing() -> None: ...


class Buffered(asyncio.BufferedProtocol):
    """Stands before a protocol that takes bytes."""

    __slots__ = ("_inner", "_on_lost")

    def __init__(self, inner: Reader, *, on_lost: Callable[[], None] = _nothing) -> None:
        self._inner = inner
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SHARED[: self._inner.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.data_received(bytes(_SHARED[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        inner, self._inner = self._inner, _GONE
        self._on_lost()
        self._on_lost = _nothing
        inner.connection_lost(exc)
