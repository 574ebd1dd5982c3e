"""How many machines of which pool to start for jobs that wait, and which to cancel: a decision with its reasons.

    decide(pools, demand, allocations, now_s=…, machines=…, requests=…) -> LaunchDecision

Waiting jobs are packed onto allocations that are on their way, then onto further machines of the pools, the cheapest
first, by the same `fit` that grants jobs. A pool starts no machine that can't help: the job must fit it, within its
time limit. Requests of operators come first: they do not wait, and they start pools that start only by hand. Pure; the
launcher, the dry run, `explain` and the simulation call it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from stoker.core.capability import Capability
from stoker.core.device import MIB
from stoker.core.errors import LaunchRefused
from stoker.core.frozen import changeable, changed, fresh, frozen
from stoker.core.machine import Demand, Gpu, Node, SchedulableJob
from stoker.core.pool import (
    Allocation,
    AllocationCause,
    AllocationState,
    LaunchRequest,
    Pool,
    PoolBackend,
    PoolGpu,
    PoolShape,
    PoolState,
)
from stoker.core.text import counted, format_duration
from stoker.devices.admission import above_floor_bytes
from stoker.scheduler.fit import PlacementShape
from stoker.scheduler.job_types import least_time_s
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.offers import NodeOffer, node_of, offer_of
from stoker.scheduler.reasons import obstacles

MOST_UNJOINED = 3
"""Allocations in a row whose worker never joined, before a pool pauses."""
MOST_REFUSED = 5
MOST_CANCELLED = 3
"""Allocations that somebody cancelled at the backend within `CANCELLED_WITHIN_S`."""
CANCELLED_WITHIN_S = 600.0
MOST_USELESS = 2
"""Machines in a row that ended without a job, before a pool starts no more for such jobs."""
REQUEST_S = 3600.0
"""A request of an operator that no launcher carried out within this time is closed."""
_DAY_S = 86400.0
_NAMED = 3


@frozen
class StartAllocations:
    """Request machines of a pool."""

    pool: str
    count: int
    jobs: int
    """Waiting jobs that they would take at once; 0: they are the pool's minimum."""
    wanted: tuple[str, ...]
    """Names of the first of these jobs."""
    why: str
    request: str = ""
    """The operator's request that they carry out; empty: none."""


@frozen
class AnswerRequest:
    """Close an operator's request without starting a machine for it."""

    pool: str
    id: str
    why: str
    code: str = ""
    """Of the error because of which none starts; empty: none is needed."""


@frozen
class CancelAllocation:
    """Withdraw a request that no job needs any more."""

    pool: str
    id: str
    why: str


@frozen
class PoolPause:
    """Start nothing more until an operator resumes the pool."""

    pool: str
    why: str


@frozen
class LaunchHold:
    """Why a pool starts no machine, or no further one, for waiting jobs."""

    pool: str
    jobs: tuple[str, ...]
    why: str


@frozen
class LaunchDecision:
    """What to do now, and why no more."""

    starts: tuple[StartAllocations, ...] = ()
    cancels: tuple[CancelAllocation, ...] = ()
    pauses: tuple[PoolPause, ...] = ()
    holds: tuple[LaunchHold, ...] = ()
    answers: tuple[AnswerRequest, ...] = ()
    unplaced: int = 0
    """Waiting jobs for which no machine is on its way, or will be."""


def decide(  # noqa: PLR0913 - what a launcher decides by
    pools: Sequence[PoolState],
    demand: Sequence[Demand],
    allocations: Iterable[Allocation],
    *,
    now_s: float,
    machines: int = 1,
    requests: Iterable[LaunchRequest] = (),
    starting: Collection[str] | None = None,
) -> LaunchDecision:
    """Decide. `demand` is in the order of the queue; `machines` is the number of machines in the fleet now.

    `starting` are the pools that start machines; None: all. What the backend of another has already takes jobs, too.
    """
    by_pool: dict[str, list[Allocation]] = {state.pool.name: [] for state in pools}
    for one in allocations:
        if one.pool in by_pool:
            by_pool[one.pool].append(one)
    coming = [
        (state.pool, one.machine)
        for state in pools
        for one in by_pool[state.pool.name]
        if one.is_idle_room and (starting is None or state.pool.name in starting or one.backend_id)
    ]
    planning = _Packing(coming)
    pools = [state for state in pools if starting is None or state.pool.name in starting]
    budgets = [_Budget.of(state, by_pool[state.pool.name], now_s) for state in pools]
    by_name = {budget.pool.name: budget for budget in budgets}
    for request in requests:
        if request.is_open and request.pool in by_name:
            by_name[request.pool].take(request, planning, now_s)
    unmet = [(jobs, shape := planning.shape_of(jobs), planning.onto_allocations(jobs, shape)) for jobs in demand]
    in_order = sorted(budgets, key=lambda budget: budget.pool.cost_per_hour)
    holds: list[LaunchHold] = []
    unplaced = 0
    for jobs, shape, count in unmet:
        left = count
        for budget in in_order:
            if left:
                left, why = planning.onto_new(jobs, shape, left, budget, now_s=now_s, has_machines=machines > 0)
                if left and why:
                    holds.append(LaunchHold(pool=budget.pool.name, jobs=jobs.names, why=why))
        unplaced += left
    for budget in budgets:
        budget.fill_up()
    return LaunchDecision(
        starts=tuple(start for budget in in_order for start in budget.starts()),
        cancels=tuple(cancel for budget in budgets for cancel in budget.cancels(planning.used, now_s)),
        pauses=tuple(PoolPause(pool=one.pool.name, why=one.brake) for one in budgets if one.brake and not one.paused),
        holds=tuple(holds),
        answers=tuple(answer for budget in budgets for answer in budget.all_answers(holds)),
        unplaced=unplaced,
    )


def starting_pools(pools: Iterable[PoolState], now_s: float, *, held: Collection[str] = ()) -> frozenset[str]:
    """Return the pools that start machines now: those in `held`, and those that another watcher serves.

    Each watcher decides about all of them and starts machines of its own: no two start some for the same jobs.
    """
    return frozenset(
        one.pool.name
        for one in pools
        if one.pool.name in held or (one.watcher and one.watched_until_s >= now_s and not one.problem)
    )


def offer_for(pool: Pool, name: str) -> NodeOffer:
    """Return what an idle machine of a pool would offer: by what the last ones had, else by its declaration."""
    shape = pool.shape
    gpus = [Gpu(uuid=f"{name}-{number}", type=gpu.type, vram_mb=gpu.vram_mb) for number, gpu in enumerate(shape.gpus)]
    node = Node(
        name=name,
        host=pool.via or "localhost",
        gpus=tuple(gpus),
        cpu_cores=shape.cpu_cores,
        ram_mb=shape.ram_mb,
        slots=shape.slots,
    )
    # The worker offers the declared RAM if its machine has more than that: the system reserve is the machine's.
    return changed(offer_of(node), ram_bytes=None if shape.ram_mb is None else shape.ram_mb * MIB)


def detected_shape(declared: PoolShape, capability: Capability) -> PoolShape:
    """Return what jobs may use of a machine of a pool, as detected, at most what was requested for it."""
    node = node_of(capability)
    detected = PoolShape(
        cpu_cores=capability.cpu_cores,
        ram_mb=None if node.ram_mb is None else above_floor_bytes(node.ram_mb * MIB) // MIB,
        gpus=tuple(PoolGpu(type=gpu.type, vram_mb=gpu.vram_mb) for gpu in node.gpus),
    )
    return declared.smaller(detected)


def why_unfit(pool: Pool, idle: NodeOffer, job: Demand, shape: PlacementShape) -> str:
    """Return why no machine of a pool could ever take such a job, by what an idle one offers; empty if one could."""
    if not _has_time(pool, job):
        left_s = pool.wall_s - pool.end_margin_s
        return f"needs {needed_time(job.takes_s, job.job)}; its time limit leaves {format_duration(left_s)}"
    why = "; ".join(one.why for one in obstacles(shape, idle))
    return f"{why} ({pool.lacks})" if why and pool.lacks else why


def _has_time(pool: Pool, job: Demand) -> bool:
    """Return True if such a job may start on a new machine of a pool."""
    least_s = least_time_s(job.takes_s, has_checkpoint=job.job.has_checkpoint)
    return least_s <= pool.wall_s - pool.end_margin_s


def needed_time(takes_s: float | None, job: SchedulableJob) -> str:
    """Return the time that a machine must have left for a job, in words."""
    least_s = least_time_s(takes_s, has_checkpoint=job.has_checkpoint)
    if takes_s is not None and least_s < takes_s:
        return f"{format_duration(least_s)} to continue from its checkpoint"
    return format_duration(least_s)


CUT_OFF = "the coordinator serves only its own machine: stoker serve --listen 0.0.0.0"
"""Why a pool of other machines starts nothing if the coordinator has no TLS."""


@frozen
class PoolVerdict:
    """What a pool does for one waiting job."""

    pool: str
    text: str
    order: int | None
    """Lower: it helps sooner, from a machine on its way to one that starts only by hand; None: it can't help."""


def explain_pools(  # noqa: PLR0913 - what a launcher decides by
    waiting: Demand,
    pools: Sequence[PoolState],
    allocations: Sequence[Allocation],
    *,
    now_s: float,
    machines: int = 1,
    requests: Iterable[LaunchRequest] = (),
    is_reachable: bool = True,
) -> tuple[PoolVerdict, ...]:
    """Return for each pool what it does for a waiting job, or why it does nothing.

    Without `is_reachable` only workers of this machine can join: the coordinator has no TLS.
    """
    verdicts = []
    answering = starting_pools(pools, now_s)
    joint = decide(pools, [waiting], allocations, now_s=now_s, machines=machines, requests=requests, starting=answering)
    starting = {start.pool for start in joint.starts}
    for state in pools:
        pool = state.pool
        mine = [one for one in allocations if one.pool == pool.name]
        coming = [one for one in mine if one.is_idle_room]
        decision = decide([state], [waiting], mine, now_s=now_s, machines=machines, requests=requests)
        shape = NodeIndex().shape_of(waiting.job)
        is_watched = bool(state.watcher) and state.watched_until_s >= now_s
        order: int | None = None
        text = why_unfit(pool, offer_for(pool, pool.name), waiting, shape)
        if not text and coming and not decision.starts and not decision.unplaced:
            first = min(coming, key=lambda one: (one.state is AllocationState.DOUBTFUL, one.planned_s))
            said = f", {pool.backend}: {first.reason}" if first.reason else ""
            if first.may_start_s is not None and first.may_start_s > now_s:
                said += f", may start in {format_duration(first.may_start_s - now_s)}"
            text = f"requested {format_duration(now_s - first.planned_s)} ago{said}"
            order = 4 if first.state is AllocationState.DOUBTFUL else 0
        elif not (text or is_reachable or state.paused) and pool.backend is not PoolBackend.LOCAL:
            text = CUT_OFF
        elif not text and decision.holds:
            text = decision.holds[0].why
            if not state.paused:
                order = 6 if not pool.is_automatic else 3 if is_watched else 5
        elif not text and not is_watched:
            text, order = "a machine of it would fit; nobody watches it: stoker launch watch", 5
        elif not text and state.problem:
            text, order = f"a machine of it would fit; its launcher has a problem: {state.problem}", 5
        elif not text:
            is_next = pool.name in starting
            text = "is about to be requested" if is_next else "would fit; another pool is used first"
            text, order = f"a machine of it {text}", 1 if is_next else 2
        verdicts.append(PoolVerdict(pool=pool.name, text=text, order=order))
    return tuple(verdicts)


@changeable
class _Budget:
    """What one pool may start now."""

    state: PoolState
    idle: NodeOffer
    """What an idle machine of it offers."""
    brake: str
    """Why it pauses now."""
    allocations: list[Allocation]
    live: int
    waiting: int
    hours: float
    """Machine hours in the last day."""
    granted: float
    """Further hours that live allocations may use until their time limits."""
    new: int = 0
    jobs: int = 0
    wanted: list[str] = fresh(factory=list)
    counted: list[LaunchRequest] = fresh(factory=list)
    """Requests with a count that are carried out now; their machines are the first of the new ones."""
    eager: list[LaunchRequest] = fresh(factory=list)
    """Requests for what waiting jobs need."""
    answers: list[AnswerRequest] = fresh(factory=list)

    @classmethod
    def of(cls, state: PoolState, allocations: list[Allocation], now_s: float) -> _Budget:
        live = [one for one in allocations if not one.is_over]
        return cls(
            state=state,
            idle=offer_for(state.pool, state.pool.name),
            brake=_brake(allocations, now_s, since_s=state.resumed_s),
            allocations=allocations,
            live=len(live),
            waiting=sum(one.is_on_its_way for one in live),
            hours=_hours(allocations, now_s) if state.hours is None else state.hours,
            granted=sum(_left_s(one, state.pool, now_s) for one in live) / 3600,
        )

    @property
    def pool(self) -> Pool:
        return self.state.pool

    @property
    def paused(self) -> str:
        return self.state.paused

    def why_full(self) -> str:
        """Return why it may request no further machine; empty if it may."""
        pool = self.pool
        if self.paused or self.brake:
            return f"paused: {self.paused or self.brake}"
        if self.live + self.new >= pool.max:
            return f"all {counted(pool.max, 'machine')} of it requested"
        if not pool.is_automatic and not self.eager:
            return f"starts only by hand: stoker launch {pool.name}"
        if self.waiting + self.new >= pool.backlog:
            return f"{counted(self.waiting + self.new, 'allocation')} waiting already (backlog {pool.backlog})"
        return self._why_spent(self.new + 1)

    def _why_spent(self, count: int) -> str:
        """Return why so many machines could use more than the pool's hours of the day; empty if they can't."""
        most = self.pool.max_hours
        if most is None:
            return ""
        used = f"{self.hours:.1f} of {most:g} hours a day used"
        if self.hours >= most:
            return used
        each = _whole_s(self.pool) / 3600
        granted = self.granted + (count - 1) * each
        if self.hours + granted + each <= most:
            return ""
        others = f"machines that were requested may use {granted:.1f}, " if granted else ""
        return f"{used}; {others}another one {each:.1f}"

    def fill_up(self) -> None:
        """Request machines up to the pool's minimum."""
        while self.live + self.new < self.pool.min and not self.why_full():
            self.new += 1

    def take(self, request: LaunchRequest, packing: _Packing, now_s: float) -> None:
        """Carry out an operator's request, or answer it."""
        if now_s - request.requested_s > REQUEST_S:
            self._refuse(request, f"expired: no launcher carried it out within {format_duration(REQUEST_S)}")
        elif self.paused or self.brake:
            self._refuse(request, f"paused: {self.paused or self.brake}")
        elif not request.count:
            self.eager.append(request)
        elif self.live + self.new + request.count > self.pool.max:
            requested = f"{self.live + self.new} requested"
            self._refuse(request, f"{request.count} more would exceed max {self.pool.max} ({requested})")
        elif why := self._why_spent(self.new + request.count):
            self._refuse(request, why)
        else:
            for number in range(self.new, self.new + request.count):
                packing.add(offer_for(self.pool, _new_name(self.pool, number)))
            self.new += request.count
            self.counted.append(request)

    def _refuse(self, request: LaunchRequest, why: str) -> None:
        self.answers.append(AnswerRequest(pool=self.pool.name, id=request.id, why=why, code=LaunchRefused.code))

    def starts(self) -> list[StartAllocations]:
        """Return the machines of each request, then those for waiting jobs or the minimum."""
        name = self.pool.name
        found = [
            StartAllocations(
                pool=name,
                count=one.count,
                jobs=0,
                wanted=(),
                why=f"requested by {one.requester or 'an operator'}",
                request=one.id,
            )
            for one in self.counted
        ]
        others = self.new - sum(one.count for one in self.counted)
        if others:
            names = tuple(self.wanted[:_NAMED])
            like = f" and {self.jobs - 1} more" if self.jobs > 1 else ""
            why = f"for {names[0]}{like}: no free machine fits" if names else f"its minimum is {self.pool.min}"
            request = self.eager[0].id if self.eager else ""
            start = StartAllocations(pool=name, count=others, jobs=self.jobs, wanted=names, why=why, request=request)
            found.append(start)
        return found

    def all_answers(self, holds: Sequence[LaunchHold]) -> list[AnswerRequest]:
        """Return the answers to requests for which nothing starts."""
        if self.eager and self.new == sum(one.count for one in self.counted):
            hold = next((one for one in holds if one.pool == self.pool.name), None)
            job = f" for {hold.jobs[0]}" if hold is not None and hold.jobs else ""
            why = f"no allocation{job}: {hold.why}" if hold is not None else "no waiting job needs a machine"
            code = LaunchRefused.code if hold is not None else ""
            self.answers += [
                AnswerRequest(pool=self.pool.name, id=request.id, why=why, code=code) for request in self.eager
            ]
        return self.answers

    def cancels(self, used: set[str], now_s: float) -> list[CancelAllocation]:
        """Return requests without a job, in excess of the minimum, that are older than the pool's patience.

        What was requested by hand, for no job, stays.
        """
        spare = [
            one
            for one in self.allocations
            if self.pool.is_automatic
            and one.wanted
            and one.state in (AllocationState.SUBMITTED, AllocationState.WAITING)
            and one.machine not in used
            and now_s - one.planned_s > self.pool.patience_s
        ]
        most = max(0, self.live + self.new - self.pool.min)
        why = "no waiting job needs it"
        return [CancelAllocation(pool=self.pool.name, id=one.id, why=why) for one in spare[::-1][:most]]


class _Packing:
    """Waiting jobs on machines that are not there yet."""

    def __init__(self, machines: Sequence[tuple[Pool, str]]) -> None:
        """`machines` are on their way."""
        self.used: set[str] = set()
        """Allocations, by their machine's name, that have a job."""
        self._nodes = NodeIndex(offer_for(pool, machine) for pool, machine in machines)
        self._machines = machines

    def shape_of(self, demand: Demand) -> PlacementShape:
        """Return the shape of waiting jobs."""
        return self._nodes.shape_of(demand.job)

    def onto_allocations(self, demand: Demand, shape: PlacementShape) -> int:
        """Place jobs on machines that are on their way; return how many are left."""
        left = demand.count
        for pool, machine in self._machines:
            if _has_time(pool, demand):
                left -= self._fill(machine, shape, left)
        return left

    def onto_new(
        self,
        demand: Demand,
        shape: PlacementShape,
        count: int,
        budget: _Budget,
        *,
        now_s: float,
        has_machines: bool,
    ) -> tuple[int, str]:
        """Place jobs on further machines of a pool; return how many are left, and why."""
        pool, left = budget.pool, count
        # Machines that are new in this decision may have room.
        for number in range(budget.new):
            left -= self._fill(_new_name(pool, number), shape, left)
        if not left:
            return 0, ""
        why = why_unfit(pool, budget.idle, demand, shape) or _useless(budget.state, budget.allocations, demand)
        waited_s = now_s - demand.since_s
        if not why and has_machines and waited_s < pool.patience_s and not budget.eager:
            why = f"waits for a machine here first, {format_duration(pool.patience_s - waited_s)} more"
        while left and not why:
            why = budget.why_full()
            if not why:
                name = _new_name(pool, budget.new)
                self._nodes.put(offer_for(pool, name))
                placed = self._fill(name, shape, left)
                if not placed:
                    why = "does not fit a machine of it"
                    self._nodes.remove(name)
                    continue
                budget.new += 1
                left -= placed
        if left < count:
            budget.jobs += count - left
            budget.wanted += demand.names
        return left, why

    def add(self, offer: NodeOffer) -> None:
        """Add a machine that is new in this decision."""
        self._nodes.put(offer)

    def _fill(self, machine: str, shape: PlacementShape, most: int) -> int:
        placed = 0
        while placed < most and self._nodes.place_on(machine, shape) is not None:
            placed += 1
        if placed:
            self.used.add(machine)
        return placed


def _new_name(pool: Pool, number: int) -> str:
    return f"{pool.name}-new-{number}"


def _brake(allocations: Sequence[Allocation], now_s: float, *, since_s: float) -> str:
    """Return why a pool has to pause, by how its last allocations ended; empty if it has not to."""
    ended = sorted((one for one in allocations if one.is_over), key=lambda one: one.ended_s or 0.0)
    ended = [one for one in ended if (one.ended_s or 0.0) > since_s]
    for cause, most, what in (
        (AllocationCause.NEVER_JOINED, MOST_UNJOINED, "workers never joined"),
        (AllocationCause.NOT_SUBMITTED, MOST_REFUSED, "requests were lost"),
        (AllocationCause.REFUSED, MOST_REFUSED, "requests were refused"),
    ):
        last = [one for one in ended if one.cause is not AllocationCause.CANCELLED]
        if cause is not AllocationCause.NEVER_JOINED:
            # A request may be of many allocations, which are planned at once.
            last = list({one.planned_s: one for one in last}.values())
        last = last[-most:]
        if len(last) == most and all(one.cause is cause for one in last):
            said = next((one.message or one.reason for one in reversed(last) if one.message or one.reason), "")
            return f"{most} {what} in a row{f': {said}' if said else ''}"
    there = [
        one
        for one in ended
        if one.cause is AllocationCause.CANCELLED_THERE and now_s - (one.ended_s or 0.0) < CANCELLED_WITHIN_S
    ]
    if len(there) >= MOST_CANCELLED:
        within = format_duration(CANCELLED_WITHIN_S)
        return f"{len(there)} allocations were cancelled at the backend within {within}"
    return ""


def _useless(state: PoolState, allocations: Sequence[Allocation], demand: Demand) -> str:
    """Return why further machines would not help: the last ones, requested for such jobs, ended without any."""
    ended = [one for one in allocations if one.is_over and one.serving_s is not None]
    last = sorted(ended, key=lambda one: one.ended_s or 0.0)[-MOST_USELESS:]
    names, since_s = set(demand.names), state.resumed_s
    is_useless = [
        one.cause is AllocationCause.FINISHED
        and not one.grants
        and (one.ended_s or 0.0) > since_s
        and names.intersection(one.wanted)
        for one in last
    ]
    if len(last) < MOST_USELESS or not all(is_useless):
        return ""
    found = state.pool.lacks or "what they have differs from the declaration"
    again = f"try again: stoker pools resume {state.pool.name}"
    return f"the last {MOST_USELESS} machines of it got no job: {found}; {again}"


def _whole_s(pool: Pool) -> float:
    """Return how long a machine of a pool may be there within a day."""
    return min(pool.wall_s, _DAY_S)


def _left_s(allocation: Allocation, pool: Pool, now_s: float) -> float:
    """Return how long a live allocation may still be there within a day."""
    if allocation.started_s is None:
        return _whole_s(pool)
    ends_s = allocation.started_s + pool.wall_s if allocation.ends_s is None else allocation.ends_s
    return min(max(0.0, ends_s - now_s), _DAY_S)


def _hours(allocations: Iterable[Allocation], now_s: float) -> float:
    """Return the machine hours of the last day."""
    spans = (
        (max(one.started_s, now_s - _DAY_S), min(now_s, one.ended_s if one.ended_s is not None else now_s))
        for one in allocations
        if one.started_s is not None
    )
    return sum(max(0.0, end_s - start_s) for start_s, end_s in spans) / 3600
