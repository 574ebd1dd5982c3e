"""Routes for screens: the overview, rows as they change, and telemetry."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.database.database import snapshot
from stoker.coordinator.http.access import Still, Who
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.change_feed import HELLO, ChangeFrame
from stoker.coordinator.http.http_messages import HEADERS, LOG, MachineName, RouteTable, answer, json_bytes, raw
from stoker.coordinator.http.overview import FleetOutlook, MachineState
from stoker.coordinator.http.worker_routes import own
from stoker.coordinator.queue.timeline import read_timeline
from stoker.core.errors import BadInput, NotFound, StokerError
from stoker.protocol.screen_messages import ChangedRows, Overview
from stoker.protocol.telemetry_messages import MOST_POINTS, TelemetryReport, TelemetryView, TimelineView
from stoker.protocol.view_messages import DoneView, MachineView

_LAST_ID = 2**63 - 1
MOST_WAIT_S = 60.0
MOST_AGE_S = 10.0
FRESH_S = 1.0
"""Machines are read again after so long, and after as many times as long as it took."""
OUTLOOK_S = 10.0
"""A forecast of all jobs is made again after so long."""
_TIMES = 20.0
_MOST_SYMPTOMS = 100
_LATE_S = 30.0
"""A forecast is shown in rows for so long after the next one is due."""
_FIRST_S = 1.0
"""The first overview waits for so long for the forecast."""
_PRESENT = frozenset({MachineState.READY, MachineState.BUSY})
_AWAY = frozenset({MachineState.LEFT, MachineState.SILENT, MachineState.GONE})

After = Annotated[int | None, Query(ge=0, le=_LAST_ID)]


class ScreenRoutes:
    """Routes for screens."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._machines: tuple[MachineView, ...] = ()
        self._machines_until_s = float("-inf")
        self._outlook = FleetOutlook()
        self._outlook_until_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._sharing = asyncio.Lock()
        self._shared: tuple[float, Overview] | None = None
        """The last overview that was made for several screens, and when."""
        self.router = RouteTable("screens")
        add = self.router.add
        add("/v1/overview", self.overview, response_model=Overview)
        add("/v1/stream", self.stream, response_class=StreamingResponse)
        add("/v1/changes", self.changes, response_model=ChangedRows)

    async def overview(self, who: Who, max_age_s: Annotated[float, Query(ge=0, le=MOST_AGE_S)] = 0.0) -> Response:
        """Return the state of everything: what runs, what waits and why, what failed, when all is done.

        With `max_age_s`, perhaps one that was made for another screen, at most so long ago.
        """
        await self._look_ahead()
        if not max_age_s:
            made = await self._context.read(self._overview, self._outlook)
        else:
            async with self._sharing:
                made = await self._made_since(max_age_s)
        return answer(made.model_copy(update={"user": who.name, "role": who.role.value}))

    async def _made_since(self, max_age_s: float) -> Overview:
        now_s = self._context.clock.monotonic_s()
        if self._shared is None or now_s - self._shared[0] > max_age_s:
            self._shared = (now_s, await self._context.read(self._overview, self._outlook))
        return self._shared[1]

    async def stream(
        self,
        still: Still,
        after: After = None,
        last_event_id: Annotated[str | None, Header(max_length=40)] = None,
        jobs: Annotated[str, Query(max_length=20_000, description="For later use; all rows are sent")] = "",
    ) -> Response:
        """Send rows as they change, at most every 250 ms. `Last-Event-ID`, or `after`, continues behind an event.

        Frames: `hello` with version and build, `rows`, `beat` every ten seconds without rows, and `resync`: too much
        changed, read everything again.
        """
        if last_event_id:
            if not (last_event_id.isascii() and last_event_id.isdigit()) or int(last_event_id) > _LAST_ID:
                raise BadInput(f"Last-Event-ID: {last_event_id!r} is not a whole number")
            after = int(last_event_id)
        self._context.changes.check_room()
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(self._frames(after, still), headers=headers, media_type="text/event-stream")

    async def changes(
        self,
        after: Annotated[int, Query(ge=0, le=_LAST_ID)],
        wait_s: Annotated[float, Query(ge=0, le=MOST_WAIT_S)] = 0.0,
        frame: Annotated[int, Query(ge=0, le=_LAST_ID, description="`frame` of the answer before")] = 0,
    ) -> Response:
        """Return the rows that changed after an event; wait for so long if there are none."""
        self._begin_look()
        return raw(await self._context.changes.poll(after, wait_s, frame), "application/json")

    async def _frames(self, after: int | None, may_still: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        # Closed at once when the client leaves: it counts as a listener until then.
        async with aclosing(self._context.changes.stream(after, may_still)) as frames:
            async for frame in frames:
                # Rows of pending jobs have a reason of it.
                self._begin_look()
                yield (self._hello(frame) if frame.kind == HELLO else frame).to_bytes()

    def _hello(self, frame: ChangeFrame) -> ChangeFrame:
        about = self._context.about
        body = {
            "version": about.version,
            "build": about.build or about.version,
            "seq": frame.seq,
            "server_s": self._context.clock.wall_s(),
        }
        return ChangeFrame(number=frame.number, kind=HELLO, before=frame.before, seq=frame.seq, body=json_bytes(body))

    async def _look_ahead(self) -> None:
        """Have the forecast made again if it is old; only the first is waited for."""
        is_first = self._outlook_until_s == float("-inf")
        self._begin_look()
        if is_first and self._looking is not None:
            await asyncio.wait((self._looking,), timeout=_FIRST_S)

    def _begin_look(self) -> None:
        if self._looking is None and self._context.clock.monotonic_s() >= self._outlook_until_s:
            self._looking = asyncio.ensure_future(self._forecast())

    async def _forecast(self) -> None:
        context = self._context
        began_s = context.clock.monotonic_s()
        try:
            self._outlook = await context.run_forecast(context.views.outlook)
        except StokerError:
            self._outlook = FleetOutlook()
        except Exception as error:  # noqa: BLE001 - nothing waits for this task: the overview has no forecast then
            self._outlook = FleetOutlook()
            LOG.error("forecast: internal error, continuing", exc_info=error)
        finally:
            now_s = context.clock.monotonic_s()
            pause_s = max(OUTLOOK_S, _TIMES * (now_s - began_s))
            self._outlook_until_s = now_s + pause_s
            context.reader.note_never(self._outlook.never, pause_s + _LATE_S)
            self._looking = None

    def _overview(self, outlook: FleetOutlook) -> Overview:
        context = self._context
        rows, machines = context.reader.overview(), self._all_machines()
        devices = [
            (machine, device) for machine in machines if machine.state not in _AWAY for device in machine.devices
        ]
        return Overview(
            name=context.about.name,
            is_fleet=True,
            server_s=context.clock.wall_s(),
            seq=rows.seq,
            version=context.about.version,
            jobs=rows.counts,
            machines=dict(Counter(machine.state for machine in machines)),
            devices=len(devices),
            idle_devices=sum(
                machine.state in _PRESENT and not device.get("jobs") and not device.get("closed")
                for machine, device in devices
            ),
            running=rows.running,
            pending=rows.pending,
            failed=rows.failed,
            failed_count=rows.failed_count,
            symptoms=context.reader.symptoms(most=_MOST_SYMPTOMS),
            done_s=outlook.done_s,
            settling_s=context.queue.pace().settling_s,
        )

    def _all_machines(self) -> tuple[MachineView, ...]:
        """Return all machines, of a large fleet as they were a moment ago."""
        clock = self._context.clock
        began_s = clock.monotonic_s()
        if began_s >= self._machines_until_s:
            self._machines = self._context.views.machines("")
            ended_s = clock.monotonic_s()
            self._machines_until_s = ended_s + min(FRESH_S, _TIMES * (ended_s - began_s))
        return self._machines


# Telemetry: reports of workers, series of one machine, and the timeline of all of them.

HOUR_S = 3600.0
_LATEST_S = 4e9
AnyMachine = Annotated[str, Query(max_length=200, description="Empty: all of them")]
Time = Annotated[float | None, Query(ge=0, le=_LATEST_S, allow_inf_nan=False)]
From = Annotated[float | None, Query(alias="from", ge=0, le=_LATEST_S, allow_inf_nan=False)]


class TelemetryRoutes:
    """Routes about telemetry."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._known: set[str] = set()
        # Ninety days of a machine take a second to read.
        self._reads = asyncio.Semaphore(1)
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
        context, view = self._context, self._context.keeping.telemetry.view
        async with self._reads:
            return await context.keep(lambda: answer(view(name, from_s=from_s, to_s=to_s, points=points)))

    async def timeline(self, begin: From = None, to: Time = None, machine: AnyMachine = "") -> Response:
        """Return which attempts ran where. By default in the last hour."""
        from_s, to_s = self._span(begin, to)
        return await self._context.read(lambda: answer(self._read_timeline(from_s, to_s, machine)))

    async def forget(self, name: str) -> None:
        """Delete the telemetry of a machine that is no longer in the fleet."""
        self._known.discard(name)
        await self._context.keep(self._context.keeping.telemetry.forget, name)

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
