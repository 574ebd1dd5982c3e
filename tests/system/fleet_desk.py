"""A coordinator asked from within a test, without a process for each question."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.core.clock import SystemClock
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, job_id
from stoker.core.machine import Requirements
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import read_http_settings
from stoker.protocol.client import FleetClient
from stoker.protocol.discovery import find_coordinator
from stoker.protocol.job_messages import Submission


class FleetDesk:
    """Submits programs and says how jobs stand."""

    def __init__(self, url: str, home: Path) -> None:
        found = find_coordinator(url, environment={}, state=str(home / "state"))
        assert found is not None
        settings = read_http_settings({"no_proxy": "*"}, user_agent="test")
        self._transport = Urllib3Transport(changed(settings, fleet=found.identity))
        # The release before this one has no socket.
        is_local = found.identity is not None and bool(found.identity.sockets)
        token = "" if is_local else (home / "state" / "operator.token").read_text().strip()
        self.client = FleetClient(self._transport, url, clock=SystemClock(), token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transport.close()

    def submit(self, name: str, *argv: str, folder: Path, **more: Any) -> None:
        """Want a program to run."""
        args = {"argv": list(argv), "params": {"nonce": os.urandom(4).hex()}}
        needs = Requirements(ram_bytes=1 << 28, **more.pop("needs", {}))
        wanted = job_id(recipe="command", schema_version=1, args=args)
        order = JobSpec(
            id=wanted,
            identity=args,
            name=name,
            recipe="command",
            args=args,
            folder=str(folder),
            requirements=needs,
            **more,
        )
        self.client.submit(Submission(jobs=(order,)))

    def states(self) -> dict[str, tuple[str, str]]:
        """Return each job's state and machine, by its name."""
        return {job.name: (job.state, job.machine) for job in self.client.jobs().jobs}
