from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from stoker.authoring import Duration, InputPath, Size, arg
from stoker.core.digests import encode
from stoker.core.errors import InvalidArgs
from stoker.engine.arg_types import arg_type_of
from stoker.engine.args import ArgsSchema


def read(annotation: Any, text: str) -> Any:
    return arg_type_of(annotation).read(text)


def check(annotation: Any, value: Any) -> Any:
    return arg_type_of(annotation).check(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    flag: bool = arg(default=False)
    count: int = arg(3, help="how many", ge=1, le=10)
    rate: float = arg(0.5, gt=0, lt=1)
    label: str = arg("x")
    data: InputPath = arg(help="where the rows are")
    mode: Literal["fast", "exact"] = arg("fast")
    depth: int | None = arg(None, ge=1)
    widths: list[int] = arg([8, 4], ge=1)
    names: tuple[str, ...] = arg(())
    weights: dict[str, float] = arg({}, ge=0)
    n_jobs: int = arg(1, runtime=True)


SCHEMA = ArgsSchema(Everything)


# --- text is read by the declared type -----------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, "007", "007"),
        (int, "007", 7),
        (int, "1_000", 1000),
        (int, "1e3", 1000),
        (int, "-5", -5),
        (int, "4.0", 4),
        (float, "1", 1.0),
        (float, ".5", 0.5),
        (float, "5.", 5.0),
        (float, "1e-5", 1e-5),
        (float, "-inf", -math.inf),
        (float, "inf", math.inf),
        (float, "1_000", 1000.0),
        (bool, "true", True),
        (bool, "False", False),
        (str, "on", "on"),
        (str, "null", "null"),
        (str, "true", "true"),
        (int | None, "null", None),
        (int | None, "none", None),
        (int | None, "3", 3),
        (Literal["a", "b"], "b", "b"),
        (Literal[1, 2], "2", 2),
        (list[int], "1,2,3", [1, 2, 3]),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], "[]", []),
        (list[int], "", []),
        (tuple[str, ...], "a,b", ("a", "b")),
        (list[str], "['a,b', 007]", ["a,b", "007"]),
        (list[list[int]], "[[1,2],[]]", [[1, 2], []]),
        (dict[str, float], "{a:1, b: 2.5}", {"a": 1.0, "b": 2.5}),
        (InputPath, "data.csv", "data.csv"),
    ],
)
def test_text_is_read_by_the_declared_type(annotation: Any, text: str, value: Any) -> None:
    found = read(annotation, text)
    assert encode(found) == encode(value)
    assert type(found) is type(value)


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(read(float, "nan"))


@pytest.mark.parametrize(
    ("annotation", "text", "says"),
    [
        (bool, "on", "write true or false"),
        (bool, "1", "write true or false"),
        (bool, "yes", "write true or false"),
        (int, "3.5", "not a whole number"),
        (int, "three", "not a whole number"),
        (int, "inf", "not a whole number"),
        (int, "nan", "not a whole number"),
        (int, "", "not a whole number"),
        (int, "1e23", "write all its digits"),
        (int, "9" * 5000, "not a whole number"),
        (float, "fast", "not a number"),
        (int | None, "nothing", "not a whole number"),
        (Literal["a", "b"], "c", "'c' is not one of a, b"),
        (list[int], "1,x", "'x' is not a whole number"),
        (list[int], "1,,2", "expected a value before ','"),
        (dict[str, int], "a=1", "a map is expected here"),
        (dict[str, int], "{a:x}", "'x' is not a whole number"),
        (InputPath, "", "expected a path"),
        (str, "\ud800", "not valid Unicode"),
    ],
)
def test_text_that_does_not_fit_is_refused_with_what_would(annotation: Any, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(annotation, text)


def test_large_whole_numbers_are_read_exactly() -> None:
    assert read(int, str(2**200)) == 2**200


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "normal"),
    [
        (float, 1, 1.0),
        (float, -0.0, -0.0),
        (int, 2.0, 2),
        (int | None, None, None),
        (list[float], (1, 2.5), [1.0, 2.5]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (list[int | None], [1, None], [1, None]),
    ],
)
def test_a_value_is_normalised_by_its_type(annotation: Any, value: Any, normal: Any) -> None:
    found = check(annotation, value)
    assert encode(found) == encode(normal)
    assert type(found) is type(normal)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bool, 1),
        (bool, "true"),
        (int, True),
        (int, 2.5),
        (int, "2"),
        (int, math.nan),
        (int, 10**3000),
        (float, "1.0"),
        (float, True),
        (float, 10**400),
        (float, None),
        (str, 7),
        (str, None),
        (InputPath, ""),
        (Literal[1, 2], 1.0),
        (Literal[1, 2], True),
        (list[int], "12"),
        (list[int], {1: 2}),
        (list[int], [1, "2"]),
        (dict[str, int], {1: 2}),
        (dict[str, int], {"\udcff": 2}),
        (dict[str, int], [("a", 1)]),
    ],
)
def test_a_value_of_another_type_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        check(annotation, value)


def test_a_value_nested_as_deep_as_can_be_is_refused_like_any_other() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="expected a number"):
        check(float, deep)


@pytest.mark.parametrize("annotation", [bytes, int | str, list, dict[int, str], tuple[int, str], Any, object])
def test_other_annotations_are_refused_when_declared(annotation: Any) -> None:
    with pytest.raises(TypeError, match="not a supported type of an argument"):
        arg_type_of(annotation)


# --- declarations --------------------------------------------------------------------------------


def declared(annotation: Any, default: Any, **limits: Any) -> ArgsSchema:
    made: Any = type("Declared", (), {"__annotations__": {"x": annotation}, "x": arg(default, **limits)})
    return ArgsSchema(dataclass(made))


def test_a_default_has_its_normal_form() -> None:
    spec = declared(float, 1).specs["x"]
    assert type(spec.default) is float
    assert encode(declared(float, 1).check({}, owner="o")[0]) == encode(
        declared(float, 1).check({"x": 1}, owner="o")[0]
    )


@pytest.mark.parametrize(
    ("annotation", "default", "limits"),
    [(int, "three", {}), (int, None, {}), (int, 0, {"ge": 1}), (Literal["a"], "b", {}), (list[int], ["x"], {})],
)
def test_a_default_that_does_not_fit_is_the_authors_fault(annotation: Any, default: Any, limits: Any) -> None:
    with pytest.raises(TypeError, match="argument x of Declared"):
        declared(annotation, default, **limits)


def test_arguments_are_declared_as_a_dataclass() -> None:
    with pytest.raises(TypeError, match="is not a dataclass"):
        ArgsSchema(dict)


def test_a_plain_dataclass_field_is_an_argument_too() -> None:
    @dataclass
    class Plain:
        x: int
        y: list[int] = field(default_factory=lambda: [1])

    values, faults = ArgsSchema(Plain).check({"x": 2}, owner="o")
    assert (values, faults) == ({"x": 2, "y": [1]}, [])


def test_a_mutable_default_is_not_shared() -> None:
    first, _ = SCHEMA.check({"data": "d"}, owner="o")
    first["widths"].append(99)
    second, _ = SCHEMA.check({"data": "d"}, owner="o")
    assert second["widths"] == [8, 4]


# --- checking a whole ----------------------------------------------------------------------------


def test_every_fault_is_reported_at_once() -> None:
    given = {
        "flag": "maybe",
        "count": 11,
        "rate": 0,
        "mode": "slow",
        "depth": 0,
        "widths": [4, 0],
        "weights": {"a": -1.0},
        "laber": "x",
        "unheard": 1,
    }
    with pytest.raises(InvalidArgs) as raised:
        SCHEMA.build(given, owner="cook/book")
    told = {fault.where.removeprefix("cook/book."): str(fault) for fault in raised.value.faults}
    assert sorted(told) == ["count", "data", "depth", "flag", "laber", "mode", "rate", "unheard", "weights", "widths"]
    assert "did you mean 'label'?" in told["laber"]
    assert "known: flag, count" in told["unheard"]
    assert "is required (path) (where the rows are)" in told["data"]
    assert "must be at most 10, got 11" in told["count"]
    assert "must be more than 0, got 0.0" in told["rate"]
    assert "must be at least 1, got 0" in told["widths"]
    assert raised.value.exit_code == 28
    assert str(raised.value) == "10 errors in the arguments of cook/book"
    assert len(raised.value.data["faults"]) == 10  # type: ignore[arg-type]


def test_one_fault_is_its_own_headline() -> None:
    with pytest.raises(InvalidArgs, match=r"o\.count: expected a whole number, got 'x'"):
        SCHEMA.build({"data": "d", "count": "x"}, owner="o")


def test_what_is_not_given_is_filled_in() -> None:
    made = SCHEMA.build({"data": "d"}, owner="o")
    assert made == Everything(data=InputPath("d"))


def test_limits_are_told_exactly() -> None:
    schema = declared(int, 5, le=1_000_000)
    _, faults = schema.check({"x": 1_000_001}, owner="o")
    assert faults[0].message == "must be at most 1000000, got 1000001"
    assert "got 1" in declared(int, 5, le=7).check({"x": 10**400}, owner="o")[1][0].message


def test_nan_is_within_no_limits_and_anything_without_limits() -> None:
    assert declared(float, 0.0, ge=0).check({"x": math.nan}, owner="o")[1]
    assert not declared(float, 0.0).check({"x": math.nan}, owner="o")[1]


def test_a_stage_without_arguments_says_so() -> None:
    _, faults = ArgsSchema(None).check({"x": 1}, owner="load")
    assert str(faults[0]) == "load.x: unknown argument (it takes none)"


def test_texts_are_read_with_all_faults_and_unknown_names_left_for_the_check() -> None:
    values, faults = SCHEMA.read({"count": "three", "flag": "on", "label": "007", "laber": "x"}, owner="o")
    assert values == {"label": "007", "laber": "x"}
    assert [fault.where for fault in faults] == ["o.count", "o.flag"]


# --- identity ------------------------------------------------------------------------------------


def test_runtime_arguments_are_not_part_of_the_identity() -> None:
    values, _ = SCHEMA.check({"data": "d", "n_jobs": 8}, owner="o")
    assert "n_jobs" not in SCHEMA.identity(values, lambda path: "digest")


def test_a_path_enters_by_content_wherever_it_stands() -> None:
    @dataclass
    class Paths:
        one: InputPath
        maybe: InputPath | None
        many: list[InputPath]
        named: dict[str, InputPath]

    schema = ArgsSchema(Paths)
    values, _ = schema.check({"one": "a", "maybe": None, "many": ["b", "c"], "named": {"k": "d"}}, owner="o")
    assert schema.paths_in(values) == ["a", "b", "c", "d"]
    identity = schema.identity(values, lambda path: f"<{path}>")
    assert identity == {
        "one": {"content": "<a>"},
        "maybe": None,
        "many": [{"content": "<b>"}, {"content": "<c>"}],
        "named": {"k": {"content": "<d>"}},
    }
    now = {"b": "<new>", "d": "<new>"}
    assert schema.changed_reads(values, identity, lambda path: now.get(path, f"<{path}>")) == ["b", "d"]
    assert schema.changed_reads(values, identity, lambda path: f"<{path}>") == []
    moved = {
        name: schema.specs[name].type.with_paths(value, lambda path: f"/x/{path}") for name, value in values.items()
    }
    assert moved == {"one": "/x/a", "maybe": None, "many": ["/x/b", "/x/c"], "named": {"k": "/x/d"}}


# --- for people and programs ---------------------------------------------------------------------


def test_the_schema_is_json_schema() -> None:
    schema = SCHEMA.schema()
    assert schema["required"] == ["data"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["count"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 10,
        "description": "how many",
        "default": 3,
    }
    assert properties["rate"] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.5}
    assert properties["data"] == {"type": "string", "format": "path", "description": "where the rows are"}
    assert properties["mode"] == {"enum": ["fast", "exact"], "default": "fast"}
    assert properties["depth"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "null"}]
    assert properties["widths"]["items"] == {"type": "integer", "minimum": 1}
    assert properties["weights"]["additionalProperties"] == {"type": "number", "minimum": 0}
    assert properties["n_jobs"]["x-runtime"] is True
    json.dumps(schema)


def test_prefill_takes_the_overlay_then_defaults_then_a_placeholder() -> None:
    filled = SCHEMA.prefill({"label": "iris"})
    assert (filled["label"], filled["count"], filled["data"]) == ("iris", 3, "<path>")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "bool"),
        (int, "int"),
        (float, "float"),
        (str, "text"),
        (InputPath, "path"),
        (Literal["a", "b"], "a|b"),
        (int | None, "int or null"),
        (list[int], "list of int"),
        (dict[str, float], "map of float"),
    ],
)
def test_a_type_is_named_for_people(annotation: Any, words: str) -> None:
    assert arg_type_of(annotation).describe() == words


def test_values_of_an_args_object_are_in_declared_order() -> None:
    assert list(SCHEMA.values_of(Everything(data=InputPath("d")))) == list(SCHEMA.specs)
    assert SCHEMA.make(SCHEMA.values_of(Everything(data=InputPath("d")))) == Everything(data=InputPath("d"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredArgs:
    memory: Size = arg(Size(""))
    limit: Duration = arg(Duration("1h"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8", "8 of what? A size has a unit: 8G"),
        ("2.5", "2.5 of what? A size has a unit: 8G"),
        ("lots", "'lots' is not a size; write for example 500MB, 6GiB or 10G"),
    ],
)
def test_a_size_without_a_unit_is_asked_about(text: str, said: str) -> None:
    _, faults = ArgsSchema(MeasuredArgs).check({"memory": text}, owner="x")
    assert [str(fault) for fault in faults] == [f"x.memory: {said}"]
    assert not ArgsSchema(MeasuredArgs).check({"memory": "8G", "limit": "90s"}, owner="x")[1]


def test_a_number_from_a_file_is_no_duration() -> None:
    _, faults = ArgsSchema(MeasuredArgs).check({"limit": 30}, owner="x")
    assert [str(fault) for fault in faults] == ["x.limit: 30 of what? A duration has a unit: 30m"]


def test_an_alias_is_a_hint_and_no_argument() -> None:
    schema = declared(float, 0.1, aliases=("speed", "learning-rate"))
    for word in ("speed", "learning_rate"):
        values, faults = schema.check({word: 0.5}, owner="o")
        assert str(faults[0]) == f"o.{word}: unknown argument (did you mean 'x'?)"
        assert values["x"] == 0.1
    assert schema.declared().leaves["x"].aliases == ("speed", "learning-rate")
    assert "aliases" not in json.dumps(schema.schema())
