"""Sequential and parallel are observably equal: random plans give the same keys, digests, endings and events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.authoring import Needs, PlanBuilder, StageContext, Tip, arg, stage
from stoker.core.device import GIB, Capacity
from stoker.engine.plan import Plan
from tests.lengths import examples
from tests.unit.engine.lab import Lab, Ran, quick_folder
from tests.unit.engine.stages import ASIDE_S, Number

bounded = settings(max_examples=examples(12, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
CAPACITY = Capacity(cpu=3, memory_bytes=4 * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    value: int = arg(0)
    fails: bool = arg(default=False)


def _total(numbers: list[Number], args: Args) -> int:
    if args.fails:
        message = f"{args.value} was told to"
        raise ValueError(message)
    total: int = args.value + sum(one.load() for one in numbers)
    return total % 1000


@stage("test/here", inline=True)
def here(job: StageContext, numbers: list[Number], args: Args) -> Number:
    """Run by the loop itself."""
    return job.save(Number, _total(numbers, args))


@stage("test/aside", inline=True, timeout_s=ASIDE_S)
def aside(job: StageContext, numbers: list[Number], args: Args) -> Number:
    """Run in a thread."""
    return job.save(Number, _total(numbers, args))


@stage("test/large", inline=True, timeout_s=ASIDE_S, needs=Needs(cpu=2, memory_gib=3.0))
def large(job: StageContext, numbers: list[Number], args: Args) -> Number:
    return job.save(Number, _total(numbers, args))


@stage("test/on-gpu", inline=True, timeout_s=ASIDE_S, needs=Needs(cpu=0, gpu=1))
def on_gpu(job: StageContext, numbers: list[Number], args: Args) -> Number:
    return job.save(Number, _total(numbers, args))


@stage("test/lists", inline=True, timeout_s=ASIDE_S)
def lists(job: StageContext, args: Args) -> list[Number]:
    return [job.save_item(Number, args.value + index) for index in range(args.value % 4)]


@stage("test/root", inline=True)
def root(job: StageContext, args: Args) -> Number:
    return job.save(Number, args.value)


@stage("test/each", inline=True, timeout_s=ASIDE_S)
def each(job: StageContext, number: Number, args: Args) -> Number:
    return job.save(Number, number.load() + args.value)


WORKERS = (here, aside, large, on_gpu)


@st.composite
def plans(draw: st.DrawFn, *, may_fail: bool = False) -> Plan:
    builder = PlanBuilder("random")
    tips: list[Tip] = []
    for index in range(draw(st.integers(1, 10))):
        # Few values, so that twins come about.
        args = Args(value=draw(st.integers(0, 5)), fails=may_fail and draw(st.integers(0, 5)) == 0)
        feeding = draw(st.lists(st.sampled_from(tips), max_size=3, unique_by=id)) if tips else []
        if not feeding:
            shape = draw(st.sampled_from(["root", "list", "fan"]))
            if shape == "root":
                tips.append(builder.start(root, Args(value=args.value), id=f"n{index}"))
                continue
            tip = builder.start(lists, Args(value=args.value), id=f"list{index}")
            tips.append(tip.each(each, Args(value=index), id=f"n{index}") if shape == "fan" else tip)
        else:
            worker = draw(st.sampled_from(WORKERS))
            tips.append(builder.add(worker, args, id=f"n{index}", feeds=[(None, tip) for tip in feeding]))
    return builder.finish(keep=tuple(tips))


def run(plan: Plan, **options: Any) -> tuple[Ran, Ran]:
    """Run twice in an empty store."""
    with quick_folder() as folder, Lab(folder / "lab", capacity=CAPACITY, devices=("a",)) as lab:
        ran = lab.run(plan, **options)
        again = lab.run(plan, **options)
        assert lab.staged() == []
        return ran, again


def told(ran: Ran) -> Counter[tuple[Any, ...]]:
    """What the journal says, without what depends on time; twins are told apart by key and not by name."""
    kept = {"stage_begin", "stage_end", "stage_skipped", "stage_failed", "stage_pruned", "stage_expanded"}
    return Counter(
        (event["kind"], event.get("key") or event["node"], event.get("digest"), event.get("cause"))
        for event in ran.events
        if event["kind"] in kept
    )


def ends(ran: Ran) -> Counter[tuple[Any, ...]]:
    return Counter((str(node.ending), node.key or name, node.message) for name, node in ran.result.nodes.items())


@bounded
@given(plans())
def test_sequential_and_parallel_are_observably_equal(plan: Plan) -> None:
    _are_equal(plan)


@pytest.mark.slow
@settings(bounded, max_examples=300)
@given(plans())
def test_sequential_and_parallel_are_observably_equal_at_length(plan: Plan) -> None:
    _are_equal(plan)


def _are_equal(plan: Plan) -> None:
    one, one_again = run(plan, max_in_flight=1)
    many, many_again = run(plan, max_in_flight=8)
    assert one.result.error is None
    assert many.result.error is None
    assert one.digests == many.digests
    assert {name: node.key for name, node in one.result.nodes.items()} == {
        name: node.key for name, node in many.result.nodes.items()
    }
    assert ends(one) == ends(many)
    assert told(one) == told(many)
    for again in (one_again, many_again):
        assert again.result.ran == 0
        assert again.digests == one.digests


@bounded
@given(plans(may_fail=True))
def test_failures_are_equal_too_when_the_rest_goes_on(plan: Plan) -> None:
    one, _ = run(plan, max_in_flight=1, keep_going=True)
    many, _ = run(plan, max_in_flight=8, keep_going=True)
    assert ends(one) == ends(many)
    assert told(one) == told(many)
    assert (one.result.error is None) == (many.result.error is None)
    failed = {name for name, node in one.result.nodes.items() if str(node.ending) == "failed"}
    for node in plan.nodes:
        if failed.intersection(node.producers()):
            assert one.endings[node.id] == "pruned"


@bounded
@given(plans(may_fail=True))
def test_the_first_failure_ends_the_run_with_every_node_accounted_for(plan: Plan) -> None:
    for places in (1, 8):
        ran, _ = run(plan, max_in_flight=places)
        assert {node.id for node in plan.nodes} <= set(ran.result.nodes)
        has_failed = "failed" in ran.endings.values()
        assert (ran.result.error is not None) == has_failed
        assert set(ran.endings.values()) <= {"hit", "ran", "failed", "pruned", "cancelled"}
        if not has_failed:
            assert set(ran.endings.values()) <= {"hit", "ran"}


@bounded
@given(plans())
def test_one_at_a_time_starts_in_an_order_that_the_plan_allows(plan: Plan) -> None:
    ran, _ = run(plan, max_in_flight=1)
    position = {node.id: index for index, node in enumerate(plan.nodes)}
    begun = [event["node"] for event in ran.of_kind("stage_begin")]
    by_rank = [position[name.partition("[")[0]] for name in begun]
    seen: set[str] = {event["node"] for event in ran.of_kind("stage_skipped")}
    for name in begun:
        node = plan.node(name.partition("[")[0])
        assert all(one in seen or one.startswith("list") or plan.node(one).fans_out for one in node.producers())
        seen.add(name)
    assert by_rank == sorted(by_rank)
