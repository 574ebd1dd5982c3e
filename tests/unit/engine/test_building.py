from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import InputPath, JsonKind, PlanBuilder, Stage, StageContext, Tips, arg, stage
from stoker.core.errors import InvalidFile, InvalidPlan, StageInputError
from stoker.core.retry import RetryPolicy
from stoker.engine.plan import UncheckedNode, compile_plan
from tests.unit.engine.lab import faults_of
from tests.unit.engine.stages import (
    CountArgs,
    FileArgs,
    Number,
    NumberArgs,
    Words,
    add,
    count,
    double,
    number,
    pair,
    read,
)
from tests.unit.host.real_processes import code_of, fork


class NumberTwo(JsonKind):
    name = "test-number"
    version = 2


@stage("test/newer", inline=True)
def newer(job: StageContext, number: NumberTwo) -> NumberTwo:
    return number


@stage("test/speak", inline=True)
def speak(job: StageContext, number: Number, words: Words) -> Words:
    return words


@stage("test/lists", inline=True)
def lists(job: StageContext, number: Number) -> list[Number]:
    return []


@stage("test/all-of", inline=True)
def all_of(job: StageContext, one: Number, others: list[Number]) -> Number:
    return one


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightArgs:
    limit: int = arg(1)


def _preflight(args: PreflightArgs) -> list[str]:
    if args.limit == 13:
        raise StageInputError("thirteen", hint="choose another one")
    if args.limit == 99:
        raise RuntimeError("a bug in a cookbook")
    return ["too much", "far too much"] if args.limit > 10 else []


@stage("test/careful", inline=True, preflight=_preflight)
def careful(job: StageContext, args: PreflightArgs) -> Number:
    return job.save(Number, args.limit)


def drafts(*written: tuple[str, Stage, dict[str, Any], list[tuple[str | None, str]]]) -> list[UncheckedNode]:
    return [UncheckedNode(id=name, stage=of, args=args, feeds=feeds) for name, of, args, feeds in written]


def faults(*written: tuple[str, Stage, dict[str, Any], list[tuple[str | None, str]]], **options: Any) -> list[str]:
    with pytest.raises((InvalidPlan, InvalidFile)) as raised:
        compile_plan("demo", drafts(*written), **{"final": None, **options})
    return faults_of(raised)


# --- the builder ---------------------------------------------------------------------------------


def test_a_chain_forks_and_merges() -> None:
    data = PlanBuilder("demo").start(number, NumberArgs(value=1))
    forked = data.fork((double, NumberArgs(value=1)), double)
    plan = forked.merge(add, NumberArgs(value=5), numbers=data).finish(keep=(data,))
    assert [node.id for node in plan.nodes] == ["number", "double", "double-2", "add"]
    assert plan.node("add").inputs == {"numbers": ("double", "double-2", "number")}
    assert (plan.final, plan.keep, plan.name) == ("add", ("number",), "demo")
    assert plan.node("add").args == {"value": 5, "ledger": ""}
    assert plan.node("add").producers() == ("double", "double-2", "number")


def test_every_branch_goes_on_with_the_same_stage() -> None:
    tips = PlanBuilder("demo").start(number).fork(double, double).then(double)
    assert [tip.id for tip in tips.tips] == ["double-3", "double-4"]


def test_names_that_we_choose_keep_clear_of_those_the_author_chose() -> None:
    builder = PlanBuilder("demo")
    builder.start(number, id="number-2")
    assert [builder.start(number).id for _ in range(3)] == ["number", "number-3", "number-4"]
    builder.finish()


def test_a_name_that_the_author_chose_twice_is_a_fault() -> None:
    builder = PlanBuilder("demo")
    builder.start(number, id="a")
    builder.start(number, id="a")
    with pytest.raises(InvalidPlan, match="a: duplicate node name"):
        builder.finish()


def test_a_fork_into_nothing_merges_into_a_fault() -> None:
    with pytest.raises(InvalidPlan, match=r"input numbers .* is fed by nothing"):
        PlanBuilder("demo").start(number).fork().merge(add).finish()


def test_a_tip_of_another_plan_is_not_taken_for_one_of_ours() -> None:
    other = PlanBuilder("other").start(number)
    builder = PlanBuilder("demo")
    builder.start(number)
    tip = builder.start(number).then(pair, right=other, left=other)
    with pytest.raises(InvalidPlan) as raised:
        tip.finish()
    assert any("'number (of plan other)', which is not in the plan" in fault for fault in faults_of(raised))


def test_arguments_of_another_stage_are_a_fault() -> None:
    with pytest.raises(InvalidPlan, match="count: takes CountArgs, got NumberArgs"):
        PlanBuilder("demo").start(count, NumberArgs()).finish()
    one = PlanBuilder("demo").start(number)
    with pytest.raises(InvalidPlan, match="pair: takes no arguments, got NumberArgs"):
        one.then(pair, NumberArgs(), right=one).finish()


def test_a_node_may_have_its_own_retry_and_limit() -> None:
    policy = RetryPolicy(attempts=4)
    plan = PlanBuilder("demo").start(number, retry=policy, timeout_s=2.0).then(double, timeout_s=3.0).finish()
    assert (plan.nodes[0].retry, plan.nodes[0].limit_s, plan.nodes[1].limit_s) == (policy, 2.0, 3.0)


def test_tips_made_by_hand_work_like_those_of_a_fork() -> None:
    builder = PlanBuilder("demo")
    merged = Tips([builder.start(number), builder.start(number)]).merge(add)
    assert merged.finish().node("add").inputs == {"numbers": ("number", "number-2")}


def test_what_is_kept_is_kept_once_and_not_beside_the_result() -> None:
    one = PlanBuilder("demo").start(number)
    last = one.then(double)
    assert last.finish(keep=(one, one, last)).keep == ("number",)


# --- faults --------------------------------------------------------------------------------------


def test_an_empty_plan_is_a_fault() -> None:
    assert faults() == ["demo: the plan is empty"]


def test_an_unknown_producer_is_named_with_the_nearest() -> None:
    told = faults(("number", number, {}, []), ("twice", double, {}, [(None, "numbre")]))
    assert told == [
        "twice: is fed by 'numbre', which is not in the plan (did you mean 'number'?)",
        "twice: input number (test-number@1) is fed by nothing",
    ]


def test_kinds_must_be_equal_on_both_ends() -> None:
    told = faults(("n", number, {}, []), ("s", speak, {}, [("number", "n"), ("words", "n")]))
    assert told == ["s: input words takes test-words@1, but n gives test-number@1"]


def test_another_version_is_another_kind() -> None:
    told = faults(("n", number, {}, []), ("new", newer, {}, [(None, "n")]))
    assert told[0] == "new: takes test-number@2, but n gives test-number@1"


def test_a_port_that_takes_one_is_fed_once() -> None:
    told = faults(("a", number, {}, []), ("b", number, {}, []), ("d", double, {}, [(None, "a"), (None, "b")]))
    assert told == ["d: input number takes one, is fed by a, b"]


def test_a_producer_that_fits_two_ports_must_say_which() -> None:
    told = faults(("a", number, {}, []), ("p", pair, {}, [(None, "a")]))
    assert told[0] == "p: a could feed left, right: name the input"


def test_what_is_fed_by_name_leaves_the_other_port_to_what_is_not() -> None:
    one = PlanBuilder("demo").start(number)
    assert one.then(pair, right=one.then(double)).finish().node("pair").inputs == {
        "left": ("number",),
        "right": ("double",),
    }


def test_a_port_that_is_not_there_is_named_with_the_nearest() -> None:
    told = faults(("a", number, {}, []), ("p", pair, {}, [("left", "a"), ("rihgt", "a")]))
    assert told == [
        "p: has no input 'rihgt' (did you mean 'right'?)",
        "p: input right (test-number@1) is fed by nothing",
    ]


def test_a_stage_without_inputs_is_not_fed() -> None:
    told = faults(("a", number, {}, []), ("b", number, {}, [(None, "a")]), ("c", number, {}, [("x", "a")]))
    assert told == ["b: stage test/number has no inputs but is fed by a", "c: has no input 'x' (it has none)"]


def test_a_cycle_is_named() -> None:
    told = faults(("a", double, {}, [(None, "c")]), ("b", double, {}, [(None, "a")]), ("c", double, {}, [(None, "b")]))
    assert told == ["a → b → c → a: depends on itself: a cycle"]


def test_a_node_that_feeds_itself_is_a_cycle() -> None:
    assert faults(("a", double, {}, [(None, "a")])) == ["a → a: depends on itself: a cycle"]


def test_every_cycle_is_named_once_and_what_hangs_below_it_is_not() -> None:
    told = faults(
        ("a", double, {}, [(None, "b")]),
        ("b", double, {}, [(None, "a")]),
        ("x", double, {}, [(None, "y")]),
        ("y", double, {}, [(None, "x")]),
        ("below", double, {}, [(None, "a")]),
    )
    assert told == ["a → b → a: depends on itself: a cycle", "x → y → x: depends on itself: a cycle"]


def test_final_and_kept_nodes_must_exist() -> None:
    told = faults(("number", number, {}, []), final="numbr", keep=["other"])
    assert told == [
        "demo: the final node 'numbr' is not in the plan (did you mean 'number'?)",
        "demo: the kept node 'other' is not in the plan",
    ]


@pytest.mark.parametrize("name", ["train[0]", "a/b", "a b", "", "a\n"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    assert "can't be a node's name" in faults((name, number, {}, []))[0]


def test_arguments_are_checked_with_the_rest() -> None:
    told = faults(("a", number, {"value": "x"}, []), ("b", count, {"n": -1, "m": 1}, []))
    assert told == [
        "a.value: expected a whole number, got 'x'",
        "b.m: unknown argument (known: n, ledger)",
        "b.n: must be at least 0, got -1",
    ]


def test_a_missing_file_is_a_fault_before_anything_runs(tmp_path: Path) -> None:
    told = faults(("r", read, {"path": str(tmp_path / "none.csv")}, []))
    assert told == [f"r: {tmp_path}/none.csv: no such file or folder"]


def test_a_file_that_may_not_be_read_is_a_fault(open_path: Path) -> None:
    secret = open_path / "secret.csv"
    secret.write_text("x")
    secret.chmod(0o000)

    def look_as_nobody() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        assert "permission denied" in faults(("r", read, {"path": str(secret)}, []))[0]

    assert code_of(fork(look_as_nobody)) == 0


def test_a_preflight_has_its_say() -> None:
    assert faults(("c", careful, {"limit": 11}, [])) == ["c: too much", "c: far too much"]
    assert faults(("c", careful, {"limit": 13}, [])) == ["c: thirteen (choose another one)"]
    assert faults(("c", careful, {"limit": 99}, [])) == ["c: its preflight raised RuntimeError: a bug in a cookbook"]
    assert compile_plan("ok", drafts(("c", careful, {"limit": 1}, [])), final=None).final == "c"


def test_faults_of_every_sort_come_together() -> None:
    with pytest.raises(InvalidPlan) as raised:
        compile_plan(
            "demo",
            drafts(
                ("a", number, {"value": "x"}, []),
                ("a", number, {}, []),
                ("b", double, {}, []),
                ("c", pair, {}, [("left", "nobody"), ("right", "a")]),
                ("d", double, {}, [(None, "e")]),
                ("e", double, {}, [(None, "d")]),
                ("f", read, {"path": "/nowhere"}, []),
            ),
            final="z",
        )
    told = "\n".join(faults_of(raised))
    for part in ("duplicate node name", "whole number", "fed by nothing", "nobody", "cycle", "/nowhere", "final node"):
        assert part in told
    assert str(raised.value) == f"{len(raised.value.faults)} errors in plan demo; nothing has run"
    assert raised.value.exit_code == 40


# --- fan-out -------------------------------------------------------------------------------------


def test_a_list_is_collected_or_fanned_out_over() -> None:
    with pytest.raises(InvalidPlan, match=r"takes one test-number@1, but count gives a list: collect it or fan out"):
        PlanBuilder("demo").start(count).then(double).finish()
    assert PlanBuilder("demo").start(count).then(add).finish().node("add").fans_out is False
    assert PlanBuilder("demo").start(count).each(double).finish().node("double").fans_out is True


def test_a_fan_out_is_collected_like_a_list() -> None:
    fanned = PlanBuilder("demo").start(count).each(double)
    with pytest.raises(InvalidPlan, match="double gives a list"):
        fanned.then(double).finish()


def test_a_fan_out_goes_over_a_fan_out_item_by_item() -> None:
    plan = PlanBuilder("demo").start(count).each(double).each(double).merge(add).finish()
    assert [node.fans_out for node in plan.nodes] == [False, True, True, False]


def test_fan_out_needs_a_list() -> None:
    with pytest.raises(InvalidPlan, match="fans out, but nothing that feeds it gives a list"):
        PlanBuilder("demo").start(number).each(double).finish()


def test_nested_fan_out_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="fans out over lists, which already fans out: nested fan-out"):
        PlanBuilder("demo").start(count, CountArgs(n=2)).each(lists).each(double).finish()


def test_the_lists_of_a_fan_out_may_be_collected() -> None:
    plan = PlanBuilder("demo").start(count, CountArgs(n=2)).each(lists).merge(add).finish()
    assert plan.final == "add"


def test_an_instance_gets_its_own_item_where_one_is_taken_and_everything_where_many_are() -> None:
    items = PlanBuilder("demo").start(count)
    plan = items.each(double).each(all_of, others=items).finish()
    nodes = {node.id: node for node in plan.nodes}
    assert nodes["all-of"].inputs == {"one": ("double",), "others": ("count",)}
    assert nodes["all-of"].fanned_ports(nodes) == {"one"}
    many = PlanBuilder("demo").start(count).each(add).finish()
    assert many.node("add").fanned_ports({node.id: node for node in many.nodes}) == {"numbers"}


def test_a_path_argument_may_be_a_folder(tmp_path: Path) -> None:
    plan = PlanBuilder("demo").start(read, FileArgs(path=InputPath(str(tmp_path)))).finish()
    assert plan.nodes[0].args["path"] == str(tmp_path)
