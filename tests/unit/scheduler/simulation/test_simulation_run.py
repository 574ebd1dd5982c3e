from __future__ import annotations

from functools import cache

import pytest

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.scheduler.offers import offer_of
from stoker.scheduler.simulation.simulation_report import digest_of
from stoker.scheduler.simulation.simulator import NOWHERE, Simulator
from stoker.scheduler.simulation.workload import JobShape, WorkloadBatch, make_batch, make_nodes, make_shapes, mixes
from tests.unit.scheduler.simulation.auditor import audit

MIXES = sorted(mixes())
NODES, JOBS = 20, 500


@cache
def finished(name: str, *, is_equal: bool, jobs: int = JOBS) -> Simulator:
    mix = mixes()[name]
    shapes = make_shapes(mix, 60, mix.seed)
    run = Simulator(
        [offer_of(node) for node in make_nodes(mix, NODES, mix.seed)],
        make_batch(mix, shapes, jobs, mix.seed, is_equal=is_equal),
    )
    run.queue()
    run.fill()
    run.go()
    return run


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("is_equal", [True, False], ids=["equal", "priorities"])
def test_every_job_runs_once_and_no_machine_ever_holds_more_than_it_has(name: str, is_equal: bool) -> None:
    run = finished(name, is_equal=is_equal)
    mix = mixes()[name]
    assert not run.unplaceable
    assert audit(make_nodes(mix, NODES, mix.seed), run.batch, run.log) == []


def test_the_auditor_sees_a_machine_that_holds_too_much() -> None:
    mix = mixes()["desktop"]
    nodes = make_nodes(mix, NODES, mix.seed)
    run = Simulator([offer_of(node) for node in nodes], finished("desktop", is_equal=True).batch)
    run.queue()
    run.fill()
    run.go()
    log = run.log
    first = log.started[0]
    later = next(job for job in log.started if log.node_of[job] == log.node_of[first] and log.start_s[job] > 0)
    log.start_s[later], log.end_s[later] = 0.0, log.end_s[later] - log.start_s[later]
    assert audit(nodes, run.batch, log)


@pytest.mark.parametrize("name", MIXES)
def test_jobs_of_one_shape_and_priority_begin_in_the_order_in_which_they_came(name: str) -> None:
    run = finished(name, is_equal=False)
    last: dict[tuple[int, int], int] = {}
    for job in run.log.started:
        line = (run.batch.shape_of[job], run.batch.priority_of[job])
        assert last.get(line, -1) < job
        last[line] = job


def test_a_shape_s_higher_priority_goes_first() -> None:
    run = finished("everything", is_equal=False)
    waiting: dict[int, list[int]] = {}
    for job, (shape, priority) in enumerate(zip(run.batch.shape_of, run.batch.priority_of, strict=True)):
        waiting.setdefault(shape, []).append(priority)
        assert job < JOBS
    for job in run.log.started:
        shape, priority = run.batch.shape_of[job], run.batch.priority_of[job]
        assert priority == max(waiting[shape])
        waiting[shape].remove(priority)


def test_the_same_seed_gives_the_same_decisions_and_another_one_others() -> None:
    mix = mixes()["everything"]
    shapes = make_shapes(mix, 40, 1)
    offers = [offer_of(node) for node in make_nodes(mix, 20, 1)]

    def digest(seed: int) -> str:
        run = Simulator(offers, make_batch(mix, shapes, 400, seed))
        run.queue()
        run.fill()
        run.go()
        return digest_of(run)

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_a_backlog_lets_a_job_come_whenever_one_starts() -> None:
    mix = mixes()["desktop"]
    shapes = make_shapes(mix, 20, 1)
    run = Simulator(
        [offer_of(node) for node in make_nodes(mix, 10, 1)],
        make_batch(mix, shapes, 300, 1, is_equal=True),
        backlog=50,
    )
    run.queue()
    assert run.scheduler.ready.count == 50
    run.fill()
    assert run.scheduler.ready.count == 50
    run.go(until=200)
    assert run.scheduler.ready.count == 50
    run.go()
    assert run.scheduler.ready.count == 0
    assert run.decisions == 300
    assert max(run.log.come_s) > 0


def test_what_fits_no_machine_even_idle_is_said_and_left_out() -> None:
    batch = WorkloadBatch([shape(vram_gib=8), shape(vram_gib=80)])
    batch.add(0, 60.0)
    batch.add(1, 60.0)
    run = Simulator([offer_of(desktop("a"))], batch)
    run.queue()
    run.fill()
    run.go()
    assert run.unplaceable == [1]
    assert run.log.node_of[1] == NOWHERE
    assert run.decisions == 1


def test_a_slow_machine_does_not_begin_what_would_outlast_everything() -> None:
    board = Node(
        name="board", host="board", gpus=(Gpu(uuid="B", type="Jetson Nano", vram_mb=7620),), cpu_cores=6, ram_mb=7000
    )
    batch = WorkloadBatch([shape(vram_gib=2)])
    for _ in range(3):
        batch.add(0, 600.0)
    run = Simulator([offer_of(desktop("fast")), offer_of(board)], batch)
    run.queue()
    run.fill()
    run.go()
    assert [run.offers[index].node for index in run.log.node_of] == ["fast"] * 3
    assert max(run.log.end_s) == pytest.approx(1800.0)


def test_a_slow_machine_works_while_there_is_a_long_line() -> None:
    slow = Node(
        name="slow", host="slow", gpus=(Gpu(uuid="B", type="RTX 3080", vram_mb=10240),), cpu_cores=6, ram_mb=7000
    )
    batch = WorkloadBatch([shape(vram_gib=2)])
    for _ in range(40):
        batch.add(0, 600.0)
    run = Simulator([offer_of(desktop("fast")), offer_of(slow)], batch)
    run.queue()
    run.fill()
    run.go()
    used = [run.offers[index].node for index in run.log.node_of]
    assert used.count("slow") > 8


def test_a_machine_is_never_idle_for_ever_where_nothing_else_could_do_the_work() -> None:
    board = Node(
        name="board", host="board", gpus=(Gpu(uuid="B", type="Jetson Nano", vram_mb=7620),), cpu_cores=6, ram_mb=7000
    )
    batch = WorkloadBatch([shape(vram_gib=2)])
    batch.add(0, 600.0)
    run = Simulator([offer_of(board)], batch)
    run.queue()
    run.fill()
    run.go()
    assert run.decisions == 1


def test_a_job_over_several_devices_is_not_passed_for_ever() -> None:
    pair = Node(
        name="pair",
        host="pair",
        gpus=tuple(Gpu(uuid=uuid, type="RTX 4090", vram_mb=24564) for uuid in ("A", "B")),
        cpu_cores=32,
        ram_mb=65536,
    )
    one, two = shape(vram_gib=8), shape(vram_gib=8, devices=2)
    batch = WorkloadBatch([one, two])
    batch.add(0, 500.0)
    batch.add(0, 900.0)
    batch.add(1, 600.0)
    for _ in range(200):
        batch.add(0, 600.0)
    run = Simulator([offer_of(pair)], batch)
    run.queue()
    run.fill()
    run.go()
    started = list(run.log.started)
    assert started.index(2) < 30


def desktop(name: str) -> Node:
    gpu = Gpu(uuid=f"GPU-{name}", type="RTX 4090", vram_mb=24564)
    return Node(name=name, host=name, gpus=(gpu,), cpu_cores=16, ram_mb=65536)


def shape(*, vram_gib: float, devices: int = 1) -> JobShape:
    asked = Requirements(
        wish=DevicePreference.REQUIRE, vram_bytes=int(vram_gib * GIB), ram_bytes=GIB, cores=1, device_count=devices
    )
    return JobShape(wanted=SchedulableJob(name="job", requirements=asked), expected_s=600.0, weight=1.0)
