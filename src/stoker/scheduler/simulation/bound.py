"""The lower bound: no schedule whatever ends a batch of jobs on a fleet before it.

Two bounds, the larger counts:

- **Area.** Every job takes part of some resource of the machine it runs on, for as long as it runs there; a fleet has
  so
  much of each resource per second. `placement.worth` finds the prices under which that says most. Only machines count
  where a job can run at all, each at its own speed, so jobs that few machines take weigh on those few.
- **The longest job**, on the fastest machine that takes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.frozen import frozen
from stoker.scheduler.simulation.workload import Batch
from stoker.scheduler.worth import Way, find_worth


@frozen
class Bound:
    """Both bounds, in seconds from the moment when all jobs wait."""

    area_s: float
    longest_s: float

    @property
    def seconds(self) -> float:
        return max(self.area_s, self.longest_s)


def lower_bound(batch: Batch, ways: Sequence[Sequence[Way]], sorts: int) -> Bound:
    """Bound the makespan of a batch whose shapes may be run in these ways; what can run nowhere is left out."""
    work_s = [0.0] * len(ways)
    longest_s = [0.0] * len(ways)
    for shape, work in zip(batch.shape_of, batch.work_s, strict=True):
        work_s[shape] += work
        longest_s[shape] = max(longest_s[shape], work)
    fastest = [max((way.speed for way in those), default=0.0) for those in ways]
    return Bound(
        area_s=find_worth(ways, work_s, sorts).bound_s,
        longest_s=max((work / speed for work, speed in zip(longest_s, fastest, strict=True) if speed), default=0.0),
    )
