"""The executor over inline stages: results, order, limits, twins. Processes are in `test_processes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.authoring import Needs, PlanBuilder, Stage, StageContext, stage
from stoker.core.device import GIB, Capacity
from stoker.core.errors import InvalidPlan, OutOfMemory
from stoker.devices.admission import MachineMemory
from stoker.engine.plan import Plan
from tests.unit.engine.lab import Lab, lines_of, quick_folder
from tests.unit.engine.misbehaving import (
    HowArgs,
    misbehave_here,
)
from tests.unit.engine.stages import (
    Concurrency,
    Number,
    NumberArgs,
    PaceArgs,
    add,
    concurrency,
    counted,
    double,
    greedy,
    number,
    on_gpu,
    pair,
    slow,
    wait_for_file,
)
from tests.unit.host.real_processes import wait_until


@pytest.fixture(autouse=True)
def nobody_runs() -> Iterator[None]:
    Concurrency.__init__(concurrency)
    yield
    assert concurrency.now == 0


def side_by_side(of: Stage, values: range, **args: str) -> Plan:
    builder = PlanBuilder("wide")
    for value in values:
        builder.start(of, PaceArgs(value=value, **args), id=f"n{value:02}")
    return builder.finish()


# --- results -------------------------------------------------------------------------------------


def test_a_plan_gives_its_result(lab: Lab) -> None:
    start = PlanBuilder("sum").start(number, NumberArgs(value=20))
    ran = lab.run(start.fork(double, double).merge(add, NumberArgs(value=2)).finish())
    assert lab.value(ran, "add") == 82
    assert ran.result.error is None
    assert (ran.result.hits, ran.result.ran, ran.result.final) == (1, 3, "add")
    assert lab.staged() == []


def test_inputs_come_in_the_order_of_the_edges(lab: Lab) -> None:
    builder = PlanBuilder("order")
    one, two = builder.start(number, NumberArgs(value=1)), builder.start(number, NumberArgs(value=2))
    assert lab.value(lab.run(one.then(pair, right=two).finish()), "pair") == [1, 2]
    builder = PlanBuilder("order")
    one, two = builder.start(number, NumberArgs(value=1)), builder.start(number, NumberArgs(value=2))
    assert lab.value(lab.run(two.then(pair, right=one).finish()), "pair") == [2, 1]


def test_events_tell_the_life_of_every_node(lab: Lab) -> None:
    ran = lab.run(PlanBuilder("life").start(number).then(double).finish())
    told = [(event["kind"], event["node"]) for event in ran.events]
    assert told == [
        ("stage_begin", "number"),
        ("stage_end", "number"),
        ("stage_begin", "double"),
        ("stage_end", "double"),
    ]
    end = ran.of_kind("stage_end", "double")[0]
    assert (end["stage"], end["key"], end["digest"]) == ("test/double", ran["double"].key, ran.digests["double"][0])
    assert end["size_bytes"] == 1
    assert [event["seq"] for event in ran.events] == [1, 2, 3, 4]


# --- how many, in which order --------------------------------------------------------------------


def test_at_most_eight_are_in_flight(lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    flight = lab.start(side_by_side(counted, range(20), gate=str(gate)))
    wait_until(lambda: concurrency.now == 8)
    gate.touch()
    assert flight.land().result.ran == 20
    assert concurrency.most == 8


def test_one_place_means_one_after_another_in_the_order_of_the_plan(lab: Lab) -> None:
    ran = lab.run(side_by_side(counted, range(12)), max_in_flight=1)
    assert concurrency.most == 1
    assert concurrency.order == list(range(12))
    assert [event["node"] for event in ran.of_kind("stage_begin")] == [f"n{value:02}" for value in range(12)]


def test_nodes_start_in_the_order_of_the_plan_also_side_by_side(lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    flight = lab.start(side_by_side(counted, range(20), gate=str(gate)))
    wait_until(lambda: concurrency.now == 8)
    gate.touch()
    ran = flight.land()
    assert [event["node"] for event in ran.of_kind("stage_begin")] == [f"n{value:02}" for value in range(20)]


def test_a_node_that_comes_first_in_the_plan_goes_before_those_that_waited_longer(lab: Lab) -> None:
    """A chain of hits makes a late node ready while an early one still waits; with one place, the early one is next."""
    builder = PlanBuilder("late")
    first = builder.start(number, NumberArgs(value=1), id="a")
    builder.start(number, NumberArgs(value=2), id="b")
    first.then(double, NumberArgs(value=3), id="c").then(double, NumberArgs(value=4), id="d")
    builder.start(number, NumberArgs(value=5), id="e")
    ran = lab.run(builder.finish(), max_in_flight=1)
    assert [event["node"] for event in ran.of_kind("stage_begin")] == ["a", "b", "e", "c", "d"]


def test_permits_keep_what_runs_at_once_within_the_machine(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Lab(tmp_path / "lab", capacity=Capacity(cpu=2)) as lab:
        flight = lab.start(side_by_side(slow, range(5), gate=str(gate)))
        wait_until(lambda: len(flight.events("stage_begin")) == 2)
        wait_until(lambda: bool(flight.events("stage_blocked")))
        assert [event["short_of"] for event in flight.events("stage_blocked")] == [["cpu"]]
        gate.touch()
        ran = flight.land()
    assert ran.result.ran == 5
    blocked = [event["node"] for event in ran.of_kind("stage_blocked")]
    assert len(blocked) == len(set(blocked))


def test_nothing_is_said_to_be_blocked_where_there_is_room(lab: Lab) -> None:
    ran = lab.run(side_by_side(counted, range(5)))
    assert not ran.of_kind("stage_blocked")


def test_gpus_are_given_by_name_and_never_twice(lab: Lab, tmp_path: Path, ledger: str) -> None:
    gate = tmp_path / "gate"
    flight = lab.start(side_by_side(on_gpu, range(5), gate=str(gate), ledger=ledger))
    wait_until(lambda: len(lines_of(ledger)) == 2)
    assert sorted(lines_of(ledger)) == ["0 a", "1 b"]
    gate.touch()
    assert flight.land().result.ran == 5
    assert sorted(line.split()[0] for line in lines_of(ledger)) == ["0", "1", "2", "3", "4"]


def test_a_stage_that_wants_more_memory_than_there_is_is_refused_with_numbers(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        lab.memory = MachineMemory(total_bytes=8 * GIB, available_bytes=8 * GIB)
        with pytest.raises(OutOfMemory) as raised:
            lab.run(side_by_side(greedy, range(4)))
    assert raised.value.exit_code == 46
    assert "this machine has 8.0 GiB, of which 819.2 MiB are the system reserve" in str(raised.value)


def test_gpus_that_the_machine_does_not_have_are_refused_before_anything_runs(tmp_path: Path, ledger: str) -> None:
    builder = PlanBuilder("none")
    builder.start(number, NumberArgs(ledger=ledger))
    for value in range(2):
        builder.start(on_gpu, PaceArgs(value=value, ledger=ledger))
    with Lab(tmp_path / "lab", capacity=Capacity(cpu=4), devices=()) as lab, pytest.raises(InvalidPlan) as raised:
        lab.run(builder.finish())
    assert [str(fault) for fault in raised.value.faults] == [
        "gpu: needs 1 GPU, this machine offers 0",
        "gpu-2: needs 1 GPU, this machine offers 0",
    ]
    assert lines_of(ledger) == []


@stage("test/wide", inline=True, needs=Needs(cpu=4), timeout_s=60.0)
def wide(job: StageContext, args: PaceArgs) -> Number:
    wait_for_file(args.gate, job)
    return job.save(Number, args.value)


def test_a_large_stage_is_not_starved_by_small_ones() -> None:
    builder = PlanBuilder("starve")
    for value in range(60):
        builder.start(number, NumberArgs(value=value), id=f"small-{value:03}")
    builder.start(wide, PaceArgs(value=-1), id="large")
    for value in range(60, 240):
        builder.start(number, NumberArgs(value=value), id=f"small-{value:03}")
    with quick_folder() as folder, Lab(folder / "lab", capacity=Capacity(cpu=4)) as lab:
        ran = lab.run(builder.finish())
    begun = [event["node"] for event in ran.of_kind("stage_begin")]
    assert begun.index("large") < 150


# --- twins ---------------------------------------------------------------------------------------


def test_twins_run_once(lab: Lab, tmp_path: Path, ledger: str) -> None:
    gate = tmp_path / "gate"
    builder = PlanBuilder("twins")
    tips = [builder.start(slow, PaceArgs(value=7, gate=str(gate), ledger=ledger)) for _ in range(4)]
    flight = lab.start(builder.add(add, feeds=[(None, tip) for tip in tips]).finish())
    wait_until(lambda: lines_of(ledger) == ["slow 7"])
    gate.touch()
    ran = flight.land()
    assert lines_of(ledger) == ["slow 7"]
    assert ran.endings == {"slow": "ran", "slow-2": "hit", "slow-3": "hit", "slow-4": "hit", "add": "ran"}
    assert lab.value(ran, "add") == 28


def test_a_twin_of_a_failure_gets_its_own_chance(lab: Lab, ledger: str) -> None:
    builder = PlanBuilder("twins")
    for _ in range(2):
        builder.start(misbehave_here, HowArgs(how="raise", ledger=ledger))
    ran = lab.run(builder.finish(), keep_going=True)
    assert set(ran.endings.values()) == {"failed"}
