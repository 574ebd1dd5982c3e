"""Sweeps against plain lists: counting agrees with walking, order is that of nested loops, labels are unique."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config.sweep import (
    Axis,
    AxisValue,
    Concat,
    Exclude,
    ListedAxisValues,
    Sweep,
    SweepProduct,
    SweepSample,
    Zip,
    paths_of,
    points,
    size,
)
from stoker.config.sweep_ranges import spaced
from stoker.config.values import same
from tests.lengths import examples

bounded = settings(max_examples=examples(40, 100), deadline=None)

VALUES = st.sampled_from([0, 1, 2, 1.0, 0.5, True, None, "a", "1", "a b", [1], [], {"k": 1}])
Row = tuple[tuple[str, Any], ...]


@st.composite
def axes(draw: st.DrawFn, path: str, count: int | None = None) -> Axis:
    if draw(st.booleans()):
        length = count or draw(st.integers(1, 4))
        step = draw(st.sampled_from([1, 2, -1, -3]))
        return Axis(path=path, choices=spaced("range", ["1", str(1 + length * step), str(step)]))
    items = draw(st.lists(VALUES, min_size=count or 1, max_size=count or 4))
    return Axis(path=path, choices=ListedAxisValues(tuple(AxisValue(str(item), item) for item in items)))


@st.composite
def sweeps(draw: st.DrawFn, depth: int = 2, prefix: str = "p") -> Sweep:
    kind = draw(
        st.sampled_from(["axis", "zip", "product", "concat", "exclude", "sample"] if depth else ["axis", "zip"])
    )
    match kind:
        case "axis":
            return draw(axes(f"{prefix}a"))
        case "zip":
            count = draw(st.integers(1, 4))
            return Zip(tuple(draw(axes(f"{prefix}z{index}", count)) for index in range(draw(st.integers(1, 3)))))
        case "product":
            parts = draw(st.integers(0, 3))
            return SweepProduct(tuple(draw(sweeps(depth - 1, f"{prefix}{index}")) for index in range(parts)))
        case "concat":
            # The same paths may come up in several parts.
            return Concat(tuple(draw(sweeps(depth - 1, f"{prefix}{draw(st.integers(0, 1))}")) for _ in range(2)))
    of = draw(sweeps(depth - 1, prefix))
    if kind == "sample":
        return SweepSample(of=of, count=draw(st.integers(1, 6)), seed=draw(st.integers(0, 3)))
    known = st.sampled_from([*paths_of(of), "other"])
    conditions = draw(st.lists(st.dictionaries(known, VALUES, min_size=1, max_size=2), max_size=4))
    return Exclude(of=of, conditions=tuple(conditions))


def expected(sweep: Sweep) -> list[Row]:
    """The same as the sweep, in the plainest way; a sample is whatever it is."""
    match sweep:
        case Axis():
            return [((sweep.path, choice.value),) for choice in sweep.choices]
        case Zip():
            rows = zip(*(expected(axis) for axis in sweep.parts), strict=True)
            return [sum(row, ()) for row in rows]
        case SweepProduct():
            return [sum(row, ()) for row in product(*map(expected, sweep.parts))]
        case Concat():
            return [row for part in sweep.parts for row in expected(part)]
        case Exclude():
            return [row for row in expected(sweep.of) if not any(agrees(dict(row), one) for one in sweep.conditions)]
        case SweepSample():
            return walked(sweep)


def agrees(values: dict[str, Any], condition: Any) -> bool:
    return all(path in values and same(values[path], value) for path, value in condition.items())


def walked(sweep: Sweep) -> list[Row]:
    return [tuple((path, choice.value) for path, choice in point.choices) for point in points(sweep)]


@bounded
@given(sweeps())
def test_points_are_those_of_nested_loops_and_are_counted_without_them(sweep: Sweep) -> None:
    rows = expected(sweep)
    assert repr(walked(sweep)) == repr(rows)
    assert size(sweep) == len(rows)


@bounded
@given(sweeps(), st.integers(1, 8), st.integers(0, 2))
def test_a_sample_is_a_part_of_the_sweep_in_its_order(sweep: Sweep, count: int, seed: int) -> None:
    everything, found = (
        map(repr, walked(sweep)),
        [repr(row) for row in walked(SweepSample(of=sweep, count=count, seed=seed))],
    )
    assert len(found) == min(count, size(sweep))
    # Each is found in what is left after the one before it.
    assert all(row in everything for row in found)


@bounded
@given(sweeps())
def test_points_that_differ_have_labels_that_differ(sweep: Sweep) -> None:
    by_label: dict[str, str] = {}
    for point in points(sweep):
        values = repr([(path, choice.value) for path, choice in point.choices])
        assert by_label.setdefault(point.label, values) == values
