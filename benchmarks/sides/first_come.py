"""First come, first served, with backfill: what waiting times are measured by.

One queue in the order of arrival. When a job comes, it starts on the fastest machine that has room for it, if any has.
When a job ends, its machine takes the oldest job that fits, and again until none does. For the oldest job of all that
wait, one machine is reserved, so that younger ones do not pass it for ever: the machine on which everything is expected
to end first, of those that could run it. A younger job starts there only if it is expected to end by then. Nobody waits
for a faster machine, and nobody asks whose job it is.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, nan

from stoker.scheduler.job_types import JobTypes
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.simulation.workload import WorkloadBatch


class FirstComeRun:
    """The rule on machines that refuse what they can't carry, with jobs that come over time."""

    def __init__(self, offers: Sequence[NodeOffer], batch: WorkloadBatch) -> None:
        self.batch = batch
        self.index = NodeIndex(offers)
        self.job_types = JobTypes(self.index)
        self.types = [self.job_types.of(one.wanted, one.expected_s)[0] for one in batch.shapes]
        self.speeds = {offer.node: [device.speed for device in offer.devices] for offer in offers}
        self.by_speed = sorted(self.speeds, key=lambda node: -max(self.speeds[node], default=0.0))
        self.fits = {node: self._fitting(node) for node in self.speeds}
        """By machine, the job types of which one could start there now."""
        self.when_idle = dict(self.fits)
        self.waiting: list[deque[int]] = [deque() for _ in batch.shapes]
        self.ends_s: dict[str, dict[int, float]] = {node: {} for node in self.speeds}
        """By machine, when its jobs are expected to end."""
        self.running: list[tuple[float, int, PlacedJob]] = []
        self.reserved_for: int | None = None
        self.reserved, self.until_s = "", 0.0
        self.start_s = array("d", [nan]) * len(batch)
        self.end_s = array("d", [nan]) * len(batch)

    def go(self) -> None:
        """Run everything."""
        next_job, come_s = 0, self.batch.come_s
        while self.running or next_job < len(self.batch):
            end_s = self.running[0][0] if self.running else inf
            if next_job < len(self.batch) and come_s[next_job] < end_s:
                self._come(next_job, come_s[next_job])
                next_job += 1
                continue
            end_s, job, placed = heappop(self.running)
            self.index.release(placed)
            del self.ends_s[placed.node][job]
            self.fits[placed.node] = self._fitting(placed.node)
            while (shape := self._oldest(placed.node, end_s)) is not None:
                self._start(self.waiting[shape].popleft(), placed.node, end_s)

    def _come(self, job: int, now_s: float) -> None:
        shape = self.batch.shape_of[job]
        if not self.waiting[shape]:
            for node in self.by_speed:
                if self._may_start(shape, node, now_s):
                    self._start(job, node, now_s)
                    return
        self.waiting[shape].append(job)

    def _oldest(self, node: str, now_s: float) -> int | None:
        """Return the shape of the oldest waiting job that may start on a machine."""
        self._reserve(now_s)
        able = [
            (jobs[0], shape)
            for shape, jobs in enumerate(self.waiting)
            if jobs and self._may_start(shape, node, now_s, is_first=jobs[0] == self.reserved_for)
        ]
        return min(able)[1] if able else None

    def _reserve(self, now_s: float) -> None:
        """Reserve a machine for the oldest job that waits, if none is."""
        first = min((jobs[0] for jobs in self.waiting if jobs), default=None)
        if first == self.reserved_for:
            return
        self.reserved_for, self.reserved, self.until_s = first, "", 0.0
        if first is not None:
            bits = self.types[self.batch.shape_of[first]].bits
            able = [node for node in self.by_speed if self.when_idle[node] & bits]
            free_s = {node: max(self.ends_s[node].values(), default=now_s) for node in able}
            self.reserved = min(able, key=free_s.__getitem__)
            self.until_s = free_s[self.reserved]

    def _may_start(self, shape: int, node: str, now_s: float, *, is_first: bool = False) -> bool:
        """Return whether a job fits a machine, and harms no reservation there."""
        if not self.types[shape].bits & self.fits[node]:
            return False
        if is_first or node != self.reserved:
            return True
        speed = max(self.speeds[node], default=1.0)
        return now_s + self.batch.shapes[shape].expected_s / speed <= self.until_s

    def _fitting(self, node: str) -> int:
        return self.job_types.expand(self.index.fitting(node))

    def _start(self, job: int, node: str, now_s: float) -> None:
        shape = self.batch.shape_of[job]
        one = self.types[shape]
        number = one.device_number
        if number is None or not self.fits[node] >> number & 1:
            number = one.cpu_number
        assert number is not None
        placed = self.index.place_on(node, self.job_types.shape_of[number])
        assert placed is not None
        speeds = [self.speeds[node][device.at] for device in placed.choice.devices]
        speed = min(speeds) if speeds else one.cpu_speed
        end_s = now_s + self.batch.work_s[job] / speed
        self.ends_s[node][job] = now_s + self.batch.shapes[shape].expected_s / speed
        self.start_s[job], self.end_s[job] = now_s, end_s
        self.fits[node] = self._fitting(node)
        heappush(self.running, (end_s, job, placed))
