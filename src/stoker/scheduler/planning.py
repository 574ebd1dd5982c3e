"""Where a list of jobs would go: the strictest priority first, then in the order given, each with its reasons.

Nothing is started. Every job comes back, with its places, or with how many of it wait and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.model.frozen import changed, frozen
from stoker.model.requirements import WantedJob
from stoker.scheduler.explain import Explanation, explain
from stoker.scheduler.grouping import Groups
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.score import CostRule
from stoker.scheduler.shapes import Shape


@frozen
class Wanted:
    """A job, so many times: a sweep's trials are placed alike."""

    job: WantedJob
    count: int = 1


@frozen
class Planned:
    """What becomes of one job."""

    wanted: Wanted
    placed: tuple[PlacedJob, ...]
    explanation: Explanation | None = None
    """Of the first of its like that has to wait; if none has to, of the first, where explanations are wanted."""

    @property
    def waiting(self) -> int:
        return self.wanted.count - len(self.placed)


def plan_jobs(
    wanted: Iterable[Wanted], offers: Sequence[NodeOffer], *, cost: CostRule | None = None, explains_all: bool = False
) -> tuple[Planned, ...]:
    """Place jobs on a fleet as it stands; the answers are in the order of the jobs."""
    jobs = list(wanted)
    board = NodeIndex(offers, cost=cost)
    # All at once: the board looks at its nodes again for shapes that are new to it.
    shapes = [board.shape_of(one.job) for one in jobs]
    planning = _Planning(board, cost, explains_all=explains_all)
    planned: dict[int, Planned] = {}
    for at in sorted(range(len(jobs)), key=lambda at: -jobs[at].job.priority):
        planned[at] = planning.plan(jobs[at], shapes[at])
    return tuple(planned[at] for at in range(len(jobs)))


class _Planning:
    """Places jobs one after the other. Nothing is given back meanwhile, so a shape that found no room finds none."""

    def __init__(self, board: NodeIndex, cost: CostRule | None, *, explains_all: bool) -> None:
        self._board = board
        self._cost = cost
        self._explains_all = explains_all
        self._waiting: dict[int, Explanation] = {}
        self._groups = Groups()

    def plan(self, wanted: Wanted, shape: Shape) -> Planned:
        number = self._board.number_of(shape)
        known = self._waiting.get(number)
        if known is not None:
            # What kept the first of its like waiting keeps this one too: with a thousand machines, saying it anew for
            # each of ten thousand jobs would take hours.
            return Planned(wanted=wanted, placed=(), explanation=changed(known, job=wanted.job.name))
        explanation = self._explain(wanted) if self._explains_all else None
        placed: list[PlacedJob] = []
        while len(placed) < wanted.count:
            place = self._board.place(shape)
            if place is None:
                if placed or explanation is None:
                    explanation = self._explain(wanted)
                self._waiting[number] = explanation
                break
            placed.append(place)
        return Planned(wanted=wanted, placed=tuple(placed), explanation=explanation)

    def _explain(self, wanted: Wanted) -> Explanation:
        offers = [self._board.offer(node) for node in self._board.nodes]
        return explain(wanted.job, offers, cost=self._cost, groups=self._groups)
