from __future__ import annotations

from pathlib import Path

import pytest

from stoker.authoring import PlanBuilder, StageContext, stage
from stoker.core.retry import FailureCause
from stoker.engine.plan import MAX_NODES_ADDED, Plan
from tests.unit.engine.lab import Lab, lines_of
from tests.unit.engine.stages import CountArgs, Number, NumberArgs, add, count, double, number, pair, process_sum


@stage("test/all-of-them", inline=True)
def all_of_them(job: StageContext, one: Number, others: list[Number]) -> Number:
    return job.save(Number, [one.load(), [other.load() for other in others]])


@stage("test/odd-only", inline=True)
def odd_only(job: StageContext, number: Number) -> Number:
    if number.load() % 2:
        return job.save(Number, number.load())
    message = "even"
    raise ValueError(message)


@stage("test/twice", inline=True)
def twice(job: StageContext, number: Number) -> list[Number]:
    return [job.save_item(Number, number.load()) for _ in range(2)]


def counting(n: int, ledger: str = "") -> Plan:
    items = PlanBuilder("fan").start(count, CountArgs(n=n, ledger=ledger))
    return items.each(double, NumberArgs(ledger=ledger)).merge(add, NumberArgs(ledger=ledger)).finish()


def values(lab: Lab, plan: Plan, node: str) -> list[object]:
    """What each instance of a fan-out gave."""
    ran = lab.run(plan)
    assert ran.result.error is None
    return [lab.value(ran, f"{node}[{position}]") for position in range(ran[node].instances or 0)]


def test_a_stage_runs_once_per_item_and_is_collected_in_order(lab: Lab) -> None:
    items = PlanBuilder("fan").start(count, CountArgs(n=4))
    plan = items.each(double).merge(all_of_them, one=items.builder.start(number)).finish()
    ran = lab.run(plan)
    assert lab.value(ran, "all-of-them") == [0, [0, 2, 4, 6]]
    assert ran["double"].instances == 4
    assert ran.of_kind("stage_expanded")[0]["count"] == 4
    # Instances are counted; what they are collected in did no work.
    assert (ran.result.hits + ran.result.ran, len(ran.result.nodes)) == (7, 8)


def test_a_second_run_hits_item_by_item(lab: Lab, ledger: str) -> None:
    lab.run(counting(3, ledger))
    second = lab.run(counting(3, ledger))
    assert set(second.endings.values()) == {"hit"}
    third = lab.run(counting(5, ledger))
    assert [name for name, ending in third.endings.items() if ending == "ran" and "[" in name] == [
        "double[3]",
        "double[4]",
    ]


def test_a_list_may_be_empty(lab: Lab) -> None:
    ran = lab.run(counting(0))
    assert ran.result.error is None
    assert lab.value(ran, "add") == 0
    assert ran.endings == {"count": "ran", "double": "hit", "add": "ran"}
    assert lab.run(counting(0)).result.ran == 0


def test_a_list_may_have_one_item(lab: Lab) -> None:
    assert lab.value(lab.run(counting(1)), "add") == 0
    assert values(lab, counting(1), "double") == [0]


def test_a_list_is_collected_without_a_fan_out(lab: Lab) -> None:
    ran = lab.run(PlanBuilder("c").start(count, CountArgs(n=5)).then(add).finish())
    assert lab.value(ran, "add") == 10


def test_an_item_goes_from_one_fan_out_to_the_next(lab: Lab) -> None:
    items = PlanBuilder("chain").start(count, CountArgs(n=4))
    plan = items.each(double).each(double, NumberArgs(value=1), id="again").finish()
    assert values(lab, plan, "again") == [0, 4, 8, 12]


def test_items_of_two_lists_are_paired(lab: Lab) -> None:
    items = PlanBuilder("zip").start(count, CountArgs(n=3))
    plan = items.each(pair, right=items.each(double)).finish()
    assert values(lab, plan, "pair") == [[0, 0], [1, 2], [2, 4]]


def test_what_is_one_is_given_to_every_item(lab: Lab) -> None:
    items = PlanBuilder("one").start(count, CountArgs(n=3))
    plan = items.each(pair, right=items.builder.start(number, NumberArgs(value=9))).finish()
    assert values(lab, plan, "pair") == [[0, 9], [1, 9], [2, 9]]


def test_a_port_that_takes_many_gets_the_whole_list_for_every_item(lab: Lab) -> None:
    items = PlanBuilder("all").start(count, CountArgs(n=3))
    plan = items.each(double).each(all_of_them, others=items).finish()
    assert values(lab, plan, "all-of-them") == [[0, [0, 1, 2]], [2, [0, 1, 2]], [4, [0, 1, 2]]]


def test_lists_of_different_lengths_are_refused_and_nothing_is_dropped(lab: Lab) -> None:
    builder = PlanBuilder("lengths")
    two, three = builder.start(count, CountArgs(n=2), id="two"), builder.start(count, CountArgs(n=3), id="three")
    ran = lab.run(two.each(pair, right=three).finish())
    assert ran["pair"].cause is FailureCause.INPUT
    assert ran["pair"].message == "it fans out over lists of different lengths: 2 of two, 3 of three"


def test_a_list_that_every_item_gives_is_flattened_when_collected(lab: Lab) -> None:
    ran = lab.run(PlanBuilder("flat").start(count, CountArgs(n=3)).each(twice).merge(add).finish())
    assert lab.value(ran, "add") == 6


def test_a_failure_inside_takes_what_collects_it_along_and_not_its_siblings(lab: Lab) -> None:
    items = PlanBuilder("fail").start(count, CountArgs(n=4))
    ran = lab.run(items.each(odd_only).merge(add).finish(), keep_going=True)
    assert ran.endings == {
        "count": "ran",
        "odd-only[0]": "failed",
        "odd-only[1]": "ran",
        "odd-only[2]": "failed",
        "odd-only[3]": "ran",
        "odd-only": "pruned",
        "add": "pruned",
    }
    assert str(ran.result.error).startswith("odd-only[0]: ValueError: even")


def test_a_failure_inside_stops_the_rest_unless_told_otherwise(lab: Lab) -> None:
    items = PlanBuilder("fail").start(count, CountArgs(n=40))
    ran = lab.run(items.each(odd_only).merge(add).finish(), max_in_flight=1)
    assert ran.endings["odd-only[0]"] == "failed"
    assert ran.endings["odd-only[39]"] == "cancelled"


def test_a_fan_out_has_a_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_NODES_ADDED == 4096
    monkeypatch.setattr("stoker.engine.execution.schedule.MAX_NODES_ADDED", 5)
    ran = lab.run(counting(6))
    assert ran["double"].cause is FailureCause.INPUT
    assert ran["double"].message == "its list has 6 items; a fan-out may add 5"
    assert ran.endings["add"] == "pruned"
    assert lab.run(counting(5)).result.error is None


@pytest.mark.timing
def test_a_long_list_costs_no_more_per_item_than_a_short_one(lab: Lab) -> None:
    """Every instance looks at its own item only: three hundred items, not ninety thousand."""
    items = PlanBuilder("most").start(count, CountArgs(n=300))
    ran = lab.run(items.each(double).merge(add).finish())
    assert lab.value(ran, "add") == 2 * sum(range(300))
    assert ran.result.elapsed_s < 20


def test_processes_read_their_own_item(lab: Lab, ledger: str) -> None:
    items = PlanBuilder("proc").start(count, CountArgs(n=3))
    plan = items.each(process_sum, NumberArgs(value=100, ledger=ledger)).finish()
    assert values(lab, plan, "process-sum") == [100, 101, 102]


def test_lost_items_are_made_again_one_by_one(lab: Lab, ledger: str) -> None:
    def plan(last: int) -> Plan:
        items = PlanBuilder("lost").start(count, CountArgs(n=3))
        return items.each(double, NumberArgs(ledger=ledger)).merge(add, NumberArgs(value=last)).finish()

    first = lab.run(plan(0))
    lab.prune(first["double[1]"].key)
    second = lab.run(plan(1))
    assert second.result.error is None
    assert [event["node"] for event in second.of_kind("stage_begin")] == ["double[1]", "add"]
    assert second.endings["double[0]"] == "hit"
    assert second.endings["double"] == "ran"
    assert lab.value(second, "add") == 7
    assert len(lines_of(ledger)) == 4


def test_an_item_sends_only_its_own_ancestors_back_to_work(lab: Lab, ledger: str) -> None:
    items = PlanBuilder("chain").start(count, CountArgs(n=3)).each(double, NumberArgs(ledger=ledger))
    plan = items.each(double, NumberArgs(value=1), id="again").finish()
    first = lab.run(plan)
    lab.prune(first["double[0]"].key, first["double[1]"].key)
    lab.record_path(first["again[1]"].key).unlink()
    assert {one.node: str(one.verdict) for one in lab.preview(plan).forecasts} == {
        "count": "hit",
        "double": "miss",
        "again": "miss",
    }
    second = lab.run(plan)
    assert [event["node"] for event in second.of_kind("stage_begin")] == ["double[1]", "again[1]"]
    assert second["double[0]"].has_bytes is False


def test_lost_lists_are_made_again(lab: Lab, ledger: str) -> None:
    first = lab.run(counting(3, ledger))
    lab.prune(first["count"].key, *(first[f"double[{index}]"].key for index in range(3)))
    assert set(lab.run(counting(3, ledger)).endings.values()) == {"hit"}
    lab.prune(first["add"].key)
    again = lab.run(counting(3, ledger))
    assert again.result.error is None
    assert lab.value(again, "add") == 6
    assert again.result.ran == 5


def test_names_of_items_stay_in_order_beyond_ten(lab: Lab) -> None:
    ran = lab.run(PlanBuilder("many").start(count, CountArgs(n=120)).finish())
    folders = [product.folder for product in ran["count"].products]
    assert folders == [f"{index:06d}" for index in range(120)]
    assert Path(lab.store.places.staging).exists()
