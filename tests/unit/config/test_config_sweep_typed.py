"""The declared type of a leaf decides how a choice is read."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import Axis, AxisValue, Exclude, Sweep, SweepProduct, SweepSample, ValueForm, Zip, points, size
from stoker.config.sweep_file import read_sweep
from stoker.config.typed_values import read_choice, typed
from stoker.config.values import DeclaredLeaf, Schema
from stoker.core.errors import InvalidConfig
from stoker.engine.arg_types import arg_type_of
from tests.fakes.overrides import parse_override


def declared(path: str, annotation: Any) -> DeclaredLeaf:
    of = arg_type_of(annotation)
    return DeclaredLeaf(path=path, read=lambda text: of.check(of.read(text)), check=of.check, says=of.describe())


def schema(**annotations: Any) -> Schema:
    return Schema(leaves={path: declared(path, annotation) for path, annotation in annotations.items()})


def axis(word: str) -> Axis:
    found = parse_override(word).value
    assert isinstance(found, Axis)
    return found


def values(sweep: Sweep) -> list[Any]:
    return [choice.value for point in points(sweep) for _, choice in point.choices]


@pytest.mark.parametrize(
    ("annotation", "word", "value"),
    [
        (str, "x=007", "007"),
        (int, "x=007", 7),
        (float, "x=007", 7.0),
        (float, "x=.5", 0.5),
        (float, "x=5.", 5.0),
        (float, "x=1_000", 1000.0),
        (float, "x=1e-5", 1e-5),
        (float, "x=-inf", float("-inf")),
        (str, "x=.5", ".5"),
        (str, "x=on", "on"),
        (str, "x=null", "null"),
        (str, "x=true", "true"),
        (str, "x=1e999", "1e999"),
        (bool, "x=true", True),
        (int | None, "x=null", None),
        (str | None, "x=null", None),
        (str | None, "x='null'", "null"),
        (float, "x='0.5'", 0.5),
        (list[str], "x=[1,'a,b']", ["1", "a,b"]),
        (list[int], "x=[1,2]", [1, 2]),
        (dict[str, float], "x={a:1}", {"a": 1.0}),
    ],
)
def test_text_is_read_by_its_type(annotation: Any, word: str, value: Any) -> None:
    found = parse_override(word).value
    assert isinstance(found, AxisValue)
    assert repr(read_choice(found, declared("x", annotation))) == repr(value)


@pytest.mark.parametrize(("annotation", "word"), [(bool, "x=on"), (bool, "x=1"), (int, "x=a"), (float, "x=fast")])
def test_text_that_does_not_fit_is_refused(annotation: Any, word: str) -> None:
    found = parse_override(word).value
    assert isinstance(found, AxisValue)
    with pytest.raises(ValueError, match="not a"):
        read_choice(found, declared("x", annotation))


def test_a_value_of_a_file_is_checked_not_read() -> None:
    assert read_choice(AxisValue("1", 1, ValueForm.VALUE), declared("x", float)) == 1.0
    with pytest.raises(ValueError, match="expected text"):
        read_choice(AxisValue("1", 1, ValueForm.VALUE), declared("x", str))


def test_each_axis_is_read_by_the_type_of_its_leaf_and_others_stay() -> None:
    sweep = SweepProduct((Zip((axis("a=1,2"), axis("b=007,008"))), axis("c=1,2")))
    made, faults = typed(sweep, schema(a=float, b=str))
    assert not faults
    assert values(made) == [1.0, "007", 1, 1.0, "007", 2, 2.0, "008", 1, 2.0, "008", 2]
    assert [point.label for point in islice(points(made), 1)] == ["a=1.0,b=007,c=1"]


def test_the_text_stays_as_it_was_typed() -> None:
    made, _ = typed(axis("lr=1e-2,1e-3"), schema(lr=float))
    assert [(choice.text, choice.value) for point in points(made) for _, choice in point.choices] == [
        ("1e-2", 0.01), ("1e-3", 0.001),
    ]  # fmt: skip


def test_computed_points_fit_whole_number_fields() -> None:
    made, faults = typed(SweepProduct((axis("d=lin:1:9:5"), axis("e=log:1:100:3"))), schema(d=int, e=int))
    assert not faults
    assert values(made)[:4] == [1, 1, 1, 10]


def test_every_choice_that_does_not_fit_is_a_fault_with_its_column() -> None:
    _, faults = typed(axis("depth=3,deep,5,2.5"), schema(depth=int))
    assert [(fault.where, fault.message, fault.hint) for fault in faults] == [
        ("argument 1: depth", "'deep' is not a whole number", "depth is int"),
        ("argument 1: depth", "'2.5' is not a whole number", "depth is int"),
    ]
    assert faults[0].shown == "depth=3,deep,5,2.5\n        ^^^^"
    assert faults[1].shown == "depth=3,deep,5,2.5\n               ^^^"


def test_a_files_choice_that_does_not_fit_has_the_files_place() -> None:
    sweep, _ = read_sweep(
        {"lr": [0.1, "fast"]},
        lambda _: ValueOrigin(layer=ConfigLayer.FILE, where="s.yaml", line=2, column=7, text="  lr: [0.1, fast]"),
    )
    assert sweep is not None
    _, (fault,) = typed(sweep, schema(lr=float))
    assert fault.where == "s.yaml:2:7: lr"
    assert fault.shown == "  lr: [0.1, fast]\n            ^^^^"


def test_references_wait_for_their_values() -> None:
    made, faults = typed(axis("d=${a},3"), schema(d=int))
    assert not faults
    assert values(made) == ["${a}", 3]


def test_a_long_computed_axis_is_read_point_by_point() -> None:
    sweep = axis("d=range:1000000000")
    made, faults = typed(sweep, schema(d=float))
    assert not faults
    assert size(made) == 10**9
    assert [type(value) for value in islice(values(SweepSample(of=made, count=2)), 2)] == [float, float]
    assert size(Exclude(of=made, conditions=({"d": 5},))) == 10**9 - 1


def test_a_late_point_that_does_not_fit_stops_the_walk() -> None:
    made, faults = typed(axis("d=range:1000000000"), Schema(leaves={"d": _below(5000)}))
    assert not faults
    with pytest.raises(InvalidConfig, match="d: 5000: is not below the limit"):
        for _ in islice(points(made), 6000):
            pass


def test_conditions_take_the_type_of_their_leaf() -> None:
    sweep = Exclude(of=axis("v=1.0,2.0"), conditions=({"v": "1.0"}, {"v": 3}))
    made, _ = typed(sweep, schema(v=str))
    assert values(made) == ["2.0"]


def _below(limit: int) -> DeclaredLeaf:
    def check(value: Any) -> Any:
        if int(value) >= limit:
            message = "is not below the limit"
            raise ValueError(message)
        return int(value)

    return DeclaredLeaf(path="d", read=check, check=check, says="int")
