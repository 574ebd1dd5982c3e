"""Routes about pools and allocations: for launchers, and for operators who pause and stop them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Path, Query, Response

from stoker.coordinator.auth import Enrolment
from stoker.coordinator.http.access import OWN_LAUNCHER, Who, recorded
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import RouteTable, answer, done
from stoker.coordinator.http.long_poll import MOST_LAUNCH_WAIT_S
from stoker.coordinator.queue.commands import (
    CloseRequest,
    InspectLaunch,
    MoveAllocations,
    PausePool,
    PlanAllocations,
    PlannedTicket,
    QueueCommandResult,
    RequestMachines,
    ResumePool,
    StopAllocations,
    WatchPools,
)
from stoker.protocol.launch_messages import (
    CloseMachinesRequest,
    LaunchView,
    MachinesRequest,
    MoveRequest,
    PlanRequest,
    PlanResponse,
    PoolName,
    PoolRequest,
    RequestId,
    StopRequest,
    WatchRequest,
    WatchResponse,
)
from stoker.protocol.view_messages import DoneView

_KEY_BYTES = 32
_NOTHING_SAID = PoolRequest()
_ALL = StopRequest()
_WITHDRAWN = CloseMachinesRequest()

PoolPath = Annotated[PoolName, Path(description="A pool's name")]
RequestPath = Annotated[RequestId, Path(description="The id of a request for machines")]


class LaunchRoutes:
    """Routes about pools and allocations."""

    def __init__(
        self, context: ServiceContext, enrolment: Enrolment | None, *, on_forgotten: Callable[[str], Awaitable[None]]
    ) -> None:
        """Answer them; `on_forgotten` is called with the name of a machine whose allocation has ended."""
        self._context = context
        self._enrolment = enrolment
        self._on_forgotten = on_forgotten
        self.router = RouteTable("launch")
        add = self.router.add
        add("/v1/launch", self.view, response_model=LaunchView)
        add("/v1/pools/watch", self.watch, methods=["POST"], response_model=WatchResponse)
        add("/v1/pools/{pool}/allocations", self.plan, methods=["POST"], response_model=PlanResponse)
        add("/v1/pools/{pool}/requests", self.request, methods=["POST"], response_model=DoneView)
        add("/v1/pools/{pool}/requests/{request}/close", self.close, methods=["POST"], response_model=DoneView)
        for verb, act in (
            ("moves", self.move),
            ("pause", self.pause),
            ("resume", self.resume),
            ("stop", self.stop),
        ):
            add(f"/v1/pools/{{pool}}/{verb}", act, methods=["POST"], response_model=DoneView)

    async def view(self, wait_s: Annotated[float, Query(ge=0, le=MOST_LAUNCH_WAIT_S)] = 0.0) -> Response:
        """Return pools, allocations, and the jobs that no present machine has room for.

        With `wait_s` the response comes with the next submission or request for machines, or after so long.
        """
        await self._context.submissions.wait(wait_s)
        view: LaunchView = await self._context.ask(InspectLaunch())
        names = self._enrolment.names() if self._enrolment is not None else ()
        return answer(view.model_copy(update={"urls": tuple(f"https://{name}" for name in names)}))

    async def watch(self, asked: WatchRequest, who: Who) -> Response:
        """Let a launcher watch pools, or for longer. The response has the epoch that its writes name."""
        # The coordinator's own launcher replaces its predecessor: one coordinator at a time has the database.
        own = f"{OWN_LAUNCHER.name} " if who == OWN_LAUNCHER else ""
        command = WatchPools(
            watcher=f"{own}{asked.watcher}"[:200],
            pools=asked.pools,
            for_s=asked.for_s,
            problem=asked.problem,
            replaces=own,
            by=recorded(who, ""),
        )
        watched: QueueCommandResult = await self._context.ask(command)
        return answer(WatchResponse(epochs=watched.data))

    async def plan(self, pool: PoolPath, asked: PlanRequest, who: Who) -> Response:
        """Plan allocations before a backend gets them. The response has the keys of their tickets."""
        plans = tuple(
            PlannedTicket(id=plan.id, wanted=plan.wanted, key=secrets.token_hex(_KEY_BYTES)) for plan in asked.plans
        )
        command = PlanAllocations(
            pool=pool, epoch=asked.epoch, plans=plans, request=asked.request, by=recorded(who, "")
        )
        planned: QueueCommandResult = await self._context.ask(command)
        return answer(PlanResponse(tickets=planned.data))

    async def move(self, pool: PoolPath, asked: MoveRequest, who: Who) -> Response:
        """Record what a launcher found out about allocations; the data of the response has each refusal."""
        command = MoveAllocations(pool=pool, epoch=asked.epoch, moves=asked.moves, by=recorded(who, ""))
        moved: QueueCommandResult = await self._context.ask(command)
        for machine in moved.data.pop("forgotten", ()):
            await self._on_forgotten(machine)
        return done(moved)

    async def request(self, pool: PoolPath, asked: MachinesRequest, who: Who) -> Response:
        """Store a request for machines, which the pool's launcher carries out. Idempotent."""
        command = RequestMachines(pool=pool, id=asked.id, count=asked.count, by=recorded(who, asked.by))
        requested: QueueCommandResult = await self._context.ask(command)
        self._context.submissions.submitted()
        return done(requested)

    async def close(
        self, pool: PoolPath, request: RequestPath, who: Who, asked: CloseMachinesRequest = _WITHDRAWN
    ) -> Response:
        """Close a request for machines that no allocation was planned for: withdrawn, or answered by the launcher."""
        by = recorded(who, asked.by)
        command = CloseRequest(pool=pool, id=request, epoch=asked.epoch, message=asked.message, code=asked.code, by=by)
        return done(await self._context.ask(command))

    async def pause(self, pool: PoolPath, who: Who, asked: PoolRequest = _NOTHING_SAID) -> Response:
        """Start no more allocations of a pool; those that exist stay."""
        return done(await self._context.ask(PausePool(pool=pool, why=asked.why, by=recorded(who, asked.by))))

    async def resume(self, pool: PoolPath, who: Who, asked: PoolRequest = _NOTHING_SAID) -> Response:
        """Start allocations of a pool again."""
        return done(await self._context.ask(ResumePool(pool=pool, by=recorded(who, asked.by))))

    async def stop(self, pool: PoolPath, who: Who, asked: StopRequest = _ALL) -> Response:
        """Drain allocations, by default all of a pool; its launcher cancels them at the backend."""
        return done(await self._context.ask(StopAllocations(pool=pool, ids=asked.ids, by=recorded(who, asked.by))))
