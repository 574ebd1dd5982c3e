from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from stoker.authoring import InputPath, PlanBuilder, arg
from stoker.config.values import NOTHING
from stoker.core.digests import encode
from stoker.core.errors import BadInput, InvalidArgs, InvalidPlan
from stoker.core.jsontext import dumps, loads
from stoker.engine.args import ArgsSchema
from stoker.engine.plan_file import plan_to_json, read_plan
from stoker.jobs.pack.attempt_inputs import with_runtime, without_runtime
from tests.unit.engine.lab import Lab, lines_of, plan_of
from tests.unit.engine.stages import Shape, ShapedArgs, process_shaped

if TYPE_CHECKING:
    from stoker.engine.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    count: int = arg(200, help="most trees", ge=1)
    depth: int | None = arg(None, ge=1, le=64)
    verbose: bool = arg(default=False, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: InputPath = arg(help="the rows")
    also: tuple[InputPath, ...] = arg(())
    weights: dict[str, float] = arg({}, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    trees: Trees = arg(Trees(count=50), help="the trees")
    rate: float = arg(1, gt=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    model: Model = arg(Model(), help="what is trained")
    source: Source = arg(help="what is read")
    seed: int = arg(0)


SCHEMA = ArgsSchema(Args)
GIVEN: dict[str, Any] = {"source": {"path": "a.csv"}}
FILLED = {
    "model": {"trees": {"count": 50, "depth": None, "verbose": False}, "rate": 1.0},
    "source": {"path": "a.csv", "also": (), "weights": {}},
    "seed": 0,
}


def test_what_is_not_given_is_filled_in_at_every_depth_and_the_record_s_default_wins_over_its_fields() -> None:
    assert SCHEMA.check(GIVEN, owner="o") == (FILLED, [])
    values, _ = SCHEMA.check({**GIVEN, "model": {"trees": {"depth": 3}}}, owner="o")
    assert values["model"]["trees"] == {"count": 50, "depth": 3, "verbose": False}


def test_plain_values_become_records_and_records_become_plain_values() -> None:
    made = SCHEMA.build(GIVEN, owner="o")
    assert made == Args(source=Source(path=InputPath("a.csv")))
    assert isinstance(made.model.trees, Trees)
    assert SCHEMA.values_of(made) == FILLED
    assert SCHEMA.make(SCHEMA.values_of(made)) == made


def test_a_record_may_be_given_as_itself_among_plain_values() -> None:
    values, faults = SCHEMA.check({"source": Source(path=InputPath("a.csv")), "model": {"trees": Trees()}}, owner="o")
    assert faults == []
    assert values["model"]["trees"]["count"] == 200
    assert type(values["source"]) is dict


def test_checked_values_are_plain_data_that_survives_json() -> None:
    values, _ = SCHEMA.check(GIVEN, owner="o")
    again, faults = SCHEMA.check(loads(dumps(values)), owner="o")
    assert faults == []
    assert encode(again) == encode(values)
    assert SCHEMA.make(again) == SCHEMA.make(values)


def test_every_fault_at_every_depth_is_reported_at_once_with_its_dotted_place() -> None:
    given = {
        "model": {"trees": {"count": 0, "dept": 3, "depth": "deep"}, "rate": -1},
        "source": {"also": "x", "weights": {"a": -1.0}},
        "sed": 1,
    }
    with pytest.raises(InvalidArgs) as raised:
        SCHEMA.build(given, owner="cook/book")
    told = {fault.where.removeprefix("cook/book."): str(fault) for fault in raised.value.faults}
    assert sorted(told) == [
        "model.rate",
        "model.trees.count",
        "model.trees.dept",
        "model.trees.depth",
        "sed",
        "source.also",
        "source.path",
        "source.weights",
    ]
    assert "must be at least 1, got 0" in told["model.trees.count"]
    assert "did you mean 'depth'?" in told["model.trees.dept"]
    assert "is required (path) (the rows)" in told["source.path"]
    assert "did you mean 'seed'?" in told["sed"]


@pytest.mark.parametrize("value", [3, None, "x", [1], Source(path=InputPath("a"))])
def test_a_record_is_given_as_a_map_or_as_itself(value: Any) -> None:
    _, faults = SCHEMA.check({**GIVEN, "model": value}, owner="o")
    assert [fault.where for fault in faults] == ["o.model"]
    assert "expected fields of record (trees, rate), got" in faults[0].message


def test_texts_are_read_by_dotted_name() -> None:
    values, faults = SCHEMA.read({"model.trees.depth": "3", "model.rate": "1", "source.path": "007"}, owner="o")
    assert faults == []
    assert values == {"model": {"trees": {"depth": 3}, "rate": 1.0}, "source": {"path": "007"}}
    _, faults = SCHEMA.read({"model.trees.depth": "deep", "model": "gbt", "model.trees.dept": "1"}, owner="o")
    assert [fault.where for fault in faults] == ["o.model.trees.depth", "o.model"]
    assert "set its fields one by one: .trees.count, .trees.depth" in faults[1].message


@pytest.mark.parametrize(
    ("name", "meant"), [("depth", "model.trees.depth"), ("model.trees.dept", "model.trees.depth"), ("sede", "seed")]
)
def test_the_last_part_of_a_name_is_enough_for_a_suggestion(name: str, meant: str) -> None:
    values, _ = SCHEMA.read({name: "1", "source.path": "a"}, owner="o")
    _, faults = SCHEMA.check(values, owner="o")
    assert [(fault.where, fault.hint) for fault in faults] == [(f"o.{name}", f"did you mean {meant!r}?")]


def test_a_name_like_no_other_gets_the_list_of_all() -> None:
    _, faults = SCHEMA.check({**GIVEN, "zzzzzz": 1}, owner="o")
    assert faults[0].hint.startswith("known: model.trees.count, model.trees.depth, model.trees.verbose, model.rate")


def test_runtime_fields_inside_are_not_part_of_the_identity_and_paths_enter_by_content() -> None:
    values, _ = SCHEMA.check({"source": {"path": "a", "also": ["b"]}, "model": {"trees": {"verbose": True}}}, owner="o")
    assert SCHEMA.paths_in(values) == ["a", "b"]
    assert SCHEMA.identity(values, lambda path: f"<{path}>") == {
        "model": {"trees": {"count": 50, "depth": None}, "rate": 1.0},
        "source": {"path": {"content": "<a>"}, "also": [{"content": "<b>"}], "weights": {}},
        "seed": 0,
    }


def test_a_record_that_does_not_change_the_result_is_left_out_whole() -> None:
    @dataclass
    class Loud:
        log: Trees = arg(Trees(), runtime=True)
        seed: int = 0

    schema = ArgsSchema(Loud)
    assert schema.identity(schema.check({}, owner="o")[0], str) == {"seed": 0}
    assert {path: leaf.is_runtime for path, leaf in schema.declared().leaves.items()} == {
        "log.count": True,
        "log.depth": True,
        "log.verbose": True,
        "seed": False,
    }


def test_paths_are_changed_where_they_stand_and_nothing_else_is() -> None:
    moved = SCHEMA.with_paths({"source": {"path": "a", "also": ["b"]}, "seed": "not a seed"}, lambda path: f"/x/{path}")
    assert moved == {"source": {"path": "/x/a", "also": ("/x/b",)}, "seed": "not a seed"}
    assert SCHEMA.with_paths({"source": 3}, str.upper) == {"source": 3}


def test_the_schema_is_an_object_in_an_object() -> None:
    schema = SCHEMA.schema()
    assert schema["required"] == ["source"]
    model = schema["properties"]["model"]
    assert (model["type"], model["additionalProperties"], model["required"]) == ("object", False, [])
    assert model["description"] == "what is trained"
    assert model["default"] == FILLED["model"]
    assert model["properties"]["trees"]["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "description": "most trees",
        "default": 50,
    }
    assert schema["properties"]["source"]["required"] == ["path"]
    assert "default" not in schema["properties"]["source"]
    json.dumps(schema)


def test_prefill_reaches_into_records() -> None:
    filled = SCHEMA.prefill({"model": {"trees": {"depth": 4}}})
    assert filled["model"] == {"trees": {"count": 50, "depth": 4, "verbose": False}, "rate": 1.0}
    assert filled["source"]["path"] == "<path>"


def test_declared_leaves_have_dotted_paths_and_a_map_stays_one_leaf() -> None:
    leaves = SCHEMA.declared().leaves
    assert list(leaves) == [
        "model.trees.count",
        "model.trees.depth",
        "model.trees.verbose",
        "model.rate",
        "source.path",
        "source.also",
        "source.weights",
        "seed",
    ]
    depth, weights = leaves["model.trees.depth"], leaves["source.weights"]
    assert (depth.path, depth.says, depth.default, depth.is_required) == (
        "model.trees.depth",
        "int or null",
        None,
        False,
    )
    assert leaves["model.trees.count"].default == 50
    assert leaves["model.trees.verbose"].is_runtime
    assert leaves["source.path"].default is NOTHING
    assert depth.read("3") == depth.check(3.0) == 3
    with pytest.raises(ValueError, match="must be at most 64, got 65"):
        depth.check(65)
    with pytest.raises(ValueError, match="must be at most 64, got 65"):
        depth.read("65")
    assert weights.check({"a": 1}) == {"a": 1.0}
    assert not SCHEMA.declared().is_open


def test_a_default_is_not_shared() -> None:
    first, _ = SCHEMA.check(GIVEN, owner="o")
    first["source"]["weights"]["x"] = 1.0
    first["model"]["trees"]["count"] = 7
    SCHEMA.declared().leaves["source.weights"].default["y"] = 1.0
    assert SCHEMA.check(GIVEN, owner="o")[0] == FILLED


def with_field(annotation: Any, made: Any) -> type:
    return dataclasses.make_dataclass("Declared", [("x", annotation, made)])


@pytest.mark.parametrize(
    ("annotation", "made", "says"),
    [
        (list[Trees], arg([]), "stands by itself"),
        (dict[str, Trees], arg({}), "stands by itself"),
        (Trees | None, arg(None), "stands by itself"),
        (Trees, arg(Trees(), ge=1), "limits belong to the fields"),
        (Trees, arg(Trees(count=0)), "count: must be at least 1, got 0"),
        (Trees, arg(3), "expected fields of record"),
    ],
)
def test_a_record_that_can_t_be_declared_is_the_authors_fault(annotation: Any, made: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"argument x of Declared: .*{says}"):
        ArgsSchema(with_field(annotation, made))


@dataclass
class Endless:
    inner: Endless = field()


def test_a_record_inside_itself_is_refused() -> None:
    with pytest.raises(TypeError, match="Endless contains itself"):
        ArgsSchema(Endless)


def test_a_record_without_a_default_has_those_of_its_fields() -> None:
    schema = ArgsSchema(with_field(Trees, arg()))
    assert schema.check({}, owner="o") == ({"x": {"count": 200, "depth": None, "verbose": False}}, [])
    assert schema.schema()["required"] == []


def test_a_record_reaches_the_stage_in_its_own_process_and_decides_whether_it_runs_again(lab: Lab, ledger: str) -> None:
    def shaped(width: int, told: str = ledger) -> Any:
        return lab.run(plan_of(process_shaped, ShapedArgs(value=5, shape=Shape(width=width, ledger=told)), id="it"))

    first = shaped(3)
    assert lab.value(first, "it") == 15
    # Where it takes notes is a runtime field of the record.
    assert shaped(3, "").endings == {"it": "hit"}
    wider = shaped(4)
    assert lines_of(ledger) == ["shaped 3", "shaped 4"]
    assert wider.of_kind("stage_begin")[0]["changes"] == [{"field": "args.shape.width", "before": 3, "after": 4}]


def test_a_plan_file_holds_records_as_objects_and_says_on_which_line_their_faults_are(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x")
    path = tmp_path / "plan.json"
    path.write_text(
        """{"stoker_plan": 1, "nodes": {"it": {"stage": "test/process-shaped", "args": {
             "shape": {"file": "rows.csv",
                       "width": 7}}}}}"""
    )
    stages = {process_shaped.name: process_shaped}
    plan = read_plan(str(path), stages)
    assert plan.node("it").args["shape"] == {"width": 7, "file": str(tmp_path / "rows.csv"), "ledger": ""}
    again = tmp_path / "again.json"
    again.write_text(dumps(plan_to_json(plan)))
    assert read_plan(str(again), stages) == plan
    path.write_text(path.read_text().replace("7", "0"))
    with pytest.raises(InvalidPlan) as raised:
        read_plan(str(path), stages)
    assert str(raised.value) == f"{path}:3: it.shape.width: must be at least 1, got 0"


def test_a_plan_in_python_takes_a_record_of_another_class_for_a_fault() -> None:
    with pytest.raises(InvalidPlan, match=r"it\.shape: expected fields of record \(width, file, ledger\)"):
        PlanBuilder("p").start(process_shaped, ShapedArgs(shape=Trees()), id="it").finish()  # type: ignore[arg-type]


def test_runtime_leaves_of_records_stand_beside_them_on_their_way_and_only_declared_ones_are_put_back() -> None:
    made = cast("Recipe", SimpleNamespace(name="r", args=SCHEMA))
    leaves = SCHEMA.nested_runtime()
    assert leaves == ("model.trees.verbose",)
    values: dict[str, Any] = {**FILLED, "model": {"trees": {"count": 50, "depth": None, "verbose": True}, "rate": 1.0}}
    sent = without_runtime(values, leaves)
    assert sent["model"] == SCHEMA.identity(values, lambda _: "")["model"]
    assert sent["model.trees.verbose"] is True
    assert with_runtime(made, sent) == values
    assert values["model"]["trees"]["verbose"] is True
    with pytest.raises(BadInput, match="is not a runtime argument of r"):
        with_runtime(made, {**sent, "model.trees.count": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOrMany:
    data: str | tuple[str | Source, ...] = arg("none")
    since: int = arg(3, later=True)


MANY = ArgsSchema(OneOrMany)


def test_text_or_a_list_of_texts_and_records_keeps_its_form() -> None:
    assert MANY.build({}, owner="o") == OneOrMany()
    given = ["a", {"path": "b", "weights": {"x": 2}}]
    made = MANY.build({"data": given}, owner="o")
    assert made.data == ("a", Source(path=InputPath("b"), weights={"x": 2.0}))
    assert MANY.values_of(made)["data"] == ("a", {"path": "b", "also": (), "weights": {"x": 2.0}})
    typed, faults = MANY.read({"data": "[a,{path: b, weights: {x: 2}}]"}, owner="o")
    assert (MANY.build(typed, owner="o"), faults) == (made, [])
    assert MANY.read({"data": "a"}, owner="o")[0] == {"data": "a"}
    identity = MANY.identity(MANY.values_of(made), lambda path: f"digest of {path}")
    assert identity["data"][1]["path"] == {"content": "digest of b"}


def test_every_fault_in_a_list_of_records_has_its_place() -> None:
    with pytest.raises(InvalidArgs) as caught:
        MANY.build({"data": [7, {"pth": "b", "weights": {"x": -1}}, "c"]}, owner="o")
    told = {fault.where: f"{fault.message} {fault.hint}" for fault in caught.value.faults}
    assert set(told) == {"o.data.0", "o.data.1.pth", "o.data.1.path", "o.data.1.weights"}
    assert "did you mean 'path'?" in told["o.data.1.pth"]
    with pytest.raises(InvalidArgs, match="expected text or list"):
        MANY.build({"data": 3}, owner="o")


def test_an_argument_that_was_added_later_leaves_keys_as_they_were() -> None:
    def identity(**given: int) -> dict[str, Any]:
        return MANY.identity(MANY.check(given, owner="o")[0], str)

    assert identity() == identity(since=3) == {"data": "none"}
    assert identity(since=4) == {"data": "none", "since": 4}
