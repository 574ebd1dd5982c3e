"""A relay for machines that can't reach the coordinator: `stoker launch watch --relay`, on a host that both reach.

It accepts TCP connections and passes their bytes to the coordinator's address, to no other. The bytes are TLS between
worker and coordinator: the worker verifies the coordinator's certificate under its own name, and the relay reads and
changes nothing. The number of connections is limited, in all, of each address and of each IPv6 network, and so is what
it buffers of each. A connection whose one direction has ended is closed soon after, and one whose peer vanished is
found by keepalive.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from stoker.core.errors import Unavailable
from stoker.host.network import listen_addresses, listen_at, source_of

PORT = 7718
"""The default port. It stays the same after a restart: workers have it for as long as they live."""
MOST_CONNECTIONS = 900
MOST_OF_ADDRESS = 64
MOST_OF_NETWORK = 450
"""Of a /64 of IPv6, all of which one machine may have. All nodes of a cluster may share one too."""
CONNECT_S = 10.0
END_S = 30.0
"""After the end of one direction, the other one has this long."""
FAR_END_S = 5.0
"""The same after the coordinator's end: it reads no more."""
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_PIECE_BYTES = 1 << 16
_START_S = 10.0


class Relay:
    """Passes connections on to one address until closed. Runs in a thread of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        to: tuple[str, int],
        most: int = MOST_CONNECTIONS,
        most_of_address: int = MOST_OF_ADDRESS,
        end_s: float = END_S,
    ) -> None:
        """Listen at the addresses that a name has on this machine; port 0 is any. Raises `Unavailable` if it is taken.

        Where the name has none of this machine's addresses, listen at all.
        """
        self._to = to
        self._most = most
        self._most_of_address = most_of_address
        self._end_s = end_s
        self._listening: list[socket.socket] = []
        if_taken = f"--relay {f'[{host}]' if ':' in host else host}:PORT takes another port"
        with ExitStack() as held:
            for address in listen_addresses(host):
                self._listening.append(held.enter_context(listen_at(address, port, if_taken=if_taken)))
                port = self._listening[0].getsockname()[1]
            held.pop_all()
        self.port = port
        self.count = 0
        """Open connections."""
        self._count_of_address: Counter[str] = Counter()
        self._count_of_network: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-relay", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(_START_S):
            raise Unavailable(f"the relay at port {self.port} does not start")

    def close(self) -> None:
        """Close the port and all connections."""
        if self._end is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._is_ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # None of a connection that has ended meanwhile.
            address = (writer.get_extra_info("peername") or ("",))[0]
            if self._is_full(address):
                writer.transport.abort()
                return
            self.count += 1
            self._count_of_address[address] += 1
            self._count_of_network[source_of(address)] += 1
            task = self._loop.create_task(self._pass_on(reader, writer))
            tasks.add(task)
            task.add_done_callback(partial(ended, address, writer))

        def ended(address: str, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            writer.transport.abort()
            self.count -= 1
            for counter, source in ((self._count_of_address, address), (self._count_of_network, source_of(address))):
                counter[source] -= 1
                if not counter[source]:
                    del counter[source]

        servers = [await asyncio.start_server(accept, sock=one, limit=_PIECE_BYTES) for one in self._listening]
        self._is_ready.set()
        await self._end.wait()
        for server in servers:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The sockets of aborted connections are closed in the loop's next turn.
        await asyncio.sleep(0)

    def _is_full(self, address: str) -> bool:
        return (
            self.count >= self._most
            or self._count_of_address[address] >= self._most_of_address
            or self._count_of_network[source_of(address)] >= MOST_OF_NETWORK
        )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        copies: list[asyncio.Task[None]] = []
        try:
            opened = asyncio.open_connection(*self._to, limit=_PIECE_BYTES)
            far_reader, far_writer = await asyncio.wait_for(opened, timeout=CONNECT_S)
            writers.append(far_writer)
            for one in writers:
                _keep_alive(one.get_extra_info("socket"))
            copies += map(self._loop.create_task, (_copy(reader, far_writer), _copy(far_reader, writer)))
            ended, others = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            # One of them may have failed.
            await asyncio.gather(*ended)
            end_s = self._end_s if copies[0] in ended else min(self._end_s, FAR_END_S)
            await asyncio.wait_for(_finish(others, writers), timeout=end_s)
        except (OSError, TimeoutError):
            # The worker sees a connection that ends, and connects again.
            pass
        finally:
            for copy in copies:
                copy.cancel()
            for one in writers:
                one.transport.abort()
            await asyncio.gather(*copies, return_exceptions=True)


def _keep_alive(line: socket.socket) -> None:
    """Find out within minutes if the peer is gone."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _finish(copies: Iterable[asyncio.Task[None]], writers: Sequence[asyncio.StreamWriter]) -> None:
    await asyncio.gather(*copies)
    # What is buffered is still sent.
    for one in writers:
        one.close()
    await asyncio.gather(*(one.wait_closed() for one in writers))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if _can_end(writer):
        writer.write_eof()


def _can_end(writer: Any) -> bool:
    return bool(writer.can_write_eof() and not writer.is_closing())
