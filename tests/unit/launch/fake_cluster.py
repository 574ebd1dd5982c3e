"""A coordinator's rows and a backend in memory, for tests of the watcher: both can lose answers at any point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from stoker.core.errors import Conflict, LaunchDoubtful, LaunchRefused, NoBackend, StaleLease, StokerError
from stoker.core.frozen import changed
from stoker.core.machine import Demand
from stoker.core.pool import (
    FREE_CAUSES,
    Allocation,
    AllocationCause,
    AllocationState,
    LaunchRequest,
    Pool,
    PoolState,
    may_move,
)
from stoker.devices.checkup import Check
from stoker.launch.launchers import AllocationStatus, Log, Rendered
from stoker.protocol.launch_messages import AllocationMove, LaunchView
from stoker.protocol.view_messages import DoneView

FLEET = "f1ee7"


class FakeCoordinator:
    """What a watcher asks of a coordinator, as `FleetClient` has it."""

    def __init__(self, *pools: Pool, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.pools = {pool.name: PoolState(pool=pool) for pool in pools}
        self.rows: dict[str, Allocation] = {}
        self.demand: tuple[Demand, ...] = ()
        self.machines = 1
        self.history: list[tuple[str, AllocationState]] = []
        self.requests: dict[str, LaunchRequest] = {}
        self.silent: tuple[str, ...] = ()

    def launch_view(self, wait_s: float = 0.0) -> LaunchView:
        return LaunchView(
            fleet=FLEET,
            now_s=self.now_s(),
            urls=("https://desk:7717",),
            machines=self.machines,
            pools=tuple(
                state if state.watched_until_s > self.now_s() else changed(state, watcher="")
                for state in self.pools.values()
            ),
            allocations=tuple(self.rows.values()),
            demand=self.demand,
            requests=tuple(self.requests.values()),
            silent=self.silent,
        )

    def watch_pools(self, watcher: str, pools: tuple[str, ...], *, for_s: float, problem: str = "") -> dict[str, int]:
        epochs, now_s = {}, self.now_s()
        for state in map(self.pools.__getitem__, pools):
            if state.watcher not in ("", watcher) and state.watched_until_s > now_s:
                raise Conflict(f"{state.pool.name} is watched by {state.watcher}", watcher=state.watcher)
        for name in pools:
            state = self.pools[name]
            epoch = state.epoch if state.watcher == watcher else state.epoch + 1
            self.pools[name] = changed(
                state, watcher=watcher, epoch=epoch, watched_until_s=now_s + for_s, problem=problem
            )
            epochs[name] = epoch
        return epochs

    def plan_allocations(
        self, pool: str, epoch: int, plans: Sequence[tuple[str, Sequence[str]]], *, request: str = ""
    ) -> dict[str, str]:
        self._check(pool, epoch)
        if request:
            if not self.requests[request].is_open:
                raise Conflict(f"request {request} is not open")
            ids = tuple(id_ for id_, _ in plans)
            self.requests[request] = changed(self.requests[request], done_s=self.now_s(), allocations=ids)
        for id_, wanted in plans:
            if id_ in self.rows:
                raise Conflict(f"there is an allocation {id_}")
            self._put(Allocation(id=id_, pool=pool, wanted=tuple(wanted), planned_s=self.now_s()))
        return {id_: "ab" * 32 for id_, _ in plans}

    def move_allocations(self, pool: str, epoch: int, moves: Sequence[AllocationMove]) -> DoneView:
        self._check(pool, epoch)
        for move in moves:
            row = self.rows[move.id]
            if row.is_over:
                if row.cause is AllocationCause.FINISHED and move.cause in FREE_CAUSES:
                    self._put(changed(row, cause=move.cause))
                continue
            state = move.state if move.state is not None and may_move(row.state, move.state) else row.state
            self._put(
                changed(
                    row,
                    state=state,
                    backend_id=move.backend_id or row.backend_id,
                    reason=row.reason if move.reason is None else move.reason,
                    cause=move.cause or row.cause,
                    message=move.message,
                    started_s=self.now_s()
                    if state is AllocationState.STARTED and row.started_s is None
                    else row.started_s,
                    ends_s=row.ends_s if move.ends_s is None else move.ends_s,
                    signalled_s=self.now_s() if move.is_signalled else row.signalled_s,
                    ended_s=self.now_s() if state in (AllocationState.ENDED, AllocationState.REFUSED) else None,
                )
            )
        return DoneView(changed=tuple(move.id for move in moves))

    def request(self, pool: str, count: int = 0) -> str:
        """Store an operator's request; return its id."""
        id_ = f"{len(self.requests):08x}"
        self.requests[id_] = LaunchRequest(id=id_, pool=pool, count=count, requester="ann", requested_s=self.now_s())
        return id_

    def close_request(self, pool: str, id: str, message: str = "", *, epoch: int, code: str) -> DoneView:
        self._check(pool, epoch)
        if not self.requests[id].is_open:
            return DoneView()
        self.requests[id] = changed(self.requests[id], done_s=self.now_s(), message=message, code=code)
        return DoneView(changed=(id,))

    def pause_pool(self, pool: str, why: str, *, by: str = "") -> DoneView:
        self.pools[pool] = changed(self.pools[pool], paused=why)
        return DoneView(changed=(pool,))

    def resume(self, pool: str) -> None:
        self.pools[pool] = changed(self.pools[pool], paused="", resumed_s=self.now_s())

    def joined(self, id: str) -> None:
        """Note that the worker of an allocation has joined."""
        row = self.rows.get(id)
        if row is not None and may_move(row.state, AllocationState.SERVING):
            self._put(changed(row, state=AllocationState.SERVING, serving_s=self.now_s(), grants=1))

    def live(self) -> list[Allocation]:
        return [row for row in self.rows.values() if not row.is_over]

    def _check(self, pool: str, epoch: int) -> None:
        if self.pools[pool].epoch != epoch:
            raise StaleLease(f"{pool} has another watcher")

    def _put(self, row: Allocation) -> None:
        self.rows[row.id] = row
        self.history.append((row.id, row.state))


class FakeBackend:
    """A batch system in memory, behind the seam of launchers."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.entries: dict[str, AllocationStatus] = {}
        self.faults: list[str] = []
        """What happens to the next requests: `refuse`, `lose` (accepted, answer lost), `drop` (neither), `die`,
        `unreachable` (it certainly did not arrive).
        """
        self.submits = 0
        self.looks = 0
        self.cleaned: set[str] = set()
        self.cleaned_there: set[str] = set()
        """By their ids at the backend."""
        self.cancels: list[tuple[str, bool]] = []
        """Each with whether it was gentle."""
        self.is_stubborn = False
        """Workers that run do not end at a gentle cancel."""
        self.tickets: list[str] = []
        self.kit_fault: StokerError | None = None

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        if self.kit_fault is not None:
            raise self.kit_fault
        return pool

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        return Rendered(argv=("request", pool.name), ids=tuple(one.id for one in allocations))

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        return ()

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        self.submits += 1
        self.tickets += tickets.values()
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refuse":
            raise LaunchRefused("Invalid account")
        if fault == "die":
            raise KeyboardInterrupt
        if fault == "unreachable":
            raise NoBackend("No route to host")
        if fault != "drop":
            for number, one in enumerate(rendered.ids):
                backend_id = f"{self.submits}_{number}"
                self.entries[backend_id] = AllocationStatus(
                    id=one, backend_id=backend_id, state=AllocationState.WAITING
                )
        if fault in ("lose", "drop"):
            raise LaunchDoubtful("Socket timed out")
        if fault == "die after":
            raise KeyboardInterrupt
        return {one: f"{self.submits}_{number}" for number, one in enumerate(rendered.ids)}

    def forecast(self, rendered: Rendered) -> str:
        return ""

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        self.looks += 1
        return tuple(self.entries.values())

    def cancel(self, pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        for one in backend_ids:
            self.cancels.append((one, is_gentle))
            if is_gentle and self.is_stubborn and self.entries[one].state is AllocationState.STARTED:
                continue
            self.end(one, AllocationCause.CANCELLED_THERE)

    def log(self, pool: Pool, allocation: Allocation) -> str:
        return "first\nno route to host\n"

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        self.cleaned.update(one.id for one in allocations)
        self.cleaned_there.update(one.backend_id for one in allocations)

    def start(self, backend_id: str) -> None:
        if self.entries[backend_id].state is AllocationState.WAITING:
            self.entries[backend_id] = changed(self.entries[backend_id], state=AllocationState.STARTED)

    def end(self, backend_id: str, cause: AllocationCause) -> None:
        if self.entries[backend_id].state is not AllocationState.ENDED:
            self.entries[backend_id] = changed(self.entries[backend_id], state=AllocationState.ENDED, cause=cause)

    def live(self) -> list[AllocationStatus]:
        return [one for one in self.entries.values() if one.state is not AllocationState.ENDED]


class Inline:
    """Runs the tasks of a watcher at once, in the caller's thread."""

    def submit(self, act: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(act(*args))
        return done
