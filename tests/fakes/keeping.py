"""A whole worker in a thread: a real keeper with real children, and a coordinator in memory."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from stoker.api.app_parts import read_settings
from stoker.app import App
from stoker.core.capability import Capability
from stoker.core.errors import StokerError, Terminated
from stoker.core.frozen import changed
from stoker.devices.admission import MachineMemory
from stoker.protocol.client import FleetClient
from stoker.worker.attempt_process import Worker
from stoker.worker.coordinator_calls import WorkerConnections
from stoker.worker.daemon import Daemon
from stoker.worker.machine_checks import LocalMachine, MachineOffer
from stoker.worker.worker_state import Journal, WorkerPolicy
from tests.fakes.coordinator import PATIENCE_S, FakeCoordinator

GIB = 1 << 30


class Keep:
    """One worker; a block in which it works."""

    def __init__(self, folder: Path, fleet: FakeCoordinator, **wishes: Any) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STOKER")}
        self.home = folder / "home"
        self.environment = {
            **inherited,
            "STOKER_HOME": str(self.home),
            "STOKER_LEDGER": str(folder / "ledger"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self.folder = folder
        self.fleet = fleet
        self.house = App(read_settings(self.environment, str(folder)))
        self.house.make_state()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.machine = LocalMachine(
            offer=MachineOffer(Capability(hostname="desk", os="Linux", arch="any", cpu_cores=2, cpu_threads=2)),
            catalogue=self.house.catalogue,
            environment=self.environment,
            own_prefix=sys.prefix,
            home=str(folder),
            ledger=lambda: self.house.ledger,
            memory=lambda: MachineMemory(total_bytes=16 * GIB, available_bytes=8 * GIB),
            disk=lambda _path: 100 * GIB,
        )
        self.wishes = WorkerPolicy(**{"slots": 1, "stop_grace_s": 2.0, **wishes})
        self.preparing: Any = None
        self.detect: Callable[[], Capability] | None = None
        self.code: int | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self.daemon = Daemon(self._worker(), self._journal())
        self._thread = threading.Thread(target=self._run, name="keeper")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
        if kind is not None:
            self.leave()
        self.join()
        self.house.close()

    def leave(self, error: type[StokerError] = Terminated) -> None:
        self.daemon.leave(error, "the test is over")

    def join(self) -> int | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"it does not end: {self.told}"
        if self.error is not None:
            raise self.error
        return self.code

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]

    def until_told(self, kind: str) -> dict[str, Any]:
        self.fleet.until(lambda: kind in self.kinds(), what=lambda: f"no {kind}: {self.told}")
        return next(fields for told, fields in self.told if told == kind)

    def _run(self) -> None:
        try:
            self.code = self.daemon.run()
        except BaseException as error:  # noqa: BLE001 - the test gets it
            self.error = error

    def _journal(self) -> Journal:
        journal = Journal(os.path.join(self.house.settings.state, "worker", "desk"))
        journal.open()
        return journal

    def _worker(self) -> Worker:
        settings, fleet = self.house.settings, self.fleet
        client = cast(FleetClient, fleet)
        return Worker(
            name="desk",
            wishes=self.wishes,
            slots=self.wishes.slots,
            declared={},
            version="test",
            lines=WorkerConnections(url=fleet.url, words=client, bytes=client, ask=lambda: fleet),
            machine=self.machine,
            argv=(sys.executable, "-P", "-m", "stoker.app.attempt_main"),
            folder=settings.folder,
            state=settings.state,
            place=os.path.join(settings.state, "worker", "desk"),
            runs=settings.runs,
            scratch=settings.scratch,
            store=lambda: self.house.store,
            clock=self.house.clock,
            entropy=self.house.entropy,
            new_word=lambda: secrets.token_hex(16),
            tell=lambda kind, fields: self.told.append((kind, fields)),
            preparing=self.preparing,
            detect=self.detect,
        )

    def look_as(self, **fields: Any) -> None:
        """Let the machine be another one, before it works."""
        self.machine = changed(self.machine, **fields)
