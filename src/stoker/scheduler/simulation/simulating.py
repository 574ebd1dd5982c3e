"""One simulation from what was asked to its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.model.clock import Clock
from stoker.model.frozen import frozen
from stoker.scheduler.offers import NodeOffer, offer_of
from stoker.scheduler.simulation.bound import lower_bound
from stoker.scheduler.simulation.report import Report, report_of
from stoker.scheduler.simulation.run import Run
from stoker.scheduler.simulation.workload import Mix, make_batch, make_nodes, make_shapes


@frozen
class Asked:
    """What to simulate."""

    mix: Mix
    seed: int
    nodes: int = 200
    jobs: int = 10_000
    shapes: int = 200
    is_equal: bool = False
    """All jobs have the same priority."""
    offers: Sequence[NodeOffer] = ()
    """Machines instead of those of the mix."""


@frozen
class Simulated:
    """What came out, and how long it took to find out."""

    report: Report
    seconds: float
    """For all decisions: the queue's work, choosing, taking and releasing; making fleet and queue is not counted."""

    @property
    def decisions_per_s(self) -> float:
        return self.report.decisions / self.seconds if self.seconds else 0.0


def simulate(asked: Asked, clock: Clock, heed: Callable[[int], None] = lambda _count: None) -> Simulated:
    """Make a fleet and a queue, let it run, and report; `heed` is told now and then how many jobs have started."""
    offers = asked.offers or [offer_of(node) for node in make_nodes(asked.mix, asked.nodes, asked.seed)]
    shapes = make_shapes(asked.mix, asked.shapes, asked.seed)
    batch = make_batch(asked.mix, shapes, asked.jobs, asked.seed, is_equal=asked.is_equal)
    heed(0)
    run = Run(offers, batch)
    run.queue()
    began_s = clock.monotonic_s()
    run.fill()
    run.go(heed)
    seconds = clock.monotonic_s() - began_s
    bound = lower_bound(batch, [line.ways for line in run.lines], len(run.sorts))
    return Simulated(report=report_of(run, bound), seconds=seconds)
