"""Routes about telemetry: reports of workers, series of one machine, and the timeline of all of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from stoker.coordinator.database.database import snapshot
from stoker.coordinator.http.access import Who
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import MachineName, RouteTable, answer
from stoker.coordinator.http.worker_routes import own
from stoker.coordinator.queue.timeline import read_timeline
from stoker.core.errors import BadInput, NotFound
from stoker.protocol.telemetry_messages import MOST_POINTS, TelemetryReport, TelemetryView, TimelineView
from stoker.protocol.view_messages import DoneView

HOUR_S = 3600.0
_LATEST_S = 4e9
Time = Annotated[float | None, Query(ge=0, le=_LATEST_S, allow_inf_nan=False)]
From = Annotated[float | None, Query(alias="from", ge=0, le=_LATEST_S, allow_inf_nan=False)]


class TelemetryRoutes:
    """Routes about telemetry."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._known: set[str] = set()
        self.router = RouteTable("telemetry")
        add = self.router.add
        add("/v1/machines/timeline", self.timeline, response_model=TimelineView)
        add("/v1/machines/{name}/telemetry", self.one, response_model=TelemetryView)
        add("/v1/machines/{name}/telemetry", self.report, methods=["POST"], response_model=DoneView)

    async def report(self, name: MachineName, said: TelemetryReport, who: Who) -> Response:
        """Store what a worker measured on its machine."""
        said = own(said, who)
        if said.worker != name:
            raise BadInput(f"the report is of {said.worker}, not of {name}")
        await self._check(name)
        await self._context.keep(self._context.keeping.telemetry.note, said)
        return answer(DoneView(changed=(name,)))

    async def one(
        self,
        name: MachineName,
        begin: From = None,
        to: Time = None,
        points: Annotated[int, Query(ge=1, le=MOST_POINTS)] = 360,
    ) -> Response:
        """Return the telemetry of a machine: present values, series and alerts. By default of the last hour."""
        await self._check(name)
        from_s, to_s = self._span(begin, to)
        context = self._context
        return answer(await context.keep(context.keeping.telemetry.view, name, from_s=from_s, to_s=to_s, points=points))

    async def timeline(self, begin: From = None, to: Time = None, machine: str = "") -> Response:
        """Return which attempts ran where. By default in the last hour."""
        from_s, to_s = self._span(begin, to)
        return answer(await self._context.read(self._read_timeline, from_s, to_s, machine))

    def forget(self, name: str) -> None:
        """Delete the telemetry of a machine that is no longer in the fleet."""
        self._known.discard(name)
        self._context.keeping.telemetry.forget(name)

    def _read_timeline(self, from_s: float, to_s: float, machine: str) -> TimelineView:
        now_s = self._context.clock.wall_s()
        with snapshot(self._context.reader.database) as connection:
            return read_timeline(connection, from_s=from_s, to_s=to_s, now_s=now_s, machine=machine)

    def _span(self, begin: float | None, to: float | None) -> tuple[float, float]:
        to_s = self._context.clock.wall_s() if to is None else to
        from_s = to_s - HOUR_S if begin is None else begin
        if from_s >= to_s:
            raise BadInput("the span is empty: `from` is not before `to`")
        return max(0.0, from_s), to_s

    async def _check(self, name: str) -> None:
        """Raise `NotFound` for a machine that is not registered; a known one is not looked up again."""
        if name in self._known:
            return
        if not await self._context.read(self._context.reader.machines, name):
            raise NotFound(f"there is no machine {name!r}", hint="`stoker machines` lists them")
        self._known.add(name)
