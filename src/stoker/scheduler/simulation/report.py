"""What came out of a run: how long it took beside the bound, how machines were used, how long jobs waited, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stoker.model.digests import Digest, digest_bytes
from stoker.model.frozen import fields_of, frozen
from stoker.scheduler.simulation.bound import Bound
from stoker.scheduler.simulation.run import NOWHERE, Run
from stoker.scheduler.worth import Way

BINS = 120
"""A timeline has so many steps."""


@frozen
class SortUse:
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
class Report:
    """One run."""

    machines: int
    jobs: int
    shapes: int
    not_placeable: int
    """Jobs that no machine of this fleet could take, even idle."""
    decisions: int
    makespan_s: float
    bound: Bound
    uses: tuple[SortUse, ...]
    waits: tuple[Waits, ...]
    most_behind_s: float
    """By how much a job began later than at an even pace through the queue, at the most: nobody starved longer."""
    times_kept: int
    """How often a machine was kept for a job that was passed too often."""
    step_s: float
    waiting: tuple[int, ...]
    """How many jobs waited at the beginning of each step."""
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
            "digest": str(self.digest),
        }


def report_of(run: Run, bound: Bound) -> Report:
    """Make the report of a run that is over."""
    log, batch = run.log, run.batch
    started = [job for job in range(len(batch)) if log.node_of[job] != NOWHERE]
    makespan_s = max((log.end_s[job] for job in started), default=0.0)
    unable = set(run.unplaceable)
    step_s = makespan_s / BINS if makespan_s else 1.0
    return Report(
        machines=len(run.offers),
        jobs=len(batch),
        shapes=len(batch.shapes),
        not_placeable=sum(1 for shape in batch.shape_of if shape in unable) if unable else 0,
        decisions=run.decisions,
        makespan_s=makespan_s,
        bound=bound,
        uses=_uses(run, started, step_s),
        waits=_waits(run, started),
        most_behind_s=_most_behind_s(run, started),
        times_kept=run.turns.times_kept,
        step_s=step_s,
        waiting=_waiting(run, started, step_s),
        digest=digest_of(run),
    )


def digest_of(run: Run) -> Digest:
    """Name all decisions of a run: which job began when and where."""
    log = run.log
    return digest_bytes(log.started.tobytes() + log.start_s.tobytes() + log.node_of.tobytes())


def quantile(ordered: Sequence[float], part: float) -> float:
    """Give the smallest value that so large a part of all is no larger than."""
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
        """Give the mean of each step."""
        means, amount = [], 0.0
        for place in range(BINS):
            amount += self._changes[place]
            means.append(self._parts[place] / self._step_s + amount)
        return means


def _uses(run: Run, started: Sequence[int], step_s: float) -> tuple[SortUse, ...]:
    areas = [_Area(step_s) for _ in run.sorts]
    counts = [0] * len(run.sorts)
    parts = {
        (line, way.sort, way.on_devices): _part(run, way) for line, facts in enumerate(run.lines) for way in facts.ways
    }
    sorts = [run.sort_of(offer.node) for offer in run.offers]
    log, shape_of = run.log, run.batch.shape_of
    for job in started:
        sort = sorts[log.node_of[job]]
        counts[sort] += 1
        areas[sort].add(log.start_s[job], log.end_s[job], parts[shape_of[job], sort, bool(log.devices[job])])
    uses = []
    for alike, area, count in zip(run.sorts, areas, counts, strict=True):
        steps = [min(1.0, max(0.0, step)) for step in area.steps()]
        devices = len(alike.offer.devices) * alike.count
        mean = sum(steps) / len(steps)
        uses.append(
            SortUse(
                sort=alike.name, machines=alike.count, devices=devices, jobs=count, used=mean, timeline=tuple(steps)
            )
        )
    return tuple(uses)


def _part(run: Run, way: Way) -> float:
    """Give the part of all devices of its sort that a job takes, or of all cores where there are no devices."""
    names = ("devices",) if run.sorts[way.sort].offer.devices else ("cores", "slots")
    taken = [part for name in names if (part := way.part_of(name)) is not None]
    return taken[0] if taken else 0.0


def _waits(run: Run, started: Sequence[int]) -> tuple[Waits, ...]:
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


def _most_behind_s(run: Run, started: Sequence[int]) -> float:
    """Compare each start with that of its place in the queue, if all began one after the other at an even pace."""
    log, priority_of = run.log, run.batch.priority_of
    last_s = max((log.start_s[job] for job in started), default=0.0)
    pace_s = last_s / max(1, len(started))
    in_order = sorted(started, key=lambda job: (-priority_of[job], job))
    return max((log.start_s[job] - place * pace_s for place, job in enumerate(in_order)), default=0.0)


def _waiting(run: Run, started: Sequence[int], step_s: float) -> tuple[int, ...]:
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
