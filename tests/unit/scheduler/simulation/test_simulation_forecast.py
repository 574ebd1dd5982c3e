"""Forecasts: where and when jobs of a snapshot start, and why not now."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.frozen import changed
from stoker.core.machine import SchedulableJob
from stoker.scheduler.leases import HoldReason
from stoker.scheduler.offers import offer_of
from stoker.scheduler.simulation.forecast import SnapshotForecast
from stoker.scheduler.simulation.simulation_report import simulate_from
from stoker.scheduler.simulation.simulator import Disruptions, Simulator
from stoker.scheduler.simulation.workload import batch_of, make_nodes, mixes
from stoker.scheduler.snapshot import ClassRecord, LeaseRecord, MachineRecord, ReadyRecord, Snapshot, runs_of, take
from tests.unit.coordinator.fleets import Driven, box, card, cpu_job, gpu_job

FAST, SLOW = "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3080"


def state(driven: Driven, **more: Any) -> Snapshot:
    """The machines of a fleet, and nothing else."""
    offers = [one.offer for one in driven.scheduler.machines.machines.values()]
    return Snapshot(now_s=0.0, machines=tuple(MachineRecord(offer=offer) for offer in offers), **more)


def kind(wanted: SchedulableJob, expected_s: float | None = 600.0, class_id: int = 1, user: str = "") -> ClassRecord:
    return ClassRecord(class_id=class_id, wanted=wanted, user=user, expected_s=expected_s)


def line(*numbers: int, class_id: int = 1, priority: int = 0, **more: Any) -> ReadyRecord:
    return ReadyRecord(class_id=class_id, priority=priority, runs=runs_of(numbers), **more)


def lease(job: int, until_s: float, *devices: str, machine: str = "desk", **more: Any) -> LeaseRecord:
    return LeaseRecord(job=job, machine=machine, class_id=1, devices=devices, started_s=-60.0, until_s=until_s, **more)


def one_device(*leases: LeaseRecord, expected_s: float | None = 600.0, **more: Any) -> Snapshot:
    fleet = Driven(box("desk", card("GPU-1")))
    return state(fleet, classes=(kind(gpu_job(6), expected_s),), leases=leases, **more)


def test_jobs_start_one_after_the_other_where_a_lease_ends() -> None:
    forecast = SnapshotForecast(one_device(lease(1, 100.0, "GPU-1"), ready=(line(2, 3, 4),)))
    starts = [forecast.of(job) for job in (4, 2, 3)]
    found = [one.start for one in starts if one is not None and one.start is not None]
    assert [one.start_s for one in found] == pytest.approx([1300.0, 100.0, 700.0])
    assert {one.machine for one in found} == {"desk"}
    assert found[0].devices == ("GPU-1",)
    assert all(one.is_start_known and one.is_end_known for one in found)
    assert forecast.ends_s([2, 3, 4]) == pytest.approx(1900.0)


def test_a_job_that_is_not_in_the_queue_has_no_forecast() -> None:
    assert SnapshotForecast(one_device(ready=(line(2),))).of(9) is None


def test_a_start_behind_a_job_without_an_estimate_is_a_guess() -> None:
    unknown = one_device(lease(1, 540.0, "GPU-1", is_estimated=False), ready=(line(2),), expected_s=None)
    found = SnapshotForecast(unknown).of(2)
    assert found is not None
    assert found.start is not None
    assert (found.start.machine, found.start.is_start_known, found.start.is_end_known) == ("desk", False, False)
    by_progress = changed(unknown, leases=(lease(1, 40.0, "GPU-1"),))
    known = SnapshotForecast(by_progress).of(2)
    assert known is not None
    assert known.start is not None
    assert (known.start.start_s, known.start.is_start_known, known.start.is_end_known) == (40.0, True, False)


def test_a_guess_on_one_machine_is_none_on_another() -> None:
    fleet = Driven(box("desk", card("GPU-1")), box("cpu"))
    unknown = lease(1, 540.0, "GPU-1", is_estimated=False)
    taken = state(
        fleet,
        classes=(kind(gpu_job(6), None), kind(cpu_job(28), 60.0, 2)),
        leases=(
            unknown,
            changed(unknown, job=5, machine="cpu", class_id=2, devices=(), until_s=20.0, is_estimated=True),
        ),
        ready=(line(2), line(3, class_id=2)),
    )
    found = SnapshotForecast(taken).of(3)
    assert found is not None
    assert found.start is not None
    assert (found.start.machine, found.start.start_s, found.start.is_start_known) == ("cpu", 20.0, True)


def test_an_overdue_lease_is_expected_to_take_as_much_longer_as_it_is_over_its_time() -> None:
    found = SnapshotForecast(one_device(lease(1, -50.0, "GPU-1"), ready=(line(2),))).of(2)
    assert found is not None
    assert found.start is not None
    assert found.start.start_s == 50.0


def test_the_forecast_ends_after_its_number_of_decisions_and_says_from_when_on_it_does_not_know() -> None:
    taken = one_device(lease(1, 100.0, "GPU-1"), ready=(line(*range(2, 30)),))
    found = SnapshotForecast(taken, most=5).of(29)
    assert found is not None
    assert found.start is None
    assert found.not_before_s == pytest.approx(100.0 + 4 * 600.0)


def test_a_line_of_which_only_the_beginning_has_numbers_is_forecast_as_far_as_that() -> None:
    taken = one_device(lease(1, 100.0, "GPU-1"), ready=(line(2, 3, more=500), line(600, class_id=2)))
    taken = changed(taken, classes=(*taken.classes, kind(gpu_job(20), 600.0, 2)))
    found = SnapshotForecast(taken).of(600)
    assert found is not None
    assert found.start is None
    assert found.not_before_s == pytest.approx(100.0 + 2 * 600.0)


def test_a_job_waits_for_a_faster_machine_and_the_forecast_names_it_and_when_it_would_end_elsewhere() -> None:
    fleet = Driven(box("fast", card("GPU-1", name=FAST)), box("slow", card("GPU-2", name="Jetson Nano")))
    taken = state(
        fleet,
        classes=(kind(gpu_job(6), 3600.0),),
        leases=(lease(1, 300.0, "GPU-1", machine="fast"),),
        ready=(line(2),),
    )
    found = SnapshotForecast(taken).of(2)
    assert found is not None
    assert found.start is not None
    assert (found.start.machine, found.start.start_s) == ("fast", 300.0)
    (held,) = found.held_back
    assert (held.machine, held.reason) == ("slow", HoldReason.FASTER)
    assert held.end_s == pytest.approx(3600.0 / 0.02, rel=0.06)


def test_a_machine_that_an_earlier_job_gets_first_is_named_with_that_job() -> None:
    found = SnapshotForecast(one_device(ready=(line(2, 3),))).of(3)
    assert found is not None
    (held,) = found.held_back
    assert (held.machine, held.reason, held.first) == ("desk", HoldReason.ORDER, 2)


def test_a_machine_that_does_not_answer_gets_nothing() -> None:
    taken = one_device(ready=(line(2),))
    silent = changed(taken, machines=(changed(taken.machines[0], is_silent=True),))
    found = SnapshotForecast(silent).of(2)
    assert found is not None
    assert (found.start, found.not_before_s) == (None, None)


def test_a_declined_job_is_offered_again_when_the_time_is_over_and_the_next_one_meanwhile() -> None:
    taken = one_device(ready=(line(2, 3),))
    declining = changed(taken, machines=(changed(taken.machines[0], is_doubted=True, declined=((2, 30.0),)),))
    forecast = SnapshotForecast(declining)
    found = [forecast.of(job) for job in (3, 2)]
    starts = [one.start.start_s for one in found if one is not None and one.start is not None]
    assert starts == pytest.approx([0.0, 600.0])


def test_a_job_that_becomes_ready_later_starts_then() -> None:
    found = SnapshotForecast(one_device(ready=(line(7, come_s=90.0),))).of(7)
    assert found is not None
    assert found.start is not None
    assert found.start.start_s == 90.0


def test_shares_of_users_with_jobs_are_known() -> None:
    taken = one_device(ready=(line(2), line(3, class_id=2)))
    taken = changed(
        taken,
        classes=(kind(gpu_job(6), user="ada"), kind(gpu_job(6), 600.0, 2, user="bob")),
        usage_s=(("ada", 300.0), ("bob", 100.0), ("eve", 900.0)),
    )
    shares = SnapshotForecast(taken).shares
    assert set(shares) == {"ada", "bob"}
    assert shares["ada"].fair_share == 0.5
    assert shares["ada"].share > shares["bob"].share


# -- simulations that begin with a snapshot


def test_more_machines_end_a_queue_earlier() -> None:
    taken = one_device(lease(1, 100.0, "GPU-1"), ready=(line(*range(2, 12)),))
    nodes = make_nodes(mixes()["desktop"], 3, 1)
    _, alone = simulate_from(taken, FakeClock())
    _, helped = simulate_from(taken, FakeClock(), added=[offer_of(node) for node in nodes])
    assert alone.report.makespan_s == pytest.approx(6100.0)
    assert helped.report.makespan_s < alone.report.makespan_s / 2
    assert (alone.report.jobs, alone.report.running, alone.report.decisions) == (11, 1, 10)
    assert [waits.jobs for waits in alone.report.waits] == [10]


def test_what_runs_on_a_machine_that_leaves_runs_again_elsewhere() -> None:
    fleet = Driven(box("desk", card("GPU-1")), box("lab", card("GPU-2")))
    taken = state(fleet, classes=(kind(gpu_job(6)),), leases=(lease(1, 500.0, "GPU-1"),), ready=(line(2),))
    run, simulated = simulate_from(taken, FakeClock(), disruptions=Disruptions(leaves_s={"desk": 200.0}))
    assert run.failures == simulated.report.failures == 1
    row = list(run.batch.numbers).index(1)
    assert run.offers[run.log.node_of[row]].node == "lab"
    assert (run.log.start_s[row], run.log.end_s[row]) == pytest.approx((600.0, 1200.0))
    assert run.scheduler.machines.machines.keys() == {"lab"}


def test_attempts_that_fail_run_again_until_all_are_done() -> None:
    taken = one_device(ready=(line(*range(2, 42)),))
    run, simulated = simulate_from(taken, FakeClock(), disruptions=Disruptions(fail=0.3, seed=4))
    assert 3 < simulated.report.failures < 40
    assert simulated.report.decisions == 40 + simulated.report.failures
    assert 40 * 600.0 < simulated.report.makespan_s < 60 * 600.0
    assert not run.scheduler.ready.count
    again, _ = simulate_from(taken, FakeClock(), disruptions=Disruptions(fail=0.3, seed=4))
    assert list(again.log.start_s) == list(run.log.start_s)


def test_a_run_from_a_snapshot_decides_as_one_that_was_never_interrupted() -> None:
    """Half of a queue runs, a snapshot is taken, and the rest runs from it: every job starts as it would have."""
    fleet = Driven(box("fast", card("GPU-1", name=FAST)), box("slow", card("GPU-2", name=SLOW)), box("cpu"))
    # Of all estimates within a tenth one stands for all: these are such, so that jobs end when they are expected to.
    classes = (kind(gpu_job(6), 1.1**67), kind(cpu_job(), 1.1**47, 2), kind(gpu_job(4), 1.1**58, 3))
    lines = (line(*range(1, 30, 3)), line(*range(2, 30, 3), class_id=2), line(*range(3, 30, 3), class_id=3))
    taken = state(fleet, classes=classes, ready=lines)
    whole = Simulator([one.offer for one in taken.machines], batch_of(taken), snapshot=taken)
    whole.begin()
    whole.go()
    half = Simulator([one.offer for one in taken.machines], batch_of(taken), snapshot=taken)
    half.begin()
    half.go(until=14)
    later = _continued(half)
    rest = Simulator([one.offer for one in later.machines], batch_of(later), snapshot=later)
    rest.begin()
    rest.go()
    for number, start_s, node in _rows(rest, half.now_s):
        row = list(whole.batch.numbers).index(number)
        assert whole.offers[whole.log.node_of[row]].node == node
        assert whole.log.start_s[row] == pytest.approx(start_s)


def _continued(run: Simulator) -> Snapshot:
    """The state of a simulation in the middle of it, with the numbers of its jobs."""
    rows = range(len(run.batch))
    running = {
        (run.offers[run.log.node_of[row]].node, run.log.devices[row], run.log.start_s[row]): run.batch.numbers[row]
        for row in rows
        if run.log.end_s[row] > run.now_s
    }
    leases = [
        (running[one.allocation.machine, one.allocation.devices, one.started_s], one.allocation)
        for one in run.scheduler.machines.leases()
    ]
    taken = take(run.scheduler, run.now_s, running=leases)
    waiting: dict[int, list[int]] = {}
    for row in rows:
        if run.log.devices[row] is None:
            waiting.setdefault(run.batch.class_ids[run.batch.shape_of[row]], []).append(run.batch.numbers[row])
    ready = [changed(level, runs=runs_of(waiting[level.class_id]), more=0) for level in taken.ready]
    return changed(taken, ready=tuple(ready))


def _rows(run: Simulator, began_s: float) -> list[tuple[int, float, str]]:
    return [
        (run.batch.numbers[row], run.log.start_s[row] + began_s, run.offers[run.log.node_of[row]].node)
        for row in run.log.started
    ]


def test_a_machine_that_leaves_too_soon_is_named_with_the_time_that_it_has() -> None:
    snapshot = one_device(ready=(line(2),), expected_s=7200.0)
    leaving = changed(snapshot, machines=(changed(snapshot.machines[0], ends_s=2280.0),))
    found = SnapshotForecast(leaving).of(2)
    assert found is not None
    (held,) = found.held_back
    assert held.reason == HoldReason.ENDS
    assert held.left_s == 2280.0
    assert held.end_s == pytest.approx(7200.0, rel=0.05)
