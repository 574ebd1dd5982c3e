"""What came out of a simulation: makespan and its lower bound, how machines were used, how long jobs waited, and when.

No schedule ends a batch of jobs on a fleet before the lower bound. Two bounds, the larger counts:

- **Area.** Every job takes part of some resource of the machine on which it runs; a fleet has so much of each resource
  per second. `prices` finds the prices under which that says most. Only machines count where a job can run at all, each
  at its own speed, so jobs that few machines can run weigh on those few.
- **The longest job**, on the fastest machine that can run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.frozen import fields_of, frozen
from stoker.scheduler.offers import NodeOffer, offer_of
from stoker.scheduler.prices import RunOption, find_prices
from stoker.scheduler.simulation.elastic_simulator import ElasticSimulator, PoolPlan, PoolUse
from stoker.scheduler.simulation.simulator import NOWHERE, Disruptions, Simulator
from stoker.scheduler.simulation.workload import Mix, WorkloadBatch, batch_of, make_batch, make_nodes, make_shapes
from stoker.scheduler.snapshot import Snapshot

BINS = 120
"""A timeline has so many steps."""


@frozen
class MakespanBound:
    """Both bounds, in seconds from the moment when all jobs are ready."""

    area_s: float
    longest_s: float

    @property
    def seconds(self) -> float:
        return max(self.area_s, self.longest_s)


def lower_bound(batch: WorkloadBatch, options: Sequence[Sequence[RunOption]], counts: Sequence[int]) -> MakespanBound:
    """Bound the makespan of a batch whose shapes may be run in these ways; what can run nowhere is left out."""
    work_s = [0.0] * len(options)
    longest_s = [0.0] * len(options)
    for shape, work in zip(batch.shape_of, batch.work_s, strict=True):
        work_s[shape] += work
        longest_s[shape] = max(longest_s[shape], work)
    fastest = [max((option.speed for option in those), default=0.0) for those in options]
    return MakespanBound(
        area_s=find_prices(options, work_s, counts).bound_s,
        longest_s=max((work / speed for work, speed in zip(longest_s, fastest, strict=True) if speed), default=0.0),
    )


@frozen
class NodeTypeUse:
    """How one sort of machine was used: its devices, or where it has none, its cores."""

    sort: str
    machines: int
    devices: int
    jobs: int
    used: float
    """Part of the makespan in which it worked."""
    timeline: tuple[float, ...]
    """The same for each step."""


@frozen
class Waits:
    """How long jobs of one priority waited."""

    priority: int
    jobs: int
    median_s: float
    p95_s: float
    max_s: float


@frozen
class SimulationReport:
    """One run."""

    machines: int
    jobs: int
    shapes: int
    not_placeable: int
    """Jobs that no machine of this fleet could take, even idle."""
    decisions: int
    makespan_s: float
    bound: MakespanBound
    uses: tuple[NodeTypeUse, ...]
    waits: tuple[Waits, ...]
    most_behind_s: float
    """Largest delay of a job's start compared with an even pace through the queue: no job starved longer."""
    times_kept: int
    """How often a machine was kept for a job that was passed too often."""
    step_s: float
    waiting: tuple[int, ...]
    """How many jobs waited at the beginning of each step."""
    failures: int
    """Attempts that failed, or were lost with their machine; their jobs ran again."""
    running: int
    """Jobs that ran when it began."""
    digest: Digest
    """Of all decisions: equal for equal runs."""

    @property
    def ratio(self) -> float:
        """The makespan beside the bound: 1 is as good as can be."""
        return self.makespan_s / self.bound.seconds if self.bound.seconds else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "machines": self.machines,
            "jobs": self.jobs,
            "shapes": self.shapes,
            "not_placeable": self.not_placeable,
            "decisions": self.decisions,
            "makespan_s": self.makespan_s,
            "bound_s": self.bound.seconds,
            "area_bound_s": self.bound.area_s,
            "longest_job_s": self.bound.longest_s,
            "ratio": self.ratio,
            "most_behind_s": self.most_behind_s,
            "times_kept": self.times_kept,
            "use": [{**fields_of(use), "timeline": list(use.timeline)} for use in self.uses],
            "waits": [fields_of(waits) for waits in self.waits],
            "step_s": self.step_s,
            "waiting": list(self.waiting),
            "failures": self.failures,
            "running": self.running,
            "digest": str(self.digest),
        }


def report_of(run: Simulator, bound: MakespanBound) -> SimulationReport:
    """Make the report of a run that is over."""
    log, batch = run.log, run.batch
    started = [job for job in range(len(batch)) if log.node_of[job] != NOWHERE]
    came = [job for job in started if job >= batch.running]
    makespan_s = max((log.end_s[job] for job in started), default=0.0)
    unable = set(run.unplaceable)
    step_s = makespan_s / BINS if makespan_s else 1.0
    return SimulationReport(
        machines=len(run.offers),
        jobs=len(batch),
        shapes=len(batch.shapes),
        not_placeable=sum(1 for shape in batch.shape_of if shape in unable) if unable else 0,
        decisions=run.decisions,
        makespan_s=makespan_s,
        bound=bound,
        uses=_uses(run, started, step_s),
        waits=_waits(run, came),
        most_behind_s=_most_behind_s(run, came),
        times_kept=run.scheduler.policy.reservations.times_kept,
        step_s=step_s,
        waiting=_waiting(run, came, step_s),
        failures=run.failures,
        running=batch.running,
        digest=digest_of(run),
    )


def digest_of(run: Simulator) -> Digest:
    """Name all decisions of a run: which job began when and where."""
    log = run.log
    return digest_bytes(log.started.tobytes() + log.start_s.tobytes() + log.node_of.tobytes())


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that so large a part of all is no larger than."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


class _Area:
    """Amounts over time, added up by step."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._parts = [0.0] * (BINS + 1)
        self._changes = [0.0] * (BINS + 2)

    def add(self, start_s: float, end_s: float, amount: float) -> None:
        step_s = self._step_s
        first, last = min(int(start_s / step_s), BINS), min(int(end_s / step_s), BINS)
        if first == last:
            self._parts[first] += (end_s - start_s) * amount
            return
        self._parts[first] += ((first + 1) * step_s - start_s) * amount
        self._parts[last] += (end_s - last * step_s) * amount
        self._changes[first + 1] += amount
        self._changes[last] -= amount

    def steps(self) -> list[float]:
        """Return the mean of each step."""
        means, amount = [], 0.0
        for place in range(BINS):
            amount += self._changes[place]
            means.append(self._parts[place] / self._step_s + amount)
        return means


def _uses(run: Simulator, started: Sequence[int], step_s: float) -> tuple[NodeTypeUse, ...]:
    areas = [_Area(step_s) for _ in run.node_types]
    counts = [0] * len(run.node_types)
    parts = {
        (class_id, option.node_type, option.on_devices): _part(run, option)
        / max(1, run.node_types[option.node_type].count)
        for class_id, options in enumerate(run.options)
        for option in options
    }
    sorts = [run.node_type_of(offer.node) for offer in run.offers]
    log, shape_of = run.log, run.batch.shape_of
    for job in started:
        sort = sorts[log.node_of[job]]
        counts[sort] += 1
        areas[sort].add(max(0.0, log.start_s[job]), log.end_s[job], parts[shape_of[job], sort, bool(log.devices[job])])
    uses = []
    for alike, area, count in zip(run.node_types, areas, counts, strict=True):
        steps = [min(1.0, max(0.0, step)) for step in area.steps()]
        devices = len(alike.offer.devices) * alike.count
        mean = sum(steps) / len(steps)
        uses.append(
            NodeTypeUse(
                sort=alike.name, machines=alike.count, devices=devices, jobs=count, used=mean, timeline=tuple(steps)
            )
        )
    return tuple(uses)


def _part(run: Simulator, option: RunOption) -> float:
    """Return the part of a machine's devices that a job takes, or of its cores where it has no devices."""
    names = ("devices",) if run.node_types[option.node_type].offer.devices else ("cores", "slots")
    taken = [part for name in names if (part := option.part_of(name)) is not None]
    return taken[0] if taken else 0.0


def _waits(run: Simulator, started: Sequence[int]) -> tuple[Waits, ...]:
    by_priority: dict[int, list[float]] = {}
    log = run.log
    for job in started:
        by_priority.setdefault(run.batch.priority_of[job], []).append(log.start_s[job] - log.come_s[job])
    waits = []
    for priority, seconds in sorted(by_priority.items(), reverse=True):
        seconds.sort()
        waits.append(
            Waits(
                priority=priority,
                jobs=len(seconds),
                median_s=quantile(seconds, 0.5),
                p95_s=quantile(seconds, 0.95),
                max_s=seconds[-1],
            )
        )
    return tuple(waits)


def _most_behind_s(run: Simulator, started: Sequence[int]) -> float:
    """Compare each start with that of its place in the queue, if all began one after the other at an even pace."""
    log, priority_of = run.log, run.batch.priority_of
    last_s = max((log.start_s[job] for job in started), default=0.0)
    pace_s = last_s / max(1, len(started))
    in_order = sorted(started, key=lambda job: (-priority_of[job], job))
    return max((log.start_s[job] - place * pace_s for place, job in enumerate(in_order)), default=0.0)


def _waiting(run: Simulator, started: Sequence[int], step_s: float) -> tuple[int, ...]:
    changes = [0] * (BINS + 2)
    log = run.log
    for job in started:
        changes[min(math.ceil(log.come_s[job] / step_s), BINS + 1)] += 1
        changes[min(math.ceil(log.start_s[job] / step_s), BINS + 1)] -= 1
    counts, count = [], 0
    for place in range(BINS + 1):
        count += changes[place]
        counts.append(count)
    return tuple(counts)


@frozen
class SimulationRequest:
    """What to simulate."""

    mix: Mix
    seed: int
    nodes: int = 200
    jobs: int = 10_000
    shapes: int = 200
    is_equal: bool = False
    """All jobs have the same priority."""
    offers: Sequence[NodeOffer] | None = None
    """Machines instead of those of the mix."""
    pools: PoolPlan | None = None
    """Pools whose machines start when jobs wait."""
    users: int = 1
    span_s: float = 0.0
    """Over how long jobs come; 0: all are ready at the beginning."""
    fail: float = 0.0
    """The part of all attempts that fail."""
    leave: int = 0
    """How many machines go away midway."""


@frozen
class SimulationResult:
    """What came out, and how long it took to find out."""

    report: SimulationReport
    seconds: float
    """For all decisions: the queue's work, choosing, granting and releasing; building both is not counted."""
    pools: tuple[PoolUse, ...] = ()
    unfinished: int = 0
    """Jobs that still waited when nothing more could happen."""

    @property
    def decisions_per_s(self) -> float:
        return self.report.decisions / self.seconds if self.seconds else 0.0


def simulate(
    request: SimulationRequest, clock: Clock, heed: Callable[[int], None] = lambda _count: None
) -> SimulationResult:
    """Build fleet and queue, run, and report; `heed` is called now and then with the number of started jobs."""
    offers = request.offers
    if offers is None:
        offers = [offer_of(node) for node in make_nodes(request.mix, request.nodes, request.seed)]
    shapes = make_shapes(request.mix, request.shapes, request.seed)
    batch = make_batch(
        request.mix,
        shapes,
        request.jobs,
        request.seed,
        is_equal=request.is_equal,
        users=request.users,
        span_s=request.span_s,
    )
    heed(0)
    run = _simulator(offers, batch, request.pools)
    bound = lower_bound(batch, run.options, run.counts)
    if request.fail or request.leave:
        over_s = max(bound.seconds, request.span_s)
        leaves_s = midway([offer.node for offer in offers], request.leave, over_s, request.seed)
        disruptions = Disruptions(fail=request.fail, leaves_s=leaves_s, seed=request.seed)
        run = _simulator(offers, batch, request.pools, disruptions=disruptions)
    return run_through(run, bound, clock, heed)


def simulate_from(  # noqa: PLR0913 - what a simulation begins with, and what happens in it
    snapshot: Snapshot,
    clock: Clock,
    *,
    added: Sequence[NodeOffer] = (),
    disruptions: Disruptions | None = None,
    pools: PoolPlan | None = None,
    most: int = 0,
    heed: Callable[[int], None] = lambda _count: None,
) -> tuple[Simulator, SimulationResult]:
    """Let the jobs of a snapshot run to their end, with more machines; of those that it only counts, `most`."""
    offers = [*[one.offer for one in snapshot.machines], *added]
    batch = batch_of(snapshot, most)
    run = _simulator(offers, batch, pools, disruptions=disruptions, snapshot=snapshot)
    return run, run_through(run, lower_bound(batch, run.options, run.counts), clock, heed)


def _simulator(
    offers: Sequence[NodeOffer],
    batch: WorkloadBatch,
    pools: PoolPlan | None,
    *,
    disruptions: Disruptions | None = None,
    snapshot: Snapshot | None = None,
) -> Simulator:
    if pools is None:
        return Simulator(offers, batch, disruptions=disruptions, snapshot=snapshot)
    return ElasticSimulator(offers, batch, pools, disruptions=disruptions, snapshot=snapshot)


def midway(nodes: Sequence[str], count: int, over_s: float, seed: int) -> dict[str, float]:
    """Draw machines that go away, and when: in the middle half of a time."""
    random = Random(f"leaving {seed}").random  # noqa: S311 - reproducible on purpose
    left = list(nodes)
    return {left.pop(int(random() * len(left))): over_s * (0.25 + random() / 2) for _ in range(min(count, len(left)))}


def run_through(run: Simulator, bound: MakespanBound, clock: Clock, heed: Callable[[int], None]) -> SimulationResult:
    """Let everything run to its end, and report."""
    # The jobs come before the time counts: that is the submitter's work.
    run.queue()
    began_s = clock.monotonic_s()
    run.begin()
    run.go(heed)
    seconds = clock.monotonic_s() - began_s
    pools = run.uses() if isinstance(run, ElasticSimulator) else ()
    return SimulationResult(
        report=report_of(run, bound), seconds=seconds, pools=pools, unfinished=run.scheduler.ready.count
    )
