"""Routes for screens: the overview, and rows as they change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.http.access import Still, Who
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.change_feed import HELLO, ChangeFrame
from stoker.coordinator.http.http_messages import HEADERS, RouteTable, answer, json_bytes, raw
from stoker.coordinator.http.overview import FleetOutlook, MachineState
from stoker.core.errors import BadInput, StokerError
from stoker.core.leases import Principal
from stoker.protocol.screen_messages import ChangedRows, Overview
from stoker.protocol.view_messages import MachineView

_LAST_ID = 2**63 - 1
MOST_WAIT_S = 60.0
FRESH_S = 1.0
"""Machines are read again after so long, and after as many times as long as it took."""
OUTLOOK_S = 10.0
"""A forecast of all jobs is made again after so long."""
_TIMES = 20.0
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
        self.router = RouteTable("screens")
        add = self.router.add
        add("/v1/overview", self.overview, response_model=Overview)
        add("/v1/stream", self.stream, response_class=StreamingResponse)
        add("/v1/changes", self.changes, response_model=ChangedRows)

    async def overview(self, who: Who) -> Response:
        """Return the state of everything: what runs, what waits and why, what failed, when all is done."""
        await self._look_ahead()
        return answer(await self._context.read(self._overview, who, self._outlook))

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
    ) -> Response:
        """Return the rows that changed after an event; wait for so long if there are none."""
        return raw(await self._context.changes.poll(after, wait_s), "application/json")

    async def _frames(self, after: int | None, may_still: Callable[[], bool]) -> AsyncIterator[bytes]:
        async for frame in self._context.changes.stream(after, may_still):
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
        if self._looking is None and self._context.clock.monotonic_s() >= self._outlook_until_s:
            self._looking = asyncio.ensure_future(self._forecast())
        if is_first and self._looking is not None:
            await asyncio.wait((self._looking,), timeout=_FIRST_S)

    async def _forecast(self) -> None:
        context = self._context
        began_s = context.clock.monotonic_s()
        try:
            self._outlook = await context.run_forecast(context.views.outlook)
        except StokerError:
            self._outlook = FleetOutlook()
        finally:
            now_s = context.clock.monotonic_s()
            self._outlook_until_s = now_s + max(OUTLOOK_S, _TIMES * (now_s - began_s))
            self._looking = None

    def _overview(self, who: Principal, outlook: FleetOutlook) -> Overview:
        context = self._context
        rows, machines = context.reader.overview(outlook.never), self._all_machines()
        devices = [
            (machine, device) for machine in machines if machine.state not in _AWAY for device in machine.devices
        ]
        return Overview(
            name=context.about.name,
            is_fleet=True,
            server_s=context.clock.wall_s(),
            seq=rows.seq,
            version=context.about.version,
            user=who.name,
            role=who.role.value,
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
            symptoms=context.reader.symptoms(),
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
