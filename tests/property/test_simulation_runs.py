"""Simulations of any seed: everything that can run does, once, and no machine ever holds more than it has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.scheduler.offers import offer_of
from stoker.scheduler.simulation.simulation_report import lower_bound
from stoker.scheduler.simulation.simulator import NOWHERE, Simulator
from stoker.scheduler.simulation.workload import make_batch, make_nodes, make_shapes, mixes
from tests.lengths import examples
from tests.unit.scheduler.simulation.auditor import audit


@given(
    name=st.sampled_from(sorted(mixes())),
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 12),
    jobs=st.integers(1, 150),
    backlog=st.sampled_from([None, 1, 20]),
    is_equal=st.booleans(),
)
@settings(max_examples=examples(20, 40), deadline=None)
def test_any_fleet_works_off_any_queue(
    name: str, seed: int, nodes: int, jobs: int, backlog: int | None, is_equal: bool
) -> None:
    mix = mixes()[name]
    fleet = make_nodes(mix, nodes, seed)
    batch = make_batch(mix, make_shapes(mix, 12, seed), jobs, seed, is_equal=is_equal)
    run = Simulator([offer_of(node) for node in fleet], batch, backlog=backlog)
    run.queue()
    run.fill()
    run.go()
    unable = set(run.unplaceable)
    left_out = [f"job {job} never began" for job, shape in enumerate(batch.shape_of) if shape in unable]
    assert audit(fleet, batch, run.log) == left_out
    assert run.decisions == jobs - len(left_out)
    began = [job for job in range(jobs) if run.log.node_of[job] != NOWHERE]
    makespan_s = max((run.log.end_s[job] for job in began), default=0.0)
    bound = lower_bound(batch, run.options, run.counts)
    assert bound.seconds <= makespan_s * (1 + 1e-9)
