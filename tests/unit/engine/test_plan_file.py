from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import PlanBuilder
from stoker.core.device import Needs
from stoker.core.errors import InvalidPlan, LocalFile
from stoker.core.jsontext import dumps, find_places, has_repeated_keys, loads
from stoker.core.retry import RetryOn, RetryPolicy
from stoker.engine.plan import Plan
from stoker.engine.plan_file import plan_from, plan_to_json, read_plan
from stoker.engine.stage import contradictions_in
from tests.unit.engine.lab import faults_of
from tests.unit.engine.stages import CountArgs, NumberArgs, add, count, double, number, pair, volatile

STAGES = {stage.name: stage for stage in (number, add, double, count, pair, volatile)}

GOOD = """{
  "stoker_plan": 1,
  "name": "demo",
  "nodes": {
    "one": {"stage": "test/number", "args": {"value": 1}},
    "two": {"stage": "test/number", "args": {"value": 2}, "timeout_s": 5,
            "retry": {"attempts": 3, "backoff_s": 0.5, "on": "all"}},
    "sum": {"stage": "test/add"}
  },
  "edges": [
    {"from": "two", "to": "sum"},
    {"from": "one", "to": "sum", "port": "numbers"}
  ],
  "final": "sum",
  "keep": ["one"]
}
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plan.json"
    path.write_text(text)
    return str(path)


def faults(tmp_path: Path, text: str) -> list[str]:
    path = written(tmp_path, text)
    with pytest.raises(InvalidPlan) as raised:
        read_plan(path, STAGES)
    return [fault.replace(f"{path}:", "FILE:").replace(path, "FILE") for fault in faults_of(raised)]


def changed(**changes: Any) -> str:
    body = {**json.loads(GOOD), **changes}
    return json.dumps({key: value for key, value in body.items() if value is not ...})


def nodes(**bodies: Any) -> str:
    return changed(nodes=bodies, edges=[], final=..., keep=...)


def same(one: Plan, other: Plan) -> bool:
    return (one.name, one.nodes, one.final, one.keep) == (other.name, other.nodes, other.final, other.keep)


# --- reading -------------------------------------------------------------------------------------


def test_a_plan_file_gives_the_plan_that_it_describes(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, GOOD), STAGES)
    assert (plan.name, plan.final, plan.keep) == ("demo", "sum", ("one",))
    assert plan.node("two").retry == RetryPolicy(attempts=3, backoff_s=0.5, on=RetryOn.ALL)
    assert plan.node("two").timeout_s == 5
    assert plan.node("two").args == {"value": 2, "ledger": ""}


def test_the_order_of_edges_is_the_order_of_inputs(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path, GOOD), STAGES).node("sum").inputs == {"numbers": ("two", "one")}


def test_the_last_node_is_the_result_if_none_is_named(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path, changed(final=..., keep=...)), STAGES).final == "sum"


def test_a_plan_comes_back_as_it_was_written() -> None:
    data = PlanBuilder("demo").start(number, NumberArgs(value=3), retry=RetryPolicy(attempts=2), timeout_s=1.5)
    items = data.builder.start(count, CountArgs(n=2))
    fanned = items.each(double).each(pair, right=data)
    plan = fanned.merge(add, NumberArgs(value=1)).finish(keep=(data,))
    again = plan_from(loads(dumps(plan_to_json(plan))), STAGES)
    assert same(plan, again)
    assert again.node("pair").fans_out


def test_only_edges_that_are_fanned_out_over_say_so() -> None:
    one = PlanBuilder("demo").start(number)
    plan = one.builder.start(count).each(pair, right=one).finish()
    edges = plan_to_json(plan)["edges"]
    assert [(edge["from"], edge.get("each")) for edge in edges] == [("count", True), ("number", None)]


# --- faults, each with its line ------------------------------------------------------------------


def test_faults_have_the_line_of_what_they_are_about(tmp_path: Path) -> None:
    text = (
        GOOD.replace('"value": 2', '"valeu": 2').replace('"from": "one"', '"from": "oen"').replace('"keep"', '"kepe"')
    )
    assert faults(tmp_path, text) == [
        "FILE:15: kepe: is not a field of a plan (did you mean 'keep'?)",
        "FILE:12: edges[1].from: there is no node 'oen' (did you mean 'one'?)",
        "FILE:6: two.valeu: unknown argument (did you mean 'value'?)",
    ]


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalFile, match="no such file"):
        read_plan(str(tmp_path / "none.json"), STAGES)


def test_an_unknown_stage_is_named_with_the_nearest(tmp_path: Path) -> None:
    told = faults(tmp_path, GOOD.replace('"test/add"', '"test/ad"'))
    assert told == ["FILE:8: sum.stage: there is no stage 'test/ad' (did you mean 'test/add'?)"]


def test_wiring_faults_of_the_whole_come_together(tmp_path: Path) -> None:
    body = changed(
        nodes={"a": {"stage": "test/double"}, "b": {"stage": "test/double"}, "c": {"stage": "test/pair"}},
        edges=[{"from": "a", "to": "b"}, {"from": "b", "to": "a"}, {"from": "a", "to": "c"}],
        final="d",
        keep=[],
    )
    told = "\n".join(faults(tmp_path, body))
    for part in ("name the input", "cycle", "final: there is no node 'd'", "fed by nothing"):
        assert part in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("nul", "is not JSON"),
        ("{'a': 1}", "is not JSON"),
        ('{"stoker_plan": NaN}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "is not JSON"),
        ("9" * 10_000, "is not JSON"),
        ('"\ud800'.encode("utf-8", "surrogatepass").decode("latin-1"), "is not JSON"),
    ],
)
def test_text_that_is_not_json_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidPlan, match=says) as raised:
        read_plan(path, STAGES)
    assert "\n" not in str(raised.value)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(InvalidPlan, match="is not UTF-8 text"):
        read_plan(str(path), STAGES)


@pytest.mark.parametrize("raw", [None, 1, "x", [], [1], True])
def test_a_plan_is_an_object(raw: Any) -> None:
    with pytest.raises(InvalidPlan) as raised:
        plan_from(raw, STAGES)
    assert "a plan is an object" in str(raised.value.faults[0])


@pytest.mark.parametrize("version", [0, 2, "1", True, 1.0, None, [[[[]]]], ...])
def test_another_version_is_refused(tmp_path: Path, version: Any) -> None:
    assert "must be 1, is" in faults(tmp_path, changed(stoker_plan=version))[0]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", 7, "name: must be text, is 7"),
        ("name", None, "name: must be text"),
        ("nodes", [], "nodes: must be an object"),
        ("nodes", None, "nodes: must be an object"),
        ("edges", {}, "edges: must be a list"),
        ("final", 5, "final: must be text, is 5"),
        ("final", ["sum"], "final: must be text"),
        ("keep", "one", "keep: must be a list, is 'one'"),
        ("keep", [1, ["x"]], "keep[0]: must be the name of a node, is 1"),
        ("edges", [7], 'edges[0]: an edge is {"from": node, "to": node}'),
        ("edges", [{"from": "one"}], "edges[0]: an edge is"),
        ("edges", [{"from": 1, "to": "sum"}], "edges[0]: an edge is"),
        ("edges", [{"from": "one", "to": "sum", "port": 3}], "edges[0].port: must be text"),
        ("edges", [{"from": "one", "to": "sum", "each": "yes"}], "edges[0].each: must be true or false"),
        ("edges", [{"from": "one", "to": "sum", "via": "x"}], "edges[0].via: is not a field of a plan"),
        ("edges", [{"from": "one", "to": "nobody"}], "edges[0].to: there is no node 'nobody'"),
    ],
)
def test_fields_of_the_wrong_type_are_faults(tmp_path: Path, field: str, value: Any, says: str) -> None:
    assert any(says in fault for fault in faults(tmp_path, changed(**{field: value})))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (5, "one: a node is an object"),
        ({}, "one.stage: there is no stage None"),
        ({"stage": ["x"]}, "one.stage: there is no stage ['x']"),
        ({"stage": "test/number", "args": []}, "one.args: must be an object"),
        ({"stage": "test/number", "timeout_s": 0}, "one.timeout_s: must be a number of seconds above 0"),
        ({"stage": "test/number", "timeout_s": "5"}, "one.timeout_s"),
        ({"stage": "test/number", "timeout_s": True}, "one.timeout_s"),
        ({"stage": "test/number", "timeout_s": {"$float": "nan"}}, "one.timeout_s"),
        ({"stage": "test/number", "retry": 3}, "one.retry: must be an object"),
        ({"stage": "test/number", "retry": {"attempts": 0}}, "one.retry.attempts: must be a whole number from 1"),
        ({"stage": "test/number", "retry": {"attempts": "3"}}, "one.retry.attempts"),
        ({"stage": "test/number", "retry": {"attempts": True}}, "one.retry.attempts"),
        ({"stage": "test/number", "retry": {"backoff_s": -1}}, "one.retry.backoff_s"),
        ({"stage": "test/number", "retry": {"backoff_s": {"$float": "inf"}}}, "one.retry.backoff_s"),
        ({"stage": "test/number", "retry": {"on": "luck"}}, "one.retry.on: must be one of transient, all"),
        ({"stage": "test/number", "retry": {"on": ["all"]}}, "one.retry.on"),
        ({"stage": "test/number", "retry": {"tries": 2}}, "one.retry.tries: is not a field of a plan"),
        ({"stage": "test/number", "colour": 1}, "one.colour: is not a field of a plan"),
        ({"stage": "test/number", "args": {"value": [[[]]]}}, "one.value: expected a whole number"),
        ({"stage": "test/number", "args": {"value": 1e400}}, "one.value: expected a whole number"),
    ],
)
def test_faults_of_a_node(tmp_path: Path, body: Any, says: str) -> None:
    text = dumps(json.loads(nodes(one=1)) | {"nodes": {"one": body}}).replace('"$$float"', '"$float"')
    assert any(says in fault for fault in faults(tmp_path, text))


def test_all_faults_of_a_retry_come_together(tmp_path: Path) -> None:
    body = {"stage": "test/number", "retry": {"attempts": 0, "backoff_s": -1, "on": "luck"}}
    assert len(faults(tmp_path, nodes(one=body))) == 3


def test_a_node_may_ask_for_other_resources_than_its_stage(tmp_path: Path) -> None:
    needs = {"cpu": 2, "gpu": 1, "memory_gib": 8, "vram_gib": 4.5, "gpu_backend": "rocm", "shares": True}
    body = {"stage": "test/number", "needs": needs}
    plan = read_plan(written(tmp_path, nodes(one=body)), STAGES)
    assert plan.node("one").needs == Needs(cpu=2, gpu=1, memory_gib=8.0, vram_gib=4.5, gpu_backend="rocm", shares=True)
    assert plan.node("one").stage.needs == Needs()


def test_a_plan_in_which_no_node_asks_for_resources_is_written_as_ever(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, GOOD), STAGES)
    assert [sorted(node) for node in plan_to_json(plan)["nodes"].values()] == [
        ["args", "stage"],
        ["args", "retry", "stage", "timeout_s"],
        ["args", "stage"],
    ]


def test_all_faults_of_needs_come_together_with_their_lines(tmp_path: Path) -> None:
    text = """{"stoker_plan": 1, "nodes": {
      "one": {"stage": "test/number", "needs": {
        "gpus": 1,
        "cpu": 1.5,
        "memory_gib": "much",
        "shares": 1,
        "peaks": "a",
        "share_key": "mine"}},
      "two": {"stage": "test/number", "needs": 5},
      "three": {"stage": "test/number",
        "needs": {"ranks": 2, "gpu": 3, "disk": -1}}},
      "final": "one"}"""
    found = faults(tmp_path, text)
    for expected in (
        "FILE:3: one.needs.gpus: is not a field of a plan",
        "FILE:4: one.needs.cpu: must be a whole number, is 1.5",
        "FILE:5: one.needs.memory_gib: must be a number, is 'much'",
        "FILE:6: one.needs.shares: must be true or false, is 1",
        "FILE:7: one.needs.peaks: must be a list of texts, is 'a'",
        "FILE:8: one.needs.share_key: is not a field of a plan",
        "FILE:9: two.needs: must be an object, is 5",
        "FILE:11: three.needs: needs must not be negative",
        "FILE:11: three.needs: 2 ranks have a device each, or none",
    ):
        assert any(fault.startswith(expected) for fault in found), (expected, found)
    assert len(found) == 9


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan")])
def test_an_amount_that_is_no_finite_number_is_a_fault(tmp_path: Path, value: float) -> None:
    body = {"stage": "test/number", "needs": {"memory_gib": 1}, "retry": {"attempts": 2, "backoff_s": 1}}
    text = nodes(one=body)
    assert faults(tmp_path, text.replace('"memory_gib": 1', f'"memory_gib": {json.dumps(value)}'))
    assert faults(tmp_path, text.replace('"backoff_s": 1', f'"backoff_s": {json.dumps(value)}'))


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (Needs(gpu=1, gpu_backend="vulkan"), "gpu_backend is 'vulkan', not one of cuda, rocm, metal, oneapi"),
        (Needs(gpu_backend="rocm"), "gpu_backend without a device"),
        (Needs(gpu=1, gpu_backend="rocm"), ""),
    ],
)
def test_a_backend_is_one_that_has_devices_and_needs_one(needs: Needs, why: str) -> None:
    assert contradictions_in(needs) == ([why] if why else [])


def test_a_builder_refuses_needs_that_contradict_themselves() -> None:
    with pytest.raises(InvalidPlan, match="device memory without a device"):
        PlanBuilder("demo").start(number, id="one", needs=Needs(vram_gib=1)).finish()


def test_a_node_that_is_given_twice_is_a_fault_and_not_the_last_one(tmp_path: Path) -> None:
    text = GOOD.replace('"two": {"stage"', '"one": {"stage"')
    assert "FILE:6: one: is given twice" in faults(tmp_path, text)


def test_an_argument_that_is_given_twice_is_a_fault(tmp_path: Path) -> None:
    text = GOOD.replace('{"value": 1}', '{"value": 1,\n "value": 9}')
    assert faults(tmp_path, text) == ["FILE:6: one.args.value: is given twice"]


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.plan_file.LARGEST_BYTES", 100)
    with pytest.raises(InvalidPlan, match="larger than"):
        read_plan(written(tmp_path, GOOD), STAGES)


def test_numbers_that_are_not_finite_may_be_arguments(tmp_path: Path) -> None:
    told = faults(tmp_path, nodes(one={"stage": "test/number", "args": {"value": {"$float": "nan"}}}))
    assert told == ["FILE:1: one.value: expected a whole number, got nan"]
    assert math.isnan(loads('{"$float":"nan"}'))


def test_a_long_plan_is_read_in_reasonable_time(tmp_path: Path) -> None:
    builder = PlanBuilder("long")
    tip = builder.start(number)
    for value in range(3000):
        tip = tip.then(double, NumberArgs(value=value))
    plan = tip.finish()
    path = written(tmp_path, dumps(plan_to_json(plan)))
    assert same(read_plan(path, STAGES), plan)


# --- places --------------------------------------------------------------------------------------


def test_places_are_the_lines_of_keys_and_items() -> None:
    text = '{\n "a": {\n  "b": [\n   1,\n   {"c": "}]{["}\n  ]},\n "d\\"e": 2}'
    places = find_places(text)
    assert places.lines == {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "b", 0): 4,
        ("a", "b", 1): 5,
        ("a", "b", 1, "c"): 5,
        ('d"e',): 7,
    }
    assert places.line_of(("a", "b", 7, "x")) == 3
    assert places.line_of(("z",)) is None


def test_repeated_keys_are_found_in_their_own_object_only() -> None:
    assert not has_repeated_keys('{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}')
    text = '{"a": 1,\n"b": {"x": 1, "x": 2},\n"a": 3}'
    assert has_repeated_keys(text)
    assert find_places(text).repeated == [(("b", "x"), 2), (("a",), 3)]
