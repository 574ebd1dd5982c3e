"""The coordinator over HTTP, joined: an app for a server to run, and what happens when it reads again or ends.

Made inside the event loop that serves it.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.coordinator.keeping.keeping import Keeping
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.service.access import Rules
from stoker.coordinator.service.documented import documented_app
from stoker.coordinator.service.explanations import Explanations
from stoker.coordinator.service.file_routes import FileRoutes
from stoker.coordinator.service.fleet_figures import FleetFigures
from stoker.coordinator.service.fleet_routes import FleetRoutes
from stoker.coordinator.service.front import Front
from stoker.coordinator.service.job_routes import JobRoutes
from stoker.coordinator.service.machine_routes import MachineRoutes
from stoker.coordinator.service.office import About, Office, Views
from stoker.coordinator.service.rereading import Files, lines_of, trouble_of
from stoker.coordinator.service.retention_routes import RetentionRoutes
from stoker.coordinator.service.system_a import SystemARoutes
from stoker.coordinator.service.worker_routes import WorkerRoutes
from stoker.model.clock import Clock
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen


@frozen
class Parts:
    """What a coordinator is made of before it is served."""

    queue: Queue
    keeping: Keeping
    files: Files
    about: About
    clock: Clock


class Service:
    """One coordinator, served."""

    def __init__(self, parts: Parts, rules: Rules, *, say: Callable[[str], None]) -> None:
        self._parts = parts
        self._say = say
        explanations = Explanations(parts.queue, parts.clock, parts.about.times)
        self._office = office = Office(
            queue=parts.queue,
            keeping=parts.keeping,
            views=Views(machines=explanations.machines, explain=explanations.explain, forecast=explanations.forecast),
            about=parts.about,
            clock=parts.clock,
            reload=parts.files.read_again,
        )
        routers = (
            JobRoutes(office).router,
            FileRoutes(office).router,
            MachineRoutes(office).router,
            FleetRoutes(office, FleetFigures(office)).router,
            RetentionRoutes(office).router,
            SystemARoutes(office).router,
        )
        workers = WorkerRoutes(office.counter, office.waiting, office.followers.ended)
        self.app = Front(rules, workers, documented_app(routers, version=parts.about.version))

    def close(self) -> None:
        """Let everybody go who waits."""
        self._office.close()

    def end(self) -> None:
        """Let go of the threads."""
        self._office.end()

    async def reload(self) -> None:
        """Read the files again, and say what came of it."""
        try:
            done = await self._office.reload(dry_run=False)
        except StokerError as error:
            lines = trouble_of(error)
        else:
            lines = lines_of(done)
        for line in lines:
            self._say(f"reload: {line}")
