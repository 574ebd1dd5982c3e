"""One client's connection: bounded heads, and an end to clients that are too slow to be served.

A connection that says nothing, dribbles its head or its body, or does not read what it asked for is cut by a look that
comes round every second, so that a quick one pays nothing for it. What the requests mean is not known here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoker.coordinator.service.accepting import Crowd
from stoker.coordinator.service.access import UNKNOWN, Peer
from stoker.coordinator.service.exchange import Door, Exchange
from stoker.coordinator.service.speech import json_bytes
from stoker.coordinator.service.who import PEER
from stoker.host.door import user_at
from stoker.host.tls.peer import read_peer
from stoker.model.errors import BadInput, StokerError
from stoker.model.fleet_errors import TooLarge
from stoker.model.frozen import frozen


@frozen
class Patience:
    """How long a client may take, and how much it may send."""

    head_s: float = 15.0
    """For a request's head, from its first byte or from the connection's beginning."""
    silence_s: float = 30.0
    """Without a byte of a body that was announced, or without reading any of an answer."""
    body_s: float = 900.0
    """For a whole body."""
    idle_s: float = 150.0
    """Between requests: more than a heartbeat, so that workers keep their connection."""
    head_bytes: int = 64 * 1024
    dropped_bytes: int = 64 * 1024 * 1024
    """Of a body that was refused already: who is cut off in the middle of it may miss why."""
    connections: int = 20_000
    crowd: Crowd = Crowd()
    """Of one address, where others than this machine may connect."""
    look_s: float = 1.0
    """Between two looks at all connections."""


PATIENCE = Patience()


class Connection(HttpToolsProtocol):
    """One connection. `look` is called now and then."""

    patience = PATIENCE
    door: Door

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.timeout_keep_alive = self.patience.idle_s  # type: ignore[assignment]  # a timer takes fractions, too
        self._is_in_head = True
        self._message_bytes = 0
        self._began_s = self._heard_s = self.loop.time()
        self._blocked_s: float | None = None
        self._exchange: Exchange | None = None
        self._peer = UNKNOWN

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Read once: what it says can't change while the connection stands; whether it still counts is asked each time.
        shown = read_peer(transport.get_extra_info("peercert"))
        address = str(self.client[0]) if self.client else ""
        self._peer = Peer(address=address, certificate=shown, is_own_user=_is_own_user(transport))
        if len(self.connections) > self.patience.connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        super().data_received(data)
        # Counted once it is known whether a new request began with them.
        self._message_bytes += len(data)
        if self._is_in_head and self._message_bytes > self.patience.head_bytes:
            self._refuse(b"431 Request Header Fields Too Large", TooLarge("the head of the request is too large"))
        elif self._message_bytes > self.patience.dropped_bytes and self.cycle is not None:
            self._stop_dropping()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[PEER] = self._peer
        self._is_in_head = True
        self._message_bytes = 0
        self._began_s = self._heard_s

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if not self._begin_exchange():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if isinstance(cycle, Exchange):
            cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle: Any = self.cycle
        if isinstance(cycle, Exchange):
            cycle.act()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._exchange = None
        self._message_bytes = 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._exchange is not None:
            self._exchange.leave()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._blocked_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._blocked_s = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Say so when what comes is not HTTP."""
        self._refuse(b"400 Bad Request", BadInput(f"that is not HTTP: {msg}"))

    def look(self, now_s: float) -> None:
        """End the connection if its client has taken too long, and say why while it may still be listening."""
        if not self._is_too_slow(now_s) or self.transport.is_closing():
            return
        if self._blocked_s is None and (self._is_in_head or not self.cycle.response_started):
            self._refuse(b"408 Request Timeout", BadInput("the request came too slowly", hint="send it again"))
        else:
            self.transport.abort()

    def _is_too_slow(self, now_s: float) -> bool:
        patience, cycle = self.patience, self.cycle
        if self._blocked_s is not None and now_s - self._blocked_s > patience.silence_s:
            return True
        if self._is_in_head:
            return now_s - self._began_s > patience.head_s
        if not cycle.more_body or cycle.response_complete or self.flow.read_paused:
            return False
        return now_s - self._heard_s > patience.silence_s or now_s - self._began_s > patience.body_s

    def _stop_dropping(self) -> None:
        if self.cycle.response_complete and not self.transport.is_closing():
            self.transport.abort()

    def _begin_exchange(self) -> bool:
        """Answer a worker's request here, unless the one before it is still under way."""
        before: Any = self.cycle
        route = self.door.find(self.url.decode("latin-1"))
        if route is None or self.parser.get_method() != b"POST" or (before and not before.response_complete):
            return False
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        exchange = Exchange(route, self.transport, keep_alive=keep_alive, on_done=self.on_response_complete)
        # Where the server looks for what is under way.
        self.cycle = self._exchange = exchange  # type: ignore[assignment]
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        exchange.begin(self.door, dict(self.headers), self._peer)
        return True

    def _refuse(self, status: bytes, error: StokerError) -> None:
        if self.transport.is_closing():
            return
        body = json_bytes(error.to_dict())
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()


def _is_own_user(transport: asyncio.Transport) -> bool:
    """Return True if a process of our own user, or root's, is at the other end of a Unix socket."""
    link = transport.get_extra_info("socket")
    if link is None or link.family != socket.AF_UNIX:
        return False
    try:
        return user_at(link) in (os.geteuid(), 0)
    except OSError:
        return False


async def watch(connections: Iterable[object], every_s: float) -> None:
    """Look at all connections, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(every_s)
        now_s = loop.time()
        for connection in list(connections):
            if isinstance(connection, Connection):
                connection.look(now_s)
