"""Sweeps: how many points, which ones, in which order, without making more than one at a time."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import islice
from typing import Any

import pytest

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
from stoker.core.errors import InvalidConfig
from tests.fakes.overrides import parse_override


def axis(word: str) -> Axis:
    found = parse_override(word).value
    assert isinstance(found, Axis)
    return found


def listed(path: str, *values: Any) -> Axis:
    return Axis(path=path, choices=ListedAxisValues(tuple(AxisValue(str(value), value) for value in values)))


def labels(sweep: Sweep) -> list[str]:
    return [point.label for point in points(sweep)]


LR, DEPTH = axis("lr=0.1,0.01"), axis("depth=3,5,7")


def test_the_first_axis_is_slowest() -> None:
    assert labels(SweepProduct((LR, DEPTH))) == [
        "lr=0.1,depth=3", "lr=0.1,depth=5", "lr=0.1,depth=7", "lr=0.01,depth=3", "lr=0.01,depth=5", "lr=0.01,depth=7",
    ]  # fmt: skip


def test_two_times_two_are_four_points() -> None:
    sweep = SweepProduct((axis("a=1,2"), axis("b=range(0,2)")))
    assert size(sweep) == len(labels(sweep)) == len(set(labels(sweep))) == 4


def test_zipped_axes_are_walked_together() -> None:
    sweep = SweepProduct((Zip((axis("a=1,2"), axis("b=x,y"))), axis("c=range:2")))
    assert labels(sweep) == ["a=1,b=x,c=0", "a=1,b=x,c=1", "a=2,b=y,c=0", "a=2,b=y,c=1"]
    assert size(sweep) == 4


def test_a_concatenation_gives_one_sweep_after_the_other() -> None:
    sweep = SweepProduct((Concat((axis("a=1,2"), SweepProduct((axis("b=1,2"), axis("d=7,8"))))), axis("c=0,1")))
    assert labels(sweep)[:5] == ["a=1,c=0", "a=1,c=1", "a=2,c=0", "a=2,c=1", "b=1,d=7,c=0"]
    assert size(sweep) == len(labels(sweep)) == 12
    assert paths_of(sweep) == ("a", "b", "d", "c")


def test_no_axis_is_one_empty_point() -> None:
    assert size(SweepProduct(())) == 1
    assert [point.choices for point in points(SweepProduct(()))] == [()]


def test_what_agrees_with_a_condition_is_left_out_and_the_order_stays() -> None:
    whole = SweepProduct((LR, DEPTH))
    sweep = Exclude(of=whole, conditions=({"lr": 0.1, "depth": 3}, {"depth": 7.0}))
    assert labels(sweep) == ["lr=0.1,depth=5", "lr=0.01,depth=3", "lr=0.01,depth=5"]
    assert size(sweep) == 3


def test_a_condition_tells_text_and_booleans_from_numbers() -> None:
    sweep = listed("x", 1, "1", True)
    assert labels(Exclude(of=sweep, conditions=({"x": 1},))) == [label for label in labels(sweep) if label != "x=1"]
    assert size(Exclude(of=sweep, conditions=({"x": True},))) == 2


def test_a_condition_on_a_path_that_a_point_does_not_have_leaves_it_in() -> None:
    sweep = Exclude(of=Concat((axis("a=1,2"), axis("b=1,2"))), conditions=({"a": 1}, {"b": 2}, {"a": 2, "b": 1}))
    assert labels(sweep) == ["a=2", "b=1"]
    assert size(sweep) == 2


def test_exclusions_within_exclusions_are_counted() -> None:
    inner = Exclude(of=SweepProduct((LR, DEPTH)), conditions=({"depth": 3},))
    zipped = Zip((axis("a=1,2,2"), axis("b=x,y,y")))
    sampled = SweepSample(of=axis("s=range:10"), count=4)
    sweep = Exclude(
        of=SweepProduct((Concat((inner, zipped)), sampled)),
        conditions=({"lr": 0.1}, {"depth": 5, "lr": 0.01}, {"a": 2, "b": "y"}, {"a": 1, "b": "y"}, {"s": 3}),
    )
    assert size(sweep) == len(labels(sweep)) > 0


def test_a_billion_points_are_counted_at_once() -> None:
    sweep = SweepProduct((axis("a=range:1000"), axis("b=lin:0:1:1000"), axis("c=log:1:1000:1000")))
    assert size(sweep) == 10**9
    assert size(Exclude(of=sweep, conditions=({"a": 3}, {"b": 0.0, "c": 1.0}, {"a": 4, "b": 1.0}))) == (
        10**9 - 10**6 - 999 - 1000
    )
    assert size(SweepProduct((*sweep.parts, axis(f"d=range:{10**17}")))) == 10**26


def test_a_single_axis_may_be_longer_than_a_list_can_be() -> None:
    sweep = axis(f"a=range:{10**18}")
    assert size(sweep) == 10**18
    assert [point.label for point in islice(points(sweep), 2)] == ["a=0", "a=1"]
    assert size(Exclude(of=sweep, conditions=({"a": 10**17},))) == 10**18 - 1


def test_walking_a_large_sweep_takes_no_memory() -> None:
    sweep = SweepProduct((axis("a=range:100000"), axis("b=range:100000"), axis("c=range:3")))
    tracemalloc.start()
    try:
        for _ in islice(points(sweep), 20_000):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_very_many_axes_need_no_deep_stack() -> None:
    sweep = SweepProduct(tuple(listed(f"a{number}", 1) for number in range(3 * sys.getrecursionlimit())))
    assert [len(point.choices) for point in points(sweep)] == [3 * sys.getrecursionlimit()]


def test_a_sample_is_a_part_in_the_same_order_and_the_seed_decides_which() -> None:
    whole = SweepProduct((axis("a=range:20"), axis("b=range:20")))
    everything = labels(whole)
    found = labels(SweepSample(of=whole, count=10, seed=3))
    assert len(set(found)) == 10
    assert found == [label for label in everything if label in found]
    assert found == labels(SweepSample(of=whole, count=10, seed=3))
    assert found != labels(SweepSample(of=whole, count=10, seed=4))
    assert size(SweepSample(of=whole, count=10)) == 10


def test_samples_are_the_same_in_every_version() -> None:
    assert labels(SweepSample(of=axis("a=range:1000"), count=5)) == ["a=31", "a=370", "a=503", "a=909", "a=914"]


def test_a_sample_larger_than_the_sweep_is_the_sweep() -> None:
    assert labels(SweepSample(of=DEPTH, count=10)) == labels(DEPTH)
    assert size(SweepSample(of=DEPTH, count=10)) == 3


def test_a_sample_of_a_billion_points_is_taken_without_walking_them() -> None:
    whole = SweepProduct((axis("a=range:1000"), axis("b=range:1000000"), Concat((axis("c=1,2"), axis("d=choice(1)")))))
    sweep = SweepSample(of=Exclude(of=whole, conditions=({"a": 1}, {"c": 2})), count=20, seed=1)
    found = [dict(point.choices) for point in points(sweep)]
    assert len(found) == 20
    assert all(choices["a"].value != 1 for choices in found)
    assert all("d" in choices or choices["c"].value == 1 for choices in found)


def test_a_sample_never_has_what_is_left_out() -> None:
    whole = Exclude(of=axis("a=range:10"), conditions=tuple({"a": value} for value in range(7)))
    assert labels(SweepSample(of=whole, count=3)) == ["a=7", "a=8", "a=9"]
    assert set(labels(SweepSample(of=whole, count=2))) < {"a=7", "a=8", "a=9"}


def test_exclusions_that_overlap_in_too_many_ways_are_walked_or_refused() -> None:
    few = SweepProduct(tuple(axis(f"a{number}=0,1") for number in range(13)))
    conditions = tuple({f"a{number}": 0} for number in range(13))
    assert size(Exclude(of=few, conditions=conditions)) == 1
    many = SweepProduct(tuple(axis(f"a{number}=0,1") for number in range(40)))
    with pytest.raises(InvalidConfig, match="40 exclusions overlap in too many ways"):
        size(Exclude(of=many, conditions=tuple({f"a{number}": 0} for number in range(40))))
