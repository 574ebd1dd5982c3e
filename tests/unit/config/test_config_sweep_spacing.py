"""Computed axes: the same text everywhere, ends exact."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from stoker.config.sweep import Axis
from tests.fakes.overrides import parse_override


def axis(expression: str) -> Axis:
    found = parse_override(f"x={expression}").value
    assert isinstance(found, Axis)
    return found


def texts(expression: str) -> list[str]:
    return [choice.text for choice in axis(expression).choices]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("log:1e-4:1e-1:4", "0.0001 0.001 0.01 0.1"),
        ("log:1e-1:1e-4:4", "0.1 0.01 0.001 0.0001"),
        ("log:1:1024:11", "1.0 2.0 4.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0"),
        ("log:1e-300:1e300:5", "1e-300 1e-150 1.0 1e+150 1e+300"),
        ("log:1:10:3", "1.0 3.1622776601683795 10.0"),
        ("log:5:5:1", "5.0"),
        ("log:3:7:1", "3.0"),
        ("lin:0:1:5", "0.0 0.25 0.5 0.75 1.0"),
        ("lin:0:1:4", "0.0 0.3333333333333333 0.6666666666666666 1.0"),
        ("lin:0.1:0.3:3", "0.1 0.2 0.3"),
        ("lin:-1:1:3", "-1.0 0.0 1.0"),
        ("lin:1:1:2", "1.0 1.0"),
        ("lin:4:9:1", "4.0"),
        ("range:0:1:0.1", "0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9"),
        ("range:1:0:-0.3", "1.0 0.7 0.4 0.1"),
        ("range:0:1e1:5", "0.0 5.0"),
        ("range:-3:3:2", "-3 -1 1"),
        ("range:1_000:3_000:1_000", "1000 2000"),
        (f"range:{10**30}:{10**30 + 2}", f"{10**30} {10**30 + 1}"),
        ("range:1e300:3e300:1e300", "1e+300 2e+300"),
    ],
)
def test_points_are_exact_text(expression: str, expected: str) -> None:
    assert texts(expression) == expected.split()
    assert axis(expression).count == len(expected.split())


def test_whole_numbers_stay_whole_and_others_never_are() -> None:
    assert {type(choice.value) for choice in axis("range:1:5").choices} == {int}
    for expression in ("range:1:5:1.0", "range:1.0:5", "lin:0:4:5", "log:1:100:3"):
        assert {type(choice.value) for choice in axis(expression).choices} == {float}


def test_every_point_is_the_float_nearest_to_the_exact_number() -> None:
    for index, choice in enumerate(axis("lin:0.1:17.3:1000").choices):
        exact = Fraction("0.1") + (Fraction("17.3") - Fraction("0.1")) * index / 999
        assert choice.value == float(exact)
        assert choice.text == repr(float(exact))
    for index, choice in enumerate(axis("range:0.1:200:0.7").choices):
        assert choice.value == float(Decimal("0.1") + index * Decimal("0.7"))


@pytest.mark.parametrize(
    ("expression", "value", "indexes"),
    [
        ("range:0:1000000000", 77_777, [77_777]),
        ("range:0:1000000000", 77_777.0, [77_777]),
        ("range:0:1000000000", 77_777.5, []),
        ("range:10:0:-2", 4, [3]),
        ("range:10:0:-2", 5, []),
        ("range:10:0:-2", 12, []),
        ("lin:0:1:1000000001", 0.5, [500_000_000]),
        ("lin:1:1:3", 1, [0, 1, 2]),
        ("log:1e-4:1e-1:4", 0.01, [2]),
        ("log:1e-1:1e-4:4", 0.01, [1]),
        ("log:1e-4:1e-1:4", "0.01", []),
        ("range:0:2", True, []),
        ("range:0:2", None, []),
        ("range:0:2", float("nan"), []),
        ("range:0:2", float("inf"), []),
    ],
)
def test_a_value_is_found_without_a_walk(expression: str, value: Any, indexes: list[int]) -> None:
    assert list(axis(expression).choices.indexes_of(value)) == indexes
