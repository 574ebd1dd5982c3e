"""Arguments: normal forms are stable, texts mean what they say, and anything else is a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.authoring import InputPath, arg
from stoker.core.digests import encode
from stoker.core.jsontext import dumps, loads
from stoker.engine.arg_types import arg_type_of
from stoker.engine.args import ArgsSchema
from tests.lengths import examples

TYPES = [
    bool, int, float, str, InputPath, Literal["a", 1], int | None, list[int], tuple[float, ...], dict[str, int | None],
    list[list[str]],
]  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["a", 1, b"x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)
SHAPES = st.fixed_dictionaries({}, optional={"width": st.integers(-1, 9) | st.text(max_size=2), "file": st.text()})
bounded = settings(max_examples=examples(60, 150), deadline=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    width: int = arg(4, ge=1)
    file: InputPath | None = arg(None)
    threads: int = arg(1, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    flag: bool = arg(default=True)
    count: int = arg(1, ge=0)
    rate: float = arg(0.5)
    names: tuple[str, ...] = arg(())
    table: dict[str, float] = arg({}, le=10)
    data: InputPath | None = arg(None)
    shape: Shape = arg(Shape(width=8))


SCHEMA = ArgsSchema(Args)


@bounded
@given(st.sampled_from(TYPES), ANYTHING)
def test_a_normal_form_is_its_own_normal_form_and_survives_json(annotation: Any, value: Any) -> None:
    of = arg_type_of(annotation)
    try:
        normal = of.check(value)
    except ValueError:
        return
    assert encode(of.check(normal)) == encode(normal)
    assert encode(of.check(loads(dumps(normal)))) == encode(normal)


@bounded
@given(st.dictionaries(st.sampled_from([*SCHEMA.specs, "other"]), ANYTHING | SHAPES, max_size=6))
def test_any_values_are_checked_as_a_whole(given_values: dict[str, Any]) -> None:
    values, faults = SCHEMA.check(given_values, owner="o")
    at_fault = {fault.where.split(".")[1] for fault in faults}
    assert at_fault | set(values) >= set(SCHEMA.specs)
    assert at_fault.isdisjoint(values)
    assert ("other" in given_values) == ("other" in at_fault)
    if not faults:
        encode(SCHEMA.identity(values, lambda path: f"digest of {path}"))
        made = SCHEMA.make(values)
        assert encode(SCHEMA.values_of(made)) == encode(values)
        assert encode(SCHEMA.check(loads(dumps(values)), owner="o")[0]) == encode(values)


@bounded
@given(st.integers())
def test_whole_numbers_are_read_as_written(value: int) -> None:
    assert arg_type_of(int).read(str(value)) == value
    assert arg_type_of(str).read(str(value)) == str(value)


@bounded
@given(st.floats())
def test_numbers_are_read_as_written(value: float) -> None:
    assert encode(arg_type_of(float).read(repr(value))) == encode(value)


@bounded
@given(st.lists(st.integers(), max_size=5), st.booleans())
def test_lists_are_read_with_and_without_brackets(values: list[int], brackets: bool) -> None:
    text = ",".join(map(str, values))
    assert arg_type_of(list[int]).read(f"[{text}]" if brackets else text) == values


@bounded
@given(st.sampled_from(TYPES), st.text(max_size=12))
def test_any_text_is_a_value_or_a_fault(annotation: Any, text: str) -> None:
    of = arg_type_of(annotation)
    try:
        value = of.read(text)
    except ValueError:
        return
    assert encode(of.check(value)) == encode(value)
