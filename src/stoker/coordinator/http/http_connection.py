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
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from httptools import parse_url
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoker.coordinator.http.access import PEER, UNKNOWN, Peer, is_loopback
from stoker.coordinator.http.http_messages import LOG, WORD_BYTES, json_bytes, path_of
from stoker.coordinator.http.worker_routes import WorkerExchange, WorkerRoute, WorkerTable
from stoker.core.errors import BadInput, StokerError, TooLarge
from stoker.core.frozen import frozen
from stoker.host.network import source_of
from stoker.host.sockets import user_at
from stoker.host.tls_contexts import read_peer
from stoker.protocol.codec import TOKEN_HEADER, VERSION_HEADER

READ_BYTES = 32 * 1024
"""Read at once: also the most that one connection has parsed before others have their turn."""
BULK_BYTES = 256 * 1024
"""The same in the middle of a large body, of which nothing has to be parsed."""

_SHARED = memoryview(bytearray(BULK_BYTES))


class SizedReadProtocol(asyncio.Protocol):
    """A protocol that says how much may be read for it at once, at most `BULK_BYTES`."""

    read_bytes = READ_BYTES


_GONE = SizedReadProtocol()
"""In the place of a protocol whose connection is lost: what TLS keeps of it is then freed at once, not at some later
collection of cycles, before which a stranger who connects again and again would have filled the memory."""


def _nothing() -> None: ...


class ReadBufferProtocol(asyncio.BufferedProtocol):
    """Stands before a protocol that takes bytes: reads go through one buffer that all connections share.

    The event loop fills it and hands it on within one call, so no other connection uses it meanwhile. With TLS that
    saves a third of what reading and answering costs. How much of it is filled is said by the protocol that gets the
    bytes.
    """

    __slots__ = ("_inner", "_on_lost")

    def __init__(self, inner: SizedReadProtocol, *, on_lost: Callable[[], None] = _nothing) -> None:
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


_AT_ONCE = 16
"""Connections accepted in one turn of the event loop, which serves others in between. uvloop by itself accepts one: a
new client then waits behind all requests.
"""
_PAUSE_S = 0.5
_LINGER_NONE = struct.pack("ii", 1, 0)


@frozen
class ConnectionLimits:
    """Limits of connections, also per address, so that no client uses up all connections.

    Connections are counted from their first packet, before the TLS handshake. Those of this machine are not: local
    programs have easier ways to do harm.
    """

    each: int = 1024
    """Connections of one address: a few for each worker, and there may be many behind one router."""
    strangers_each: int = 256
    """Of those, without a finished TLS handshake."""
    strangers: int = 4096
    """Without one, of all addresses together."""


class ConnectionAcceptor:
    """Accepts connections at a socket, with TLS if it has a context, and passes them on.

    Created inside the event loop.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], SizedReadProtocol],
        context: ssl.SSLContext | None,
        *,
        handshake_s: float,
        backlog: int,
        crowd: ConnectionLimits,
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
        """Accept no more, and cancel handshakes."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listening)
            for one in self._greeting:
                one.cancel()

    async def wait_closed(self) -> None:
        """Wait for cancelled handshakes."""
        if self._greeting:
            await asyncio.wait(self._greeting)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                taken, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors: accept again when some are free.
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
            await self._loop.connect_accepted_socket(
                lambda: ReadBufferProtocol(self._connect(), on_lost=leave), taken, **tls
            )
        except (OSError, asyncio.CancelledError):
            # The TLS handshake failed: no one to answer.
            leave()
            taken.close()
        finally:
            _take_one(self._strangers, source)


def _take_one(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if counts[source] <= 0:
        del counts[source]


@frozen
class ClientLimits:
    """Timeouts and size limits of a client."""

    head_s: float = 15.0
    """For a request's head, from its first byte or from the connection's beginning."""
    silence_s: float = 30.0
    """Without a byte of an announced body, or without reading any of a response."""
    body_s: float = 900.0
    """For a whole body."""
    rate_window_s: float = 10.0
    """Time before the rate of a body is checked, and the window of the rate."""
    rate_bytes: int = 4 * 1024
    """Of a body, in each second of such a window."""
    idle_s: float = 150.0
    """Between requests: more than a heartbeat, so that workers keep their connection."""
    head_bytes: int = 64 * 1024
    """Of a request without its body; chunks may add a quarter of the size of the body."""
    head_fields: int = 100
    """Header fields of a request, trailers included."""
    pieces: int = 512
    """Of a body, of any size; further ones need 32 bytes on average."""
    pipelined: int = 16
    """Requests that wait for the response to an earlier one."""
    dropped_bytes: int = 64 * 1024 * 1024
    """Of a refused body: a client that is disconnected in the middle of it may miss the reason."""
    linger_s: float = 1.0
    """For a client to read a refusal; its bytes are ignored meanwhile."""
    connections: int = 20_000
    crowd: ConnectionLimits = ConnectionLimits()
    """For other machines."""
    look_s: float = 1.0
    """Between two checks of all connections."""


PATIENCE = ClientLimits()
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"origin"}) | frozenset(
    name.lower().encode() for name in (TOKEN_HEADER, VERSION_HEADER)
)
"""Header fields of identity and framing: the checked value and the used one must be the same."""

_FIELDS_TOO_LARGE = b"431 Request Header Fields Too Large"


class _NotRead(Exception):
    """Ends the parsing of received bytes: the rest is not read."""


class ServerConnection(HttpToolsProtocol, SizedReadProtocol):
    """One connection. `look` is called periodically."""

    patience = PATIENCE
    workers: WorkerTable

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = True
        self._is_whole = False
        """The newest request is complete."""
        self._is_ignoring = False
        """Further bytes are ignored: the connection ends after the pending responses."""
        self._framing_bytes = 0
        """Of the newest request, without its body."""
        self._body_bytes = 0
        self._announced_bytes = 0
        """Announced length of the newest request's body; 0 if chunked."""
        self._read_body_bytes = 0
        """Body bytes in the last read."""
        self._pieces = 0
        self._dropped_bytes = 0
        self._trailers = 0
        self._began_s = self._heard_s = self._window_s = self.loop.time()
        self._window_bytes = 0
        """Received body bytes at the beginning of the rate window."""
        self._blocked_s: float | None = None
        self._answered_s = self._began_s
        self._earlier: list[Any] = []
        """Requests before the newest one that are not answered yet."""
        self._peer = UNKNOWN

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Read once: it can't change during a connection; whether it is still valid is checked for each request.
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
            # The timeout of the next request's head starts.
            self._is_in_head, self._is_whole, self._began_s = True, False, self._heard_s
        self._read_body_bytes = 0
        super().data_received(data)
        # A request that began in the middle of them is charged for all of them except bodies.
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
            # A trailer is dropped: nothing may be added to a checked head.
            self._trailers += 1

    def on_headers_complete(self) -> None:
        names = [name for name, _ in self.headers]
        if len(set(names)) < len(names) and any(names.count(name) > 1 for name in _ONCE):
            self._refuse(b"400 Bad Request", BadInput("the request has a header field twice"))
            raise _NotRead
        if len(self.pipeline) >= self.patience.pipelined:
            self._ignore_rest()
            raise _NotRead
        before: Any = self.cycle
        is_queued = before is not None and not before.response_complete
        if is_queued:
            self._earlier.append(before)
        self._window_s, self._window_bytes = self._heard_s, 0
        if b"content-length" in names:
            self._announced_bytes = int(self.headers[names.index(b"content-length")][1])
        path = path_of(self.url.partition(b"?")[0] if self.url.startswith(b"/") else parse_url(self.url).path or b"")
        route = self.workers.find(path)
        if route is None:
            # Raises for a URL without a path: nothing answers this request yet.
            super().on_headers_complete()
            if is_queued:
                # The server reads no more then, and would not notice that the client disconnects. Bodies that wait
                # are bounded as they come.
                self.flow.resume_reading()
        else:
            self._begin_exchange(route, path)
        self._is_in_head = False

    def on_body(self, body: bytes) -> None:
        self._read_body_bytes += len(body)
        self._body_bytes += len(body)
        self._pieces += 1
        if self._pieces > self.patience.pieces + self._body_bytes // 32:
            self._refuse(b"400 Bad Request", BadInput("the body has too many chunks", hint="send larger chunks"))
            raise _NotRead
        cycle: Any = self.cycle
        if cycle.response_complete:
            self._drop(len(body))
        elif type(cycle) is WorkerExchange:
            cycle.take(body)
        else:
            super().on_body(body)
        # The next bytes are only body, and have a memory budget: of a body without one, no more than `WORD_BYTES` are
        # read until it is awaited. Bytes after the body are not read with it.
        left_bytes = self._announced_bytes - self._body_bytes
        is_bulk = left_bytes > READ_BYTES and self._body_bytes > WORD_BYTES and not self.pipeline
        self.read_bytes = min(left_bytes, BULK_BYTES) if is_bulk else READ_BYTES

    def on_message_complete(self) -> None:
        self._is_whole = True
        cycle: Any = self.cycle
        if type(cycle) is WorkerExchange:
            cycle.complete()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answered_s = self.loop.time()
        if self.pipeline:
            super().on_response_complete()
            if self._blocked_s is not None:
                self.flow.pause_reading()
            return
        self._earlier.clear()
        # Without the server's timer for the next request, which costs a tenth of a short request: `look` checks it.
        self.server_state.total_requests += 1
        if not self.transport.is_closing() and self._blocked_s is None:
            self.flow.resume_reading()
        if self._is_ignoring:
            self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # The server has marked the newest request only.
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def pause_writing(self) -> None:
        self._blocked_s = self.loop.time()
        super().pause_writing()
        # A client that does not read its answers sends no further requests.
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        self._blocked_s = None
        super().resume_writing()
        if not self._is_ignoring:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP."""
        if not self._is_ignoring:
            self._refuse(b"400 Bad Request", BadInput(f"invalid HTTP: {msg}"))

    def _unsupported_upgrade_warning(self) -> None:
        # The following bytes are of an unsupported protocol.
        self._ignore_rest()

    def look(self, now_s: float) -> None:
        """End the connection if its client is too slow, with an error response if it can still read one."""
        if not self._is_too_slow(now_s) or self.transport.is_closing():
            return
        if self._blocked_s is None and (self._is_in_head or not self.cycle.response_started):
            self._refuse(b"408 Request Timeout", BadInput("the request timed out", hint="send it again"))
        elif self._blocked_s is None and self._is_whole:
            self.transport.close()
        else:
            self.transport.abort()

    def _is_too_slow(self, now_s: float) -> bool:
        patience = self.patience
        if self._blocked_s is not None and now_s - self._blocked_s > patience.silence_s:
            return True
        if self._is_in_head and not self._is_ignoring:
            return now_s - self._began_s > patience.head_s
        if self._is_ignoring:
            return False
        if self._is_whole:
            return self.cycle.response_complete and now_s - self._answered_s > patience.idle_s
        if self.flow.read_paused:
            # The coordinator is the slow side.
            self._window_s, self._window_bytes = now_s, self._body_bytes
            return False
        is_late = now_s - self._heard_s > patience.silence_s or now_s - self._began_s > patience.body_s
        return is_late or self._is_below_rate(now_s)

    def _is_below_rate(self, now_s: float) -> bool:
        """Return True if the last window had too few bytes of a body; after a window begin the next."""
        window_s = now_s - self._window_s
        if window_s < self.patience.rate_window_s:
            return False
        came_bytes = self._body_bytes - self._window_bytes
        self._window_s, self._window_bytes = now_s, self._body_bytes
        return came_bytes < self.patience.rate_bytes * window_s

    def _drop(self, size_bytes: int) -> None:
        """Count discarded bytes, and abort the connection if there are too many."""
        self._dropped_bytes += size_bytes
        if self._dropped_bytes > self.patience.dropped_bytes and not self.transport.is_closing():
            self.transport.abort()

    def _ignore_rest(self) -> None:
        """Read nothing more: the connection ends after the pending responses."""
        self._is_ignoring = True
        self._stop_reading()
        if self.cycle.response_complete:
            self._end_soon()

    def _end_soon(self) -> None:
        """End the connection once its client had time to read the last response.

        Closing it at once would continue to read with TLS, and may discard the response without.
        """
        self._stop_reading()
        self.loop.call_later(self.patience.linger_s, self.transport.abort)

    def _stop_reading(self) -> None:
        if self.transport.is_reading():
            self.transport.pause_reading()
        # No pending request resumes it.
        self.flow.read_paused = False

    def _begin_exchange(self, route: WorkerRoute, path: str) -> None:
        """Answer a worker's request here, behind those before it."""
        before: Any = self.cycle
        exchange: Any = WorkerExchange(self, self.workers, route, path, self._peer)
        # Where the server looks for the current request.
        self.cycle = exchange
        if before is None or before.response_complete:
            exchange.begin()
        else:
            self.pipeline.appendleft((exchange, self.app))

    def _refuse(self, status: bytes, error: StokerError) -> None:
        """Answer with an error, read nothing more, and end; without mixing it into a pending response."""
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
            # The handler of this request may stop.
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
    """Check all connections periodically."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(every_s)
        now_s = loop.time()
        for connection in list(connections):
            if isinstance(connection, ServerConnection):
                try:
                    connection.look(now_s)
                except Exception:  # noqa: BLE001 - the other connections are still checked
                    LOG.exception("a connection could not be checked")
