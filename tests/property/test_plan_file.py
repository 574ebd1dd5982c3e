"""Whatever stands in a plan file: a plan, or faults in one line each, and never anything else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker.authoring import PlanBuilder
from stoker.core.device import Needs
from stoker.core.errors import InvalidInput
from stoker.core.jsontext import dumps, find_places, loads
from stoker.engine.plan import Plan
from stoker.engine.plan_file import plan_from, plan_to_json, read_plan
from tests.lengths import examples
from tests.unit.engine.stages import NumberArgs, add, count, double, number, pair, read

STAGES = {stage.name: stage for stage in (number, add, double, count, pair, read)}
GOOD: dict[str, Any] = {
    "stoker_plan": 1,
    "name": "demo",
    "nodes": {
        "one": {"stage": "test/number", "args": {"value": 1}, "timeout_s": 5, "retry": {"attempts": 2, "on": "all"}},
        "items": {"stage": "test/count", "args": {"n": 2}, "needs": {"cpu": 2, "memory_gib": 1.5, "peaks": ["a"]}},
        "each": {"stage": "test/pair"},
        "sum": {"stage": "test/add"},
    },
    "edges": [
        {"from": "items", "to": "each", "port": "left", "each": True},
        {"from": "one", "to": "each", "port": "right"},
        {"from": "each", "to": "sum"},
    ],
    "final": "sum",
    "keep": ["one"],
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.sampled_from(
        ["one", "sum", "test/number", "test/read", "port", "each", "left", "", "$float", "nan", "\x00é\ud800"]
    )
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["stage", "args", "needs", "gpu", "memory_gib", "from", "to", "n", "value", "path", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def gib(most: float = 64.0) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False)


@st.composite
def needs(draw: st.DrawFn) -> Needs:
    """Needs without a contradiction, whatever they say."""
    ranks = draw(st.integers(1, 4))
    gpu = draw(st.sampled_from([0, ranks]) if ranks > 1 else st.integers(0, 4))
    vram_gib = draw(gib()) if gpu else 0.0
    memory_gib = draw(gib())
    return Needs(
        cpu=draw(st.integers(0, 64)),
        gpu=gpu,
        network=draw(st.integers(0, 4)),
        disk=draw(st.integers(0, 4)),
        memory_gib=memory_gib,
        vram_gib=vram_gib,
        ranks=ranks,
        shares=bool(gpu and vram_gib) and draw(st.booleans()),
        base_gib=draw(gib(vram_gib)),
        base_memory_gib=draw(gib(memory_gib)),
        state_gib=draw(gib()),
        pass_gib=draw(gib()),
        most=draw(st.integers(0, 9)),
        peaks=tuple(draw(st.lists(st.text(max_size=5), max_size=3))),
        foretold_percent=draw(st.floats(1, 1000, allow_nan=False)),
    )


bounded = settings(
    max_examples=examples(60, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def answer(read: Callable[[], Plan]) -> Plan | InvalidInput:
    """A plan, or faults; anything else is raised and fails the test."""
    try:
        return read()
    except InvalidInput as faults:
        return faults


def of(raw: Any) -> Plan | None:
    got = answer(lambda: plan_from(raw, STAGES))
    if isinstance(got, Plan):
        return got
    assert got.faults
    assert all("\n" not in fault.message for fault in got.faults)
    return None


@bounded
@given(st.data())
def test_a_plan_with_something_else_in_any_place_is_a_plan_or_faults(data: st.DataObject) -> None:
    raw = copy.deepcopy(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        *outer, last = data.draw(st.sampled_from(places(raw)))
        inside = raw
        for step in outer:
            inside = inside[step]
        if data.draw(st.booleans()):
            inside[last] = data.draw(JSON)
        else:
            del inside[last]
        if not places(raw):
            break
    plan = of(raw)
    if plan is not None:
        assert of(loads(dumps(plan_to_json(plan)))) is not None


@bounded
@given(st.none() | needs(), st.none() | needs())
def test_what_nodes_need_is_the_same_after_a_plan_was_written_and_read(one: Needs | None, two: Needs | None) -> None:
    builder = PlanBuilder("demo")
    tip = builder.start(number, NumberArgs(value=1), id="one", needs=one).then(double, NumberArgs(), needs=two)
    plan = tip.finish()
    written = plan_to_json(plan)
    again = plan_from(loads(dumps(written)), STAGES)
    assert [node.asks for node in again.nodes] == [node.asks for node in plan.nodes] == [one, two]
    assert plan_to_json(again) == written
    assert ["needs" in node for node in written["nodes"].values()] == [one is not None, two is not None]


@bounded
@given(JSON)
@example({"stoker_plan": 1, "nodes": {"a": {"stage": "test/number"}}, "final": ["a"]})
@example({"stoker_plan": 1, "nodes": {"a[0]": {"stage": "test/number"}}})
def test_anything_at_all_is_a_plan_or_faults(raw: Any) -> None:
    of(raw)


@bounded
@given(data=st.data())
def test_a_damaged_file_is_a_plan_or_faults(data: st.DataObject, tmp_path: Path) -> None:
    text = json.dumps(GOOD, indent=data.draw(st.sampled_from([None, 1])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 3))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + cut :]
    path = tmp_path / "plan.json"
    path.write_text(text, errors="surrogatepass")
    got = answer(lambda: read_plan(str(path), STAGES))
    if isinstance(got, InvalidInput):
        assert got.faults
        assert all(str(fault).startswith(str(path)) for fault in got.faults)


@bounded
@given(JSON.filter(lambda value: isinstance(value, dict | list)), st.sampled_from([None, 1, 4]))
def test_every_key_and_item_has_its_line(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    found = find_places(text)
    assert set(found.lines) == set(places(json.loads(text)))
    assert found.repeated == []
    lines = text.split("\n")
    for place, line in found.lines.items():
        if isinstance(place[-1], str):
            assert json.dumps(place[-1]) in lines[line - 1]


def test_the_example_is_a_plan() -> None:
    plan = of(GOOD)
    assert plan is not None
    assert plan.final == "sum"
    with pytest.raises(InvalidInput):
        plan_from({**GOOD, "final": 5}, STAGES)
