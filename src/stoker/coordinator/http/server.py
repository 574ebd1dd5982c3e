"""The server process: a server in the main thread's event loop, its start, reload and graceful shutdown.

SIGTERM or Ctrl-C: stop accepting, answer open requests, finish pending ones, exit with 143 or 130; a second one exits
at once. SIGHUP: reload cluster file and manifest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import uvicorn

from stoker.coordinator.http.http_connection import (
    PATIENCE,
    ClientLimits,
    ConnectionAcceptor,
    ReadBufferProtocol,
    ServerConnection,
    SizedReadProtocol,
    watch,
)
from stoker.coordinator.http.http_messages import LOG, App
from stoker.coordinator.http.worker_routes import WorkerTable
from stoker.core.errors import INTERRUPTED, TERMINATED, StokerError
from stoker.core.frozen import frozen

GRACE_S = 10.0
"""Grace period for running requests after the shutdown began."""
_ENDINGS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class HostedService(Protocol):
    """The served application, created inside the event loop."""

    @property
    def app(self) -> App: ...

    @property
    def workers(self) -> WorkerTable: ...

    def close(self) -> None:
        """Answer all open requests; the shutdown has begun."""

    def end(self) -> None:
        """Release everything; called after the last request."""

    async def reload(self) -> None:
        """Reload the files."""


@frozen
class Tls:
    """TLS context, and the renewal of its certificate."""

    context: ssl.SSLContext
    refresh: Callable[[], bool]
    """Makes and loads a new certificate if due, and returns True then. Blocks briefly."""
    every_s: float = 3600.0


@frozen
class CoordinatorSocket:
    """The Unix socket for processes of our own user."""

    listener: socket.socket
    renew: Callable[[], socket.socket | None]
    """Keeps the socket's name from being deleted as old; returns another listener if it was deleted. Blocks briefly."""
    every_s: float = 600.0


@frozen
class CoordinatorWatchdog:
    """A watchdog that restarts the coordinator if it stops reporting."""

    beat: Callable[[], None]
    every_s: float


@frozen
class ServerSetup:
    """Parameters of a server."""

    listening: socket.socket
    make: Callable[[], HostedService]
    on_ready: Callable[[], None]
    say: Callable[[str], None]
    leave: Callable[[int], None] = os._exit
    patience: ClientLimits = PATIENCE
    tls: Tls | None = None
    """None: plain HTTP, for loopback only."""
    local: CoordinatorSocket | None = None
    pulse: CoordinatorWatchdog | None = None
    """The watchdog, which gets a beat while the event loop runs."""
    before_end: Callable[[], None] = lambda: None
    """Called in another thread after the first signal; until it returns, requests are answered."""


class CoordinatorServer:
    """A coordinator that runs until a signal, or `stop` in another thread, ends it."""

    def __init__(self, stage: ServerSetup) -> None:
        self._stage = stage
        self._code = 0
        self._is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._served: HostedService | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def run(self) -> int:
        """Serve, and return the exit code."""
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(self._run())

    def stop(self) -> None:
        """Shut down in order, after it was ready. Thread-safe."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_end)

    async def _run(self) -> int:
        stage = self._stage
        self._loop = asyncio.get_running_loop()
        served = self._served = stage.make()
        server = self._server = _Server(_config(served, stage.patience))
        server.on_started, server.tls, server.patience = stage.on_ready, stage.tls, stage.patience
        server.local = stage.local.listener if stage.local is not None else None
        beside = [asyncio.ensure_future(watch(server.server_state.connections, stage.patience.look_s))]
        if stage.tls is not None:
            beside.append(asyncio.ensure_future(self._keep_fresh(stage.tls)))
        if stage.local is not None:
            beside.append(asyncio.ensure_future(self._keep_local(stage.local, server)))
        if stage.pulse is not None:
            beside.append(asyncio.ensure_future(_beat(stage.pulse)))
        try:
            with self._signals():
                await server.serve(sockets=[stage.listening])
        finally:
            for one in beside:
                one.cancel()
                with suppress(asyncio.CancelledError):
                    await one
            served.end()
        return self._code

    async def _keep_fresh(self, tls: Tls) -> None:
        """Renew the certificate periodically: it expires, and this machine's addresses change."""
        while True:
            await asyncio.sleep(tls.every_s)
            try:
                if await asyncio.to_thread(tls.refresh):
                    self._stage.say("renewed the server's certificate")
            except Exception:  # noqa: BLE001 - the old one is valid for weeks; retried
                LOG.exception("could not renew the server's certificate")

    async def _keep_local(self, local: CoordinatorSocket, server: _Server) -> None:
        """Renew the Unix socket periodically, and serve at a new one if it was deleted."""
        while True:
            await asyncio.sleep(local.every_s)
            try:
                listener = await asyncio.to_thread(local.renew)
                if listener is not None:
                    await server.move_local(listener)
                    self._stage.say("this coordinator's Unix socket was deleted; it was created again")
            except StokerError as error:
                self._stage.say(f"could not renew this coordinator's Unix socket: {error.message}")
            except Exception:  # noqa: BLE001 - connections stay, and it is retried
                LOG.exception("could not renew the Unix socket")

    @contextmanager
    def _signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        taken = []
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ():
            # A signal that was ignored at the start (nohup) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._reload if number == signal.SIGHUP else self._end, number)
                taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _end(self, number: signal.Signals) -> None:
        if self._is_ending:
            self._stage.say("exiting now")
            self._stage.leave(_ENDINGS[number])
            return
        self._code, self._is_ending = _ENDINGS[number], True
        self._stage.say("stopping… (a second signal exits at once)")
        self._closing = asyncio.ensure_future(self._end_in_order())

    async def _end_in_order(self) -> None:
        try:
            await asyncio.to_thread(self._stage.before_end)
        except Exception:  # noqa: BLE001 - it ends all the same
            LOG.exception("could not end what belongs to the coordinator")
        self._begin_end()

    def _begin_end(self) -> None:
        self._is_ending = True
        if self._served is not None:
            self._served.close()
        if self._server is not None:
            self._server.should_exit = True

    def _reload(self, _number: signal.Signals) -> None:
        if self._served is not None and self._reloading is None:
            self._reloading = asyncio.ensure_future(self._read_again(self._served))

    async def _read_again(self, served: HostedService) -> None:
        try:
            await served.reload()
        except Exception:  # noqa: BLE001 - the coordinator continues
            LOG.exception("reload: internal error, continuing")
        finally:
            self._reloading = None


async def _beat(pulse: CoordinatorWatchdog) -> None:
    while True:
        pulse.beat()
        await asyncio.sleep(pulse.every_s)


class _Server(uvicorn.Server):
    """A server that ignores signals, reports when it listens, and limits handshakes."""

    on_started: Callable[[], None] | None = None
    tls: Tls | None = None
    local: socket.socket | None = None
    patience = PATIENCE
    _at_local: Any = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        context = None if self.tls is None else self.tls.context
        limits: Any = {"handshake_s": self.patience.head_s, "crowd": self.patience.crowd}
        servers: list[Any] = [
            ConnectionAcceptor(one, self._connect, context, backlog=self.config.backlog, **limits)
            for one in sockets or ()
        ]
        self.servers = servers
        if self.local is not None:
            await self.move_local(self.local)
        self.started = True
        if self.on_started is not None:
            self.on_started()

    async def move_local(self, listener: socket.socket) -> None:
        """Serve our own user at this Unix socket; connections of the one before stay."""
        loop, before = asyncio.get_running_loop(), self._at_local
        self._at_local = await loop.create_unix_server(self._plain, sock=listener, backlog=self.config.backlog)
        self.servers.append(self._at_local)
        if before is not None:
            self.servers.remove(before)
            before.close()

    def _connect(self) -> SizedReadProtocol:
        make: Any = self.config.http_protocol_class
        made: SizedReadProtocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def _plain(self) -> ReadBufferProtocol:
        return ReadBufferProtocol(self._connect())


def _config(served: HostedService, patience: ClientLimits) -> uvicorn.Config:
    class Patient(ServerConnection):
        pass

    Patient.patience = patience
    Patient.workers = served.workers
    return uvicorn.Config(
        served.app,
        http=Patient,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        # A line for each request that is not HTTP would let anyone fill the log.
        log_level="error",
        date_header=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_graceful_shutdown=int(GRACE_S),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ModuleNotFoundError:
        return None
    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]
