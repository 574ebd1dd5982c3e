"""A real coordinator of this test process: its queue on a real database, served over HTTP from a thread.

    with coordinator(url, tmp_path) as fleet:
        fleet.client().submit(…)

Threads that serve end with the block; what it kept stays in the folder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.app.coordinator_app import CoordinatorTls
from stoker.coordinator.auth import Revocations
from stoker.coordinator.database.database import open_database
from stoker.coordinator.http.access import rules_for
from stoker.coordinator.http.app_state import CoordinatorInfo
from stoker.coordinator.http.http_app import CoordinatorParts, CoordinatorService
from stoker.coordinator.http.http_connection import PATIENCE, ClientLimits
from stoker.coordinator.http.pages import read_public_url
from stoker.coordinator.http.reload import CoordinatorFiles
from stoker.coordinator.http.server import CoordinatorServer, CoordinatorSocket, ServerSetup
from stoker.coordinator.http.server_options import ServeOptions
from stoker.coordinator.http.sessions import Sessions
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import Clock, SystemClock
from stoker.core.frozen import changed
from stoker.core.leases import Budgets, FleetTimes
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings
from stoker.host.network import listen_at
from stoker.host.sockets import DaemonSocket, NamedSocket
from stoker.protocol.client import FleetClient
from stoker.protocol.codec import StrictRequest
from stoker.protocol.discovery import socket_folders, socket_name
from stoker.protocol.transport import CoordinatorRequest
from stoker.protocol.view_messages import ChangeRequest, DoneView
from stoker.scheduler.scheduler import Scheduler
from stoker.web.assets import Pages

TOKEN = "a-token-for-tests-only"
PATIENCE_S = 60.0


@dataclass(slots=True)
class Fleet:
    """One coordinator that serves."""

    url: str
    queue: Queue
    keeping: CoordinatorStorage
    stop: Callable[[], None]
    said: list[str] = field(default_factory=list)
    transports: list[Urllib3Transport] = field(default_factory=list)
    secure: CoordinatorTls | None = None
    """How it speaks TLS, if it does."""
    socket: str = ""
    """Its Unix socket, where commands of this user look for it."""

    def client(self, *, token: str | None = None, certificate_file: str = "") -> FleetClient:
        """Return a client, closed with the coordinator: of its own user over its socket, or over TCP with a token."""
        fleet = None
        if self.secure is not None:
            fleet = FleetIdentity(ca_file=self.secure.ca_file, certificate_file=certificate_file)
            token = TOKEN if token is None else token
        elif token is None:
            fleet = FleetIdentity(sockets=(self.socket,))
        transport = Urllib3Transport(HttpSettings(user_agent="test", fleet=fleet))
        self.transports.append(transport)
        return FleetClient(transport, self.url, clock=SystemClock(), token=token or "")


def change_job(client: FleetClient, ref: str, verb: str, body: StrictRequest | None = None) -> DoneView:
    """Change a job by its name, as programs do that are not Stoker's client: that one names jobs by their ids."""
    path = f"/v1/jobs/{ref.replace('/', '%2F')}/{verb}"
    return client.transport.ask(CoordinatorRequest(path=path, method="POST", body=body or ChangeRequest()), DoneView)


@contextmanager
def coordinator(  # noqa: PLR0915 - one part after the other
    url: str,
    folder: Path,
    *,
    times: FleetTimes | None = None,
    clock: Clock | None = None,
    patience: ClientLimits = PATIENCE,
    host: str = "127.0.0.1",
    is_secure: bool = False,
    files: dict[str, Any] | None = None,
    system_a: bool = False,
    renew_s: float = 600.0,
    environment: dict[str, str] | None = None,
    has_pages: bool = False,
    public_url: str = "",
) -> Iterator[Fleet]:
    """Serve a database until the block ends."""
    public = read_public_url(public_url) if public_url else None
    clock, times = clock or SystemClock(), times or FleetTimes()
    with ExitStack() as held:
        keeping = CoordinatorStorage(str(folder / "fleet"), clock, environment=environment)
        held.callback(keeping.close)
        database = open_database(url, clock=clock)
        held.callback(database.close)
        queue = Queue(
            database,
            clock=clock,
            times=times,
            budgets=Budgets(),
            scheduler=Scheduler(),
            has_object=keeping.has_archive,
            revocations=Revocations(str(folder / "state" / "authority" / "revoked")),
        )
        held.callback(queue.close)
        listening = held.enter_context(listen_at(host, 0))
        port = listening.getsockname()[1]
        about = CoordinatorInfo(version="test", database=database.shown, started_s=clock.wall_s(), times=times)
        secure = None
        if is_secure:
            secure = CoordinatorTls(str(folder / "state"), ServeOptions(), host=host, port=port, clock=clock)
        parts = CoordinatorParts(
            queue=queue,
            keeping=keeping,
            files=CoordinatorFiles(queue, **files or {}),
            about=about,
            clock=clock,
            enrolment=secure.enrolment() if secure is not None else None,
        )
        if has_pages:
            prefix = public.prefix if public is not None else ""
            sessions = Sessions(clock, instance=f"test {port}", is_secure=is_secure, prefix=prefix)
            parts = changed(parts, pages=Pages().answer, sessions=sessions)
        rules = changed(rules_for(token=TOKEN, host=host, port=port, public=public), system_a=system_a)
        if secure is not None:
            rules = changed(rules, hosts=frozenset())
        door = NamedSocket(socket_folders(os.environ)[0], socket_name(host, port))
        local = DaemonSocket.open(door)
        assert local is not None
        held.callback(local.close)
        said: list[str] = []
        is_ready = threading.Event()
        running = CoordinatorServer(
            ServerSetup(
                listening=listening,
                make=lambda: CoordinatorService(parts, rules, say=said.append),
                on_ready=is_ready.set,
                say=said.append,
                patience=patience,
                tls=secure.tls() if secure is not None else None,
                local=CoordinatorSocket(listener=local.listener, renew=local.renew, every_s=renew_s),
            )
        )
        thread = threading.Thread(target=running.run, name="coordinator", daemon=True)
        thread.start()
        assert is_ready.wait(PATIENCE_S), "the coordinator did not come up"

        def stop() -> None:
            running.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the coordinator did not end"

        held.callback(stop)
        fleet = Fleet(f"http{'s' if is_secure else ''}://{host}:{port}", queue, keeping, stop, said)
        fleet.secure, fleet.socket = secure, door.path
        held.callback(lambda: [transport.close() for transport in fleet.transports])
        yield fleet
