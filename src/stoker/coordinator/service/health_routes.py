"""Routes about the fleet's health: what workers found out about their machines, and the history checker's verdict."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stoker.coordinator.database.judging import judge
from stoker.coordinator.queue.health_commands import NoteReport
from stoker.coordinator.service.answers import MachineName, answer, done
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import Who
from stoker.coordinator.service.worker_routes import own
from stoker.model.errors import BadInput
from stoker.model.json_text import dumps
from stoker.wire.asking import DoneView
from stoker.wire.health import MachineReport, Verdict

MOST_JOBS = 100_000


class HealthRoutes:
    """Answers them."""

    def __init__(self, office: Office) -> None:
        self._office = office
        # A verdict reads much: one at a time, whoever asks.
        self._judging = asyncio.Lock()
        self.router = APIRouter(tags=["health"])
        add = self.router.add_api_route
        add("/v1/machines/{name}/report", self.report, methods=["POST"], response_model=DoneView)
        add("/v1/history/verdict", self.verdict, response_model=Verdict)

    async def report(self, name: MachineName, said: MachineReport, who: Who) -> Response:
        """Take what a worker found out about its machine, whatever version it is."""
        said = own(said, who)
        if said.worker != name:
            raise BadInput(f"the report is {said.worker}'s, not {name}'s")
        now_s = self._office.clock.wall_s()
        told = {
            "at_s": now_s,
            "offset_s": round(said.wall_s - now_s, 3),
            **said.model_dump(mode="json", exclude={"worker", "wall_s"}),
        }
        return done(await self._office.ask(NoteReport(machine=name, report=dumps(told))))

    async def verdict(self, jobs: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 20_000) -> Response:
        """Run the history checker over the newest jobs, and say what it found."""
        office = self._office
        async with self._judging:
            began_s = office.clock.monotonic_s()
            found = await office.read(
                judge,
                office.reader.database,
                most=jobs,
                budgets=office.queue.budgets,
                has_object=office.keeping.has_archive,
            )
        return answer(
            Verdict(
                jobs=found.jobs,
                is_whole=found.is_whole,
                seconds=office.clock.monotonic_s() - began_s,
                rules=found.broken,
                violations=tuple(one.to_dict() for one in found.violations),
            )
        )
