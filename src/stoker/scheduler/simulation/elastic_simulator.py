"""A simulation in which machines of pools start when jobs wait, and leave when they are idle or their time is over.

`launching.decide` decides, the same that the launcher of a fleet calls; this module lets a backend take its time and
counts. Every pool has its `max` machines among the offers, which are there only while an allocation of them serves.
A job whose machine leaves at its time limit has saved a checkpoint: the rest of it runs elsewhere.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from stoker.core.frozen import changeable, changed, fields_of, frozen
from stoker.core.machine import Demand
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolState
from stoker.scheduler.launching import decide, offer_for
from stoker.scheduler.leases import StartDecision
from stoker.scheduler.machine_index import LeaseAllocation, MatchableMachine
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.simulation.simulator import Disruptions, Simulator
from stoker.scheduler.simulation.workload import WorkloadBatch
from stoker.scheduler.snapshot import Snapshot

START_DELAY_S = 60.0
"""From the request of a machine until its worker serves."""
_TURN_S = 1.0
"""A launcher decides so often."""
_HOURS_EVERY_S = 600.0
"""A pool whose hours of the day are used is examined again so often."""
_STUCK_S = 2 * 86400.0
"""Jobs that wait for so long while nothing runs never start."""
_DAY_S = 86400.0


@frozen
class PoolPlan:
    """Pools of a simulation, and what was requested of them before."""

    pools: tuple[PoolState, ...]
    allocations: tuple[Allocation, ...] = ()
    start_delay_s: float = START_DELAY_S
    began_s: float = 0.0
    """The time at which the simulation begins, on the clock of the pools and allocations."""


@frozen
class PoolUse:
    """How a pool was used."""

    pool: str
    allocations: int
    """That started in the simulation."""
    most_at_once: int
    starts: tuple[tuple[float, int], ...]
    """When machines began to serve, in seconds from the beginning, and how many each time."""
    cancelled: int
    """Requests that were withdrawn: no job needed them any more."""
    machine_hours: float
    idle_hours: float
    """Of these, hours without a job."""
    jobs: int
    """Attempts that started on its machines."""
    continued: int
    """Jobs that had to continue on another machine, because the time of theirs was over."""
    cost: float

    def to_dict(self) -> dict[str, Any]:
        starts = [{"after_s": at_s, "count": count} for at_s, count in self.starts]
        return {**fields_of(self), "starts": starts}


@changeable
class _PoolMachine:
    """One of the machines that a pool may have at once."""

    pool: Pool
    offer: NodeOffer
    allocation: Allocation | None = None
    opened_s: float = 0.0
    ends_s: float = 0.0
    """When it stops before its time limit."""
    idle_since_s: float | None = None
    idle_s: float = 0.0


class ElasticSimulator(Simulator):
    """A simulation with pools."""

    def __init__(
        self,
        offers: Sequence[NodeOffer],
        batch: WorkloadBatch,
        plan: PoolPlan,
        *,
        disruptions: Disruptions | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._plan = plan
        # Hours count from the simulated allocations alone.
        self._states = {state.pool.name: changed(state, hours=None) for state in plan.pools}
        known = {offer.node: offer for offer in offers}
        self._machines: dict[str, _PoolMachine] = {}
        for one in plan.allocations:
            # Machines of allocations that serve already are among the offers.
            if one.pool in self._states and one.machine in known and not one.is_over:
                pool = self._states[one.pool].pool
                self._machines[one.machine] = _PoolMachine(pool=pool, offer=known[one.machine], allocation=one)
        there = set(self._machines)
        for state in plan.pools:
            pool = state.pool
            count = sum(one.pool is pool for one in self._machines.values())
            free = (name for number in itertools.count(1) if (name := f"{pool.name}-{number}") not in known)
            for name in itertools.islice(free, max(0, pool.max - count)):
                self._machines[name] = _PoolMachine(pool=pool, offer=offer_for(pool, name))
        added = [one.offer for name, one in self._machines.items() if name not in there]
        super().__init__([*offers, *added], batch, disruptions=disruptions, snapshot=snapshot)
        self._work_s = array("d", batch.work_s)
        for name in self._machines.keys() - there:
            self.scheduler.remove_machine(name)
        self._waiting: dict[str, Allocation] = {}
        """Requested, not started."""
        self._ended: list[Allocation] = []
        self._next_id = 0
        self._decided_s = -inf
        self._decide_at_s = inf
        self._progress_s = 0.0
        self._starts: dict[str, Counter[float]] = {name: Counter() for name in self._states}
        self._most: Counter[str] = Counter()
        self._cancelled: Counter[str] = Counter()
        self._hours: dict[str, tuple[float, float]] = dict.fromkeys(self._states, (0.0, 0.0))
        self._jobs: Counter[str] = Counter()
        self._continued: Counter[str] = Counter()
        for name in there:
            self._take_over(name)
        for one in plan.allocations:
            if one.pool in self._states and one.machine not in there and one.is_idle_room:
                self._await(one, max(0.0, one.planned_s + plan.start_delay_s - plan.began_s))
            elif one.is_over:
                self._ended.append(one)
        self._decide_soon()

    def uses(self) -> tuple[PoolUse, ...]:
        """Return how each pool was used. Machines that still idle leave after their idle time."""
        for name, machine in self._machines.items():
            if machine.allocation is not None:
                idle_since_s = self.now_s if machine.idle_since_s is None else machine.idle_since_s
                self._close(name, at_s=min(idle_since_s + machine.pool.idle_s, machine.ends_s))
        return tuple(self._use(state.pool) for state in self._plan.pools)

    def _use(self, pool: Pool) -> PoolUse:
        serving_s, idle_s = self._hours[pool.name]
        starts = self._starts[pool.name]
        return PoolUse(
            pool=pool.name,
            allocations=sum(starts.values()),
            most_at_once=self._most[pool.name],
            starts=tuple(sorted(starts.items())),
            cancelled=self._cancelled[pool.name],
            machine_hours=serving_s / 3600,
            idle_hours=idle_s / 3600,
            jobs=self._jobs[pool.name],
            continued=self._continued[pool.name],
            cost=serving_s / 3600 * pool.cost_per_hour,
        )

    # -- time

    @property
    def _clock_s(self) -> float:
        """Now, on the clock of the pools."""
        return self._plan.began_s + self.now_s

    def _step(self) -> bool:
        is_idle = not len(self._running) and self._next_come_s == inf
        if is_idle and (not self.scheduler.ready.count or self.now_s - self._progress_s > _STUCK_S):
            return False
        return super()._step()

    def _come(self) -> tuple[int, int] | None:
        self._decide_soon()
        return super()._come()

    def _start(self, grant: StartDecision) -> bool:
        if not super()._start(grant):
            return False
        self._progress_s = self.now_s
        machine = self._machines.get(grant.allocation.machine)
        if machine is not None and machine.allocation is not None:
            self._end_idling(machine)
            machine.allocation = changed(machine.allocation, grants=machine.allocation.grants + 1)
            self._jobs[machine.allocation.pool] += 1
        return True

    def _end(self, job: int, allocation: LeaseAllocation) -> bool:
        if not super()._end(job, allocation):
            return False
        self._progress_s = self.now_s
        self._begin_idling(allocation.machine)
        self._decide_soon()
        return True

    # -- decisions

    def _decide_soon(self) -> None:
        self._decide_by(max(self.now_s, self._decided_s + _TURN_S))

    def _decide_by(self, at_s: float) -> None:
        if at_s < self._decide_at_s:
            self._decide_at_s = at_s
            self._change_at(at_s, "", self._decide)

    def _decide(self, _name: str) -> None:
        if self.now_s < self._decide_at_s:
            return
        self._decide_at_s, self._decided_s = inf, self.now_s
        if not self._waiting and not self._may_start():
            return
        demand = self._demand()
        serving = [one.allocation for one in self._machines.values() if one.allocation is not None]
        self._ended = [one for one in self._ended if (one.ended_s or 0.0) > self._clock_s - _DAY_S]
        decision = decide(
            tuple(self._states.values()),
            demand,
            (*serving, *self._waiting.values(), *self._ended),
            now_s=self._clock_s,
            machines=len(self.scheduler.machines.machines),
        )
        for pause in decision.pauses:
            self._states[pause.pool] = changed(self._states[pause.pool], paused=pause.why)
        for cancel in decision.cancels:
            self._cancelled[cancel.pool] += 1
            self._over(self._waiting.pop(cancel.id), AllocationCause.CANCELLED)
        for start in decision.starts:
            for _ in range(start.count):
                self._next_id += 1
                one = Allocation(
                    id=f"{self._next_id:06x}", pool=start.pool, wanted=start.wanted, planned_s=self._clock_s
                )
                self._await(one, self.now_s + self._plan.start_delay_s)
        self._plan_next(demand)

    def _may_start(self) -> bool:
        """Return False if no decision could start a machine: all of them serve, or no job waits."""
        has_jobs = bool(self.scheduler.ready.count)
        free = [one.pool for one in self._machines.values() if one.allocation is None]
        return any(has_jobs or pool.min for pool in free)

    def _plan_next(self, demand: Sequence[Demand]) -> None:
        """Decide again when a patience ends, or hours of the day may be free again."""
        for state in self._states.values():
            patience_s = state.pool.patience_s
            times_s = [one.since_s + patience_s for one in demand]
            times_s += [one.planned_s + patience_s + _TURN_S for one in self._waiting.values()]
            for time_s in times_s:
                if time_s > self._clock_s:
                    self._decide_by(max(time_s - self._plan.began_s, self.now_s + _TURN_S))
            if state.pool.max_hours is not None and demand:
                self._decide_by(self.now_s + _HOURS_EVERY_S)

    def _demand(self) -> list[Demand]:
        """Return the ready jobs that no present machine has room for."""
        found = []
        for one in self.scheduler.unmet(self.now_s):
            class_id, priority = one.head.class_id, one.head.priority
            ready = self._ready[class_id, priority]
            since_s = self.log.come_s[ready[min(one.placed, len(ready) - 1)]] if ready else 0.0
            name = self.scheduler.wanted[class_id].name
            found.append(self.scheduler.demand_of(one, since_s=self._plan.began_s + since_s, names=(name,)))
        return found

    # -- allocations

    def _await(self, allocation: Allocation, serves_s: float) -> None:
        self._waiting[allocation.id] = changed(allocation, state=AllocationState.WAITING)
        self._change_at(serves_s, allocation.id, self._open)

    def _open(self, id: str) -> None:
        """Let the worker of an allocation join."""
        allocation = self._waiting.pop(id, None)
        if allocation is None:
            return
        name, machine = next(
            (name, one)
            for name, one in self._machines.items()
            if one.allocation is None and one.pool.name == allocation.pool
        )
        machine.allocation = changed(
            allocation, state=AllocationState.SERVING, started_s=self._clock_s, serving_s=self._clock_s
        )
        self.scheduler.put_machine(MatchableMachine(machine.offer))
        self._starts[allocation.pool][self.now_s] += 1
        self._take_over(name)
        self._ask_called([name])
        self._decide_soon()

    def _take_over(self, name: str) -> None:
        """Let a machine leave when its time is over, or it idles."""
        machine, pool = self._machines[name], self._machines[name].pool
        ends_s = machine.allocation.ends_s if machine.allocation is not None else None
        left_s = _serves_s(pool) if ends_s is None else max(0.0, ends_s - pool.end_margin_s - self._clock_s)
        machine.opened_s, machine.ends_s, machine.idle_s = self.now_s, self.now_s + left_s, 0.0
        self._held.setdefault(name, {})
        self.scheduler.stay(name, left_s, self.now_s)
        self._change_at(machine.ends_s, name, self._while_same(machine, self._leave))
        self._begin_idling(name)
        count = sum(one.pool is pool and one.allocation is not None for one in self._machines.values())
        self._most[pool.name] = max(self._most[pool.name], count)

    def _prepare(self, disruptions: Disruptions) -> None:
        super()._prepare(disruptions)
        self._held |= {name: {} for name, one in self._machines.items() if one.allocation is not None}

    def _while_same(self, machine: _PoolMachine, change: Callable[[str], None]) -> Callable[[str], None]:
        """Return a change that does nothing once the machine is another allocation's."""
        id = machine.allocation.id if machine.allocation is not None else ""

        def checked(name: str) -> None:
            if machine.allocation is not None and machine.allocation.id == id:
                change(name)

        return checked

    def _begin_idling(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is None or machine.allocation is None or self.scheduler.machines.machines[name].leases:
            return
        machine.idle_since_s = since_s = self.now_s

        def leave(name: str) -> None:
            if machine.idle_since_s == since_s:
                self._leave(name)

        self._change_at(since_s + machine.pool.idle_s, name, self._while_same(machine, leave))

    def _end_idling(self, machine: _PoolMachine) -> None:
        if machine.idle_since_s is not None:
            machine.idle_s += self.now_s - machine.idle_since_s
            machine.idle_since_s = None

    def _leave(self, name: str) -> None:
        """Let a machine go away; jobs of a pool's machine have saved a checkpoint, and continue elsewhere."""
        machine = self._machines.get(name)
        if machine is None or machine.allocation is None:
            super()._leave(name)
            return
        for job, lease in list(self._held.get(name, {}).items()):
            took_s = self.now_s - self.log.start_s[job]
            done_s = took_s * self.scheduler.machines.find(lease).work_rate
            self._work_s[job] = max(_TURN_S, self._work_s[job] - done_s)
            # It did not wait while it ran.
            self.log.come_s[job] += took_s
            self._resumed.add(job)
            self._continued[machine.allocation.pool] += 1
            self.failures -= 1
        super()._leave(name)
        self._close(name, at_s=self.now_s)
        self._decide_soon()

    def _close(self, name: str, *, at_s: float) -> None:
        """Count the time of a machine that has left."""
        machine = self._machines[name]
        allocation, pool = machine.allocation, machine.pool.name
        if allocation is None:
            return
        if machine.idle_since_s is not None:
            machine.idle_s += at_s - machine.idle_since_s
            machine.idle_since_s = None
        serving_s, idle_s = self._hours[pool]
        self._hours[pool] = serving_s + at_s - machine.opened_s, idle_s + machine.idle_s
        self._over(allocation, AllocationCause.FINISHED)
        machine.allocation = None

    def _over(self, allocation: Allocation, cause: AllocationCause) -> None:
        self._ended.append(changed(allocation, state=AllocationState.ENDED, cause=cause, ended_s=self._clock_s))


def _serves_s(pool: Pool) -> float:
    return pool.wall_s - pool.end_margin_s
