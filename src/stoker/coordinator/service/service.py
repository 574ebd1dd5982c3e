"""The coordinator over HTTP, joined: an app for a server to run, and what happens when it reads again or ends.

Made inside the event loop that serves it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from stoker.coordinator.authority.enrolment import Enrolment
from stoker.coordinator.keeping.contents import Contents
from stoker.coordinator.keeping.keeping import Keeping
from stoker.coordinator.keeping.tree_records import QueueTrees
from stoker.coordinator.notifying.notifier import Notifier
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.service.access import Access, Rules
from stoker.coordinator.service.code_gate import CodeGate
from stoker.coordinator.service.content_routes import ContentRoutes
from stoker.coordinator.service.documented import documented_app
from stoker.coordinator.service.enrolment_routes import EnrolmentRoutes
from stoker.coordinator.service.exec_routes import ExecRoutes
from stoker.coordinator.service.explanations import Explanations
from stoker.coordinator.service.file_routes import FileRoutes
from stoker.coordinator.service.fleet_figures import FleetFigures
from stoker.coordinator.service.fleet_routes import FleetRoutes
from stoker.coordinator.service.front import Front
from stoker.coordinator.service.health_routes import HealthRoutes
from stoker.coordinator.service.hook_routes import HookRoutes
from stoker.coordinator.service.job_routes import JobRoutes
from stoker.coordinator.service.machine_health import MachineHealth
from stoker.coordinator.service.machine_routes import MachineRoutes
from stoker.coordinator.service.office import About, Office, Views
from stoker.coordinator.service.rereading import Files, lines_of, trouble_of
from stoker.coordinator.service.retention_routes import RetentionRoutes
from stoker.coordinator.service.sources import SourceDesk
from stoker.coordinator.service.system_a import SystemARoutes
from stoker.coordinator.service.token_routes import TokenRoutes
from stoker.coordinator.service.token_uses import TokenUses
from stoker.coordinator.service.worker_routes import WorkerRoutes
from stoker.model.clock import Clock
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.wire.leasing import Hello, Renewal
from stoker.wire.protocol import build_messages


@frozen
class Parts:
    """What a coordinator is made of before it is served."""

    queue: Queue
    keeping: Keeping
    files: Files
    about: About
    clock: Clock
    enrolment: Enrolment | None = None
    """Nothing: it listens on loopback alone, and nobody joins."""
    code_gate: CodeGate | None = None
    """Nothing: it takes any code."""
    notifier: Notifier | None = None
    """Nothing: nobody is told of events elsewhere."""


class Service:
    """One coordinator, served."""

    def __init__(self, parts: Parts, rules: Rules, *, say: Callable[[str], None]) -> None:
        build_messages()
        self._parts = parts
        self._say = say
        explanations = Explanations(parts.queue, parts.clock, parts.about.times, parts.queue.budgets)
        machines = MachineHealth(
            machines=explanations.machines, queue=parts.queue, clock=parts.clock, version=parts.about.version
        )
        self._office = office = Office(
            queue=parts.queue,
            keeping=parts.keeping,
            views=Views(
                machines=machines.of,
                explain=explanations.explain,
                forecast=explanations.forecast,
                schedule=explanations.schedule,
            ),
            about=parts.about,
            clock=parts.clock,
            reload=parts.files.read_again,
        )
        contents = Contents(parts.keeping, QueueTrees(parts.queue, parts.queue.reader.database))
        sources = SourceDesk(parts.clock)
        routers = (
            JobRoutes(office, parts.code_gate).router,
            FileRoutes(office, contents).router,
            MachineRoutes(office, on_forgotten=sources.forget).router,
            FleetRoutes(office, FleetFigures(office)).router,
            RetentionRoutes(office, contents).router,
            ContentRoutes(office, contents, sources).router,
            SystemARoutes(office, rules.token or secrets.token_bytes(32)).router,
            EnrolmentRoutes(office, parts.enrolment).router,
            TokenRoutes(office).router,
            ExecRoutes(office).router,
            HookRoutes(office, parts.notifier).router,
            HealthRoutes(office).router,
        )

        def hear(said: Hello | Renewal) -> None:
            sources.hear(said)
            office.execs.hear(said)

        workers = WorkerRoutes(
            office.counter, office.waiting, office.followers.ended, on_heard=hear, told=office.execs.told
        )
        access = Access(rules, standing=parts.queue.standing, clock=parts.clock, on_use=TokenUses(office).note)
        self.app = Front(access, workers, documented_app(routers, version=parts.about.version))

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
