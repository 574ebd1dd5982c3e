"""Simulations with pools: machines start by the launcher's own decision, take their time, and leave."""

from __future__ import annotations

import pytest

from stoker.core.clock import FakeClock
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, Node, Requirements, SchedulableJob
from stoker.core.pool import Allocation, AllocationState, Pool, PoolBackend, PoolShape, PoolState
from stoker.scheduler.machine_index import MatchableMachine
from stoker.scheduler.offers import NodeOffer, offer_of
from stoker.scheduler.scheduler import Scheduler
from stoker.scheduler.simulation.elastic_simulator import ElasticSimulator, PoolPlan, PoolUse
from stoker.scheduler.simulation.simulation_report import SimulationRequest, simulate, simulate_from
from stoker.scheduler.simulation.workload import JobShape, WorkloadBatch, mixes
from stoker.scheduler.snapshot import ReadyRecord, take

POOL = Pool(
    name="p", backend=PoolBackend.SLURM, each=PoolShape(cpu_cores=1), max=2, backlog=2, patience_s=10.0, idle_s=300.0
)
JOB = SchedulableJob(name="count", requirements=Requirements(wish=DevicePreference.NEVER, cores=1))
DESK = offer_of(Node(name="desk", host="desk", cpu_cores=1, ram_mb=65536))


def run(
    pool: Pool = POOL,
    *,
    jobs: int = 4,
    work_s: float = 600.0,
    stated_s: float | None = None,
    offers: tuple[NodeOffer, ...] = (),
    come_s: float = 0.0,
) -> tuple[ElasticSimulator, PoolUse]:
    shape = JobShape(wanted=JOB, expected_s=stated_s or work_s, weight=1.0, is_stated=stated_s is not None)
    batch = WorkloadBatch([shape])
    for _ in range(jobs):
        batch.add(0, work_s, come_s=come_s)
    made = ElasticSimulator(offers, batch, PoolPlan(pools=(PoolState(pool=pool),), start_delay_s=60.0))
    made.queue()
    made.begin()
    made.go()
    (use,) = made.uses()
    return made, use


def test_machines_start_after_the_delay_run_the_queue_and_idle_before_they_leave() -> None:
    simulator, use = run()
    assert use.starts == ((60.0, 2),), "no patience in an empty fleet"
    assert sorted(simulator.log.end_s) == [660.0, 660.0, 1260.0, 1260.0]
    assert (use.allocations, use.most_at_once, use.jobs, use.cancelled) == (2, 2, 4, 0)
    assert use.machine_hours == pytest.approx(2 * (1200 + 300) / 3600)
    assert use.idle_hours == pytest.approx(2 * 300 / 3600)


def test_jobs_wait_for_a_present_machine_before_others_are_requested() -> None:
    simulator, use = run(jobs=2, offers=(DESK,))
    assert use.starts == ((70.0, 1),)
    assert sorted(simulator.log.start_s) == [0.0, 70.0]


def test_no_machine_starts_for_jobs_that_the_fleet_takes_at_once() -> None:
    _, use = run(jobs=1, offers=(DESK,))
    assert (use.starts, use.machine_hours) == ((), 0.0)


def test_a_request_is_withdrawn_when_its_job_has_started_elsewhere() -> None:
    simulator, use = run(jobs=2, work_s=30.0, offers=(DESK,))
    assert (use.starts, use.cancelled) == ((), 1)
    assert sorted(simulator.log.start_s) == [0.0, 30.0]


def test_backlog_and_max_limit_what_starts() -> None:
    pool = changed(POOL, max=3, backlog=1)
    _, use = run(pool, jobs=10, work_s=3600.0)
    assert use.starts[:3] == ((60.0, 1), (120.0, 1), (180.0, 1))
    assert use.most_at_once == 3


def test_a_job_longer_than_the_time_of_a_machine_continues_and_none_of_its_work_is_repeated() -> None:
    pool = changed(POOL, max=1, wall_s=1200.0, drain_s=200.0)
    simulator, use = run(pool, jobs=1, work_s=2500.0)
    assert (use.allocations, use.continued, use.jobs) == (3, 2, 3)
    assert use.machine_hours * 3600 == pytest.approx(1000 + 1000 + 500 + 300)
    assert simulator.failures == 0
    assert simulator.log.start_s[0] - simulator.log.come_s[0] == pytest.approx(60 + 2 * 60 + 2, abs=3)


def test_a_job_that_is_stated_to_take_longer_than_a_machine_has_never_starts_one() -> None:
    pool = changed(POOL, wall_s=1200.0, drain_s=200.0)
    simulator, use = run(pool, jobs=1, work_s=2500.0, stated_s=2500.0)
    assert (use.starts, simulator.scheduler.ready.count) == ((), 1)


def test_a_minimum_is_kept_and_the_run_ends_nevertheless() -> None:
    _, use = run(changed(POOL, min=1, max=1), jobs=1, come_s=7200.0)
    assert use.allocations > 10, "each one left idle, and another was started"
    assert use.jobs == 1


def test_hours_of_the_day_are_a_limit() -> None:
    _, use = run(changed(POOL, max=1, max_hours=1.0, idle_s=60.0, wall_s=1800.0), jobs=8, work_s=1200.0)
    assert use.starts[-1][0] > 80_000.0, "the rest waited for the next day"
    assert use.jobs >= 8


def test_the_same_jobs_are_simulated_without_and_with_pools() -> None:
    mix = mixes()["edge"]
    plan = PoolPlan(pools=(PoolState(pool=changed(POOL, each=PoolShape(cpu_cores=16, ram_mb=65536), max=4)),))
    request = SimulationRequest(mix=mix, seed=3, jobs=40, shapes=10, offers=(DESK,), pools=plan)
    without, with_pools = simulate(changed(request, pools=None), FakeClock()), simulate(request, FakeClock())
    assert without.pools == ()
    assert with_pools.report.jobs == without.report.jobs == 40
    assert with_pools.report.not_placeable < without.report.not_placeable
    assert with_pools.pools[0].allocations > 0
    assert simulate(request, FakeClock()).report.digest == with_pools.report.digest


def test_a_live_queue_goes_on_with_the_allocations_that_it_has() -> None:
    scheduler = Scheduler()
    serving = Allocation(
        id="00000a", pool="p", state=AllocationState.SERVING, serving_s=900.0, started_s=900.0, ends_s=15_300.0
    )
    coming = Allocation(id="00000b", pool="p", state=AllocationState.WAITING, planned_s=970.0, wanted=("count",))
    machine = offer_of(Node(name=serving.machine, host="n1", cpu_cores=1, ram_mb=65536))
    scheduler.put_machine(MatchableMachine(machine))
    scheduler.put_class(1, JOB, expected_s=600.0)
    scheduler.ready.set_head(1, 0, 1, 3)
    snapshot = changed(take(scheduler, 1000.0), ready=(ReadyRecord(class_id=1, priority=0, runs=((1, 3),)),))
    plan = PoolPlan(
        pools=(PoolState(pool=POOL),), allocations=(serving, coming), start_delay_s=60.0, began_s=snapshot.now_s
    )
    simulator, simulated = simulate_from(snapshot, FakeClock(), pools=plan)
    (use,) = simulated.pools
    assert sorted(simulator.log.start_s) == [0.0, 30.0, 600.0]
    assert use.starts == ((30.0, 1),), "it was requested 30 s before"
    assert (use.most_at_once, simulated.unfinished) == (2, 0)
