"""A relay for machines that can't reach the coordinator: `stoker launch watch --relay`, on a host that both reach.

It accepts TCP connections and passes their bytes to the coordinator's address, to no other. The bytes are TLS between
worker and coordinator: the worker verifies the coordinator's certificate under its own name, and the relay reads and
changes nothing. The number of connections is limited, and so is what it buffers of each.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from stoker.core.errors import Unavailable
from stoker.host.network import listen_at

PORT = 7718
"""The default port. It stays the same after a restart: workers have it for as long as they live."""
MOST_CONNECTIONS = 2000
CONNECT_S = 10.0
_PIECE_BYTES = 1 << 16
_START_S = 10.0


class Relay:
    """Passes connections on to one address until closed. Runs in a thread of its own."""

    def __init__(self, host: str, port: int, *, to: tuple[str, int], most: int = MOST_CONNECTIONS) -> None:
        """Listen at an address of this machine; port 0 is any. Raises `Unavailable` if it is taken."""
        self._to = to
        self._most = most
        self._listening = listen_at(host, port)
        self.port: int = self._listening.getsockname()[1]
        self.count = 0
        """Open connections."""
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
            if self.count >= self._most:
                writer.transport.abort()
                return
            task = self._loop.create_task(self._pass_on(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, sock=self._listening, limit=_PIECE_BYTES)
        self._is_ready.set()
        await self._end.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        writers = [writer]
        try:
            opened = asyncio.open_connection(*self._to, limit=_PIECE_BYTES)
            far_reader, far_writer = await asyncio.wait_for(opened, timeout=CONNECT_S)
            writers.append(far_writer)
            # Either direction may end first; the other goes on until it ends, too.
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except (OSError, TimeoutError):
            # The worker sees a connection that ends, and connects again.
            pass
        finally:
            self.count -= 1
            for one in writers:
                one.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if _can_end(writer):
        writer.write_eof()


def _can_end(writer: Any) -> bool:
    return bool(writer.can_write_eof() and not writer.is_closing())
