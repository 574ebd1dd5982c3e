"""One client's connection: every byte of a request is bounded, and a client that is too slow is disconnected.

What a request has beside its body (request line, header fields, chunk sizes and extensions, trailers, empty lines) is
counted as it arrives; trailers are dropped. Requests that do not wait for the answer before them are queued up to a
limit; what follows the last of them is not read, and the connection ends after its answer. A client that sends
nothing, sends its head or its body too slowly, or does not read its answer is disconnected by a check that runs every
second, so that a quick one pays nothing for it. What requests mean is not known here.
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
from stoker.coordinator.service.buffered import BULK_BYTES, READ_BYTES, Reader
from stoker.coordinator.service.exchange import Door, Exchange
from stoker.coordinator.service.intake import WORD_BYTES
from stoker.coordinator.service.speech import LOG, json_bytes
from stoker.coordinator.service.who import PEER
from stoker.host.door import user_at
from stoker.host.tls.peer import read_peer
from stoker.model.errors import BadInput, StokerError
from stoker.model.fleet_errors import TooLarge
from stoker.model.frozen import frozen
from stoker.wire.protocol import TOKEN_HEADER, VERSION_HEADER


@frozen
class Patience:
    """How long a client may take, and how much it may send."""

    head_s: float = 15.0
    """For a request's head, from its first byte or from the connection's beginning."""
    silence_s: float = 30.0
    """Without a byte of a body that was announced, or without reading any of an answer."""
    body_s: float = 900.0
    """For a whole body."""
    rate_window_s: float = 10.0
    """How long a body may take before its rate counts, and over what time the rate is taken."""
    rate_bytes: int = 4 * 1024
    """Of a body, in each second of such a window."""
    idle_s: float = 150.0
    """Between requests: more than a heartbeat, so that workers keep their connection."""
    head_bytes: int = 64 * 1024
    """Of all that a request has beside its body; chunks may add a quarter of the size of the body."""
    head_fields: int = 100
    """Header fields of a request, trailers included."""
    pieces: int = 512
    """Of a body, whatever their size; further ones have 32 bytes on average."""
    pipelined: int = 16
    """Requests that wait for the answer to the one before them."""
    dropped_bytes: int = 64 * 1024 * 1024
    """Of a body that was refused already: a client that is disconnected in the middle of it may miss why."""
    linger_s: float = 1.0
    """For a client to read why it was refused; it is not heard meanwhile."""
    connections: int = 20_000
    crowd: Crowd = Crowd()
    """Of one address, where others than this machine may connect."""
    look_s: float = 1.0
    """Between two looks at all connections."""


PATIENCE = Patience()
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"origin"}) | frozenset(
    name.lower().encode() for name in (TOKEN_HEADER, VERSION_HEADER)
)
"""Header fields that say who asks, or where a request ends: what is judged and what is used must be the same."""

_FIELDS_TOO_LARGE = b"431 Request Header Fields Too Large"


class _NotRead(Exception):
    """Ends the parsing of what has come: the rest of it is not read."""


class Connection(HttpToolsProtocol, Reader):
    """One connection. `look` is called now and then."""

    patience = PATIENCE
    door: Door

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.timeout_keep_alive = self.patience.idle_s  # type: ignore[assignment]  # a timer takes fractions, too
        self._is_in_head = True
        self._is_whole = False
        """All of the newest request has come."""
        self._is_ignoring = False
        """What else comes is not read: the connection ends with the answers that are under way."""
        self._framing_bytes = 0
        """Of the newest request, all that is not its body."""
        self._body_bytes = 0
        self._announced_bytes = 0
        """Of the newest request's body, as its head says; 0 if it comes in chunks."""
        self._read_body_bytes = 0
        """Of bodies, in what was read last."""
        self._pieces = 0
        self._dropped_bytes = 0
        self._trailers = 0
        self._began_s = self._heard_s = self._window_s = self.loop.time()
        self._window_bytes = 0
        """How much of the body had come when the window of its rate began."""
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
        if self._is_ignoring:
            return
        self._heard_s = self.loop.time()
        if self._is_whole and self.cycle.response_complete:
            # Whatever these bytes are, time runs for the head of the next request.
            self._is_in_head, self._is_whole, self._began_s = True, False, self._heard_s
        self._read_body_bytes = 0
        super().data_received(data)
        # A request that began in the middle of them is charged for all of them but bodies.
        self._framing_bytes += len(data) - self._read_body_bytes
        if self._framing_bytes > self.patience.head_bytes + self._body_bytes // 4:
            what = "the head of the request is too large" if self._is_in_head else "the request is mostly not its body"
            self._refuse(_FIELDS_TOO_LARGE, TooLarge(what))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[PEER] = self._peer
        self._is_in_head, self._is_whole = True, False
        self._framing_bytes = self._body_bytes = self._pieces = self._dropped_bytes = self._trailers = 0
        self._announced_bytes = 0
        self._began_s = self._heard_s

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) + self._trailers >= self.patience.head_fields:
            what = f"the request has more than {self.patience.head_fields} header fields"
            self._refuse(_FIELDS_TOO_LARGE, TooLarge(what))
            raise _NotRead
        if self._is_in_head:
            super().on_header(name, value)
        else:
            # A trailer is dropped: nothing may be added to a head that was judged.
            self._trailers += 1

    def on_headers_complete(self) -> None:
        names = [name for name, _ in self.headers]
        if len(set(names)) < len(names) and any(names.count(name) > 1 for name in _ONCE):
            self._refuse(b"400 Bad Request", BadInput("a header field of the request stands there twice"))
            raise _NotRead
        if len(self.pipeline) >= self.patience.pipelined:
            self._ignore_rest()
            raise _NotRead
        self._window_s, self._window_bytes = self._heard_s, 0
        if b"content-length" in names:
            self._announced_bytes = int(self.headers[names.index(b"content-length")][1])
        if not self._begin_exchange():
            # Raises for a URL without a path: nothing answers this request yet.
            super().on_headers_complete()
        self._is_in_head = False

    def on_body(self, body: bytes) -> None:
        self._read_body_bytes += len(body)
        self._body_bytes += len(body)
        self._pieces += 1
        if self._pieces > self.patience.pieces + self._body_bytes // 32:
            self._refuse(b"400 Bad Request", BadInput("the body comes in too many pieces", hint="send larger chunks"))
            raise _NotRead
        cycle: Any = self.cycle
        if cycle.response_complete:
            self._drop(len(body))
        elif isinstance(cycle, Exchange):
            cycle.take(body)
        else:
            super().on_body(body)
        # What comes next is nothing but body, and there is room for it: of one without, no more than `WORD_BYTES` are
        # read, and then nothing until it is waited for. What follows the body is not read with it.
        left_bytes = self._announced_bytes - self._body_bytes
        is_bulk = left_bytes > READ_BYTES and self._body_bytes > WORD_BYTES and not self.pipeline
        self.read_bytes = min(left_bytes, BULK_BYTES) if is_bulk else READ_BYTES

    def on_message_complete(self) -> None:
        self._is_whole = True
        cycle: Any = self.cycle
        if isinstance(cycle, Exchange):
            cycle.act()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._exchange = None
        is_last = not self.pipeline
        super().on_response_complete()
        if self._is_ignoring and is_last:
            self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._exchange is not None:
            self._exchange.leave()
        super().connection_lost(exc)
        # Also after an error, as an end without TLS's goodbye is one: the timer would hold all of this for a minute.
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        self._blocked_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._blocked_s = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        if not self._is_ignoring:
            self._refuse(b"400 Bad Request", BadInput(f"that is not HTTP: {msg}"))

    def _unsupported_upgrade_warning(self) -> None:
        # What follows is of a protocol that is not spoken here.
        self._ignore_rest()

    def look(self, now_s: float) -> None:
        """End the connection if its client has taken too long, and say why while it may still be listening."""
        if not self._is_too_slow(now_s) or self.transport.is_closing():
            return
        if self._blocked_s is None and (self._is_in_head or not self.cycle.response_started):
            self._refuse(b"408 Request Timeout", BadInput("the request came too slowly", hint="send it again"))
        else:
            self.transport.abort()

    def _is_too_slow(self, now_s: float) -> bool:
        patience = self.patience
        if self._blocked_s is not None and now_s - self._blocked_s > patience.silence_s:
            return True
        if self._is_in_head and not self._is_ignoring:
            return now_s - self._began_s > patience.head_s
        if self._is_whole or self._is_ignoring:
            return False
        if self.flow.read_paused:
            # The client waits for the coordinator.
            self._window_s, self._window_bytes = now_s, self._body_bytes
            return False
        is_late = now_s - self._heard_s > patience.silence_s or now_s - self._began_s > patience.body_s
        return is_late or self._is_below_rate(now_s)

    def _is_below_rate(self, now_s: float) -> bool:
        """Say whether less of a body came in the last window than has to; of one that is over, begin the next."""
        window_s = now_s - self._window_s
        if window_s < self.patience.rate_window_s:
            return False
        came_bytes = self._body_bytes - self._window_bytes
        self._window_s, self._window_bytes = now_s, self._body_bytes
        return came_bytes < self.patience.rate_bytes * window_s

    def _drop(self, size_bytes: int) -> None:
        """Count what nobody reads, and end the connection if it is too much."""
        self._dropped_bytes += size_bytes
        if self._dropped_bytes > self.patience.dropped_bytes and not self.transport.is_closing():
            self.transport.abort()

    def _ignore_rest(self) -> None:
        """Read nothing more: the connection ends once what is under way has been answered."""
        self._is_ignoring = True
        self._stop_reading()
        if self.cycle.response_complete:
            self._end_soon()

    def _end_soon(self) -> None:
        """End the connection once its client had time to read the last answer.

        To close it at once would read on where TLS is spoken, and may take the answer back where it is not.
        """
        self._stop_reading()
        self.loop.call_later(self.patience.linger_s, self.transport.abort)

    def _stop_reading(self) -> None:
        if self.transport.is_reading():
            self.transport.pause_reading()
        # Nothing that is under way resumes it.
        self.flow.read_paused = False

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
        exchange.begin(self.door, dict(self.headers), self._peer)
        if self.expect_100_continue and not exchange.response_complete:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _refuse(self, status: bytes, error: StokerError) -> None:
        """Answer with an error, read nothing more, and end; an answer that is under way is not mixed up with it."""
        if self._is_ignoring or self.transport.is_closing():
            return
        cycle: Any = self.cycle
        if self._is_in_head and cycle is not None and not cycle.response_complete:
            self._ignore_rest()
            return
        self._is_ignoring = True
        if not self._is_in_head:
            if self.pipeline or cycle.response_started:
                self.transport.abort()
                return
            # What answers this request need not go on.
            cycle.disconnected = True
            cycle.message_event.set()
        body = json_bytes(error.to_dict())
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self._end_soon()


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
                try:
                    connection.look(now_s)
                except Exception:  # noqa: BLE001 - the other connections are still looked at
                    LOG.exception("a connection could not be checked")
