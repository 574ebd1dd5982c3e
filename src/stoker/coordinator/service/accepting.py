"""Who may connect: no more at once from one address than it can have a use for, so that nobody takes all the room.

Connections are counted from their first packet, before anybody has spoken TLS. Those of this machine are not: whoever
runs programs here has easier ways.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.coordinator.authority.guesses import source_of
from stoker.coordinator.service.access import is_loopback
from stoker.coordinator.service.buffered import Buffered, Reader
from stoker.model.frozen import frozen

_AT_ONCE = 16
"""Taken in one turn of the event loop, which answers others in between. uvloop by itself takes one: then whoever
connects waits behind all that is asked meanwhile.
"""
_PAUSE_S = 0.5
_LINGER_NONE = struct.pack("ii", 1, 0)


@frozen
class Crowd:
    """How many there may be."""

    each: int = 1024
    """Connections of one address: a few for each worker, and there may be many behind one router."""
    strangers_each: int = 256
    """Of those, how many have not spoken TLS yet."""
    strangers: int = 4096
    """That have not, of all addresses together."""


class Accepting:
    """Takes connections at a socket, speaks TLS with them if it has a context for it, and hands them over.

    Made inside the event loop.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], Reader],
        context: ssl.SSLContext | None,
        *,
        handshake_s: float,
        backlog: int,
        crowd: Crowd,
    ) -> None:
        self._listening = listening
        self._connect = connect
        self._context = context
        self._handshake_s = handshake_s
        self._crowd = crowd
        self._loop = asyncio.get_running_loop()
        self._all: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()
        self._greeting: set[asyncio.Task[None]] = set()
        self._is_closed = False
        listening.setblocking(False)
        listening.listen(backlog)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Take no more, and let those go who have not spoken yet."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listening)
            for one in self._greeting:
                one.cancel()

    async def wait_closed(self) -> None:
        """Wait until those are gone."""
        if self._greeting:
            await asyncio.wait(self._greeting)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                taken, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors: who waits is taken when some are free again.
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_PAUSE_S, self._go_on)
                return
            source = "" if is_loopback(str(address[0]).removeprefix("::ffff:")) else source_of(str(address[0]))
            if self._is_full(source):
                with suppress(OSError):
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                taken.close()
                continue
            taken.setblocking(False)
            self._all[source] += 1
            self._strangers[source] += 1
            greeting = self._loop.create_task(self._greet(taken, source))
            self._greeting.add(greeting)
            greeting.add_done_callback(self._greeting.discard)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listening, self._accept)

    def _is_full(self, source: str) -> bool:
        crowd = self._crowd
        if not source:
            return False
        is_own_full = self._all[source] >= crowd.each or self._strangers[source] >= crowd.strangers_each
        return is_own_full or self._strangers.total() - self._strangers[""] >= crowd.strangers

    async def _greet(self, taken: socket.socket, source: str) -> None:
        has_left = False

        def leave() -> None:
            nonlocal has_left
            if not has_left:
                has_left = True
                _take_one(self._all, source)

        tls: dict[str, Any] = {}
        if self._context is not None:
            tls = {
                "ssl": self._context,
                "ssl_handshake_timeout": self._handshake_s,
                "ssl_shutdown_timeout": 5.0,
            }
        try:
            await self._loop.connect_accepted_socket(lambda: Buffered(self._connect(), on_lost=leave), taken, **tls)
        except (OSError, asyncio.CancelledError):
            # It never spoke TLS as it should: nobody has to be told.
            leave()
            taken.close()
        finally:
            _take_one(self._strangers, source)


def _take_one(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if counts[source] <= 0:
        del counts[source]
