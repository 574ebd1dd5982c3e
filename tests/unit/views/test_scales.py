from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.views.charts import Scale, can_be_drawn, is_geometric, scale_of, scale_over, scale_through, tick_text


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([1e-3, 1e-4], True),
        ([1e-3, 3e-4, 1e-4], True),
        ([1, 2, 4, 8, 16, 32], True),
        (list(range(1, 11)), False),
        ([1, 2, 3], False),
        ([0.0, 1e-3, 1e-1], False),
        ([-1, 10, 100], False),
        ([0.5], False),
        ([], False),
        (list(range(1, 200)), False),
    ],
)
def test_values_that_somebody_spread_over_decades_are_drawn_on_a_log_scale(values: list[float], answer: bool) -> None:
    assert is_geometric(values) is answer


def test_few_chosen_values_are_marked_themselves() -> None:
    assert scale_through([3, 5, 7]).ticks(5) == [(3, "3"), (5, "5"), (7, "7")]
    assert [text for _, text in scale_through([1e-4, 1e-3, 1e-2]).ticks(5)] == ["1e-4", "0.001", "0.01"]
    assert scale_through([1, 1.01, 9]).marked == ()


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0, 0.3, ["0", "0.1", "0.2", "0.3"]),
        (-3, 12, ["0", "5", "10"]),
        (0, 2e6, ["0", "5e5", "1e6", "1.5e6", "2e6"]),
    ],
)
def test_an_even_scale_is_marked_at_round_numbers(low: float, high: float, texts: list[str]) -> None:
    assert [text for _, text in Scale(low=low, high=high).ticks(5)] == texts


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (1e-4, 1e-1, ["1e-4", "0.001", "0.01", "0.1"]),
        (1, 10, ["1", "2", "5", "10"]),
        (2, 3, ["2", "2.5", "3"]),
    ],
)
def test_a_log_scale_is_marked_at_its_decades(low: float, high: float, texts: list[str]) -> None:
    assert [text for _, text in Scale(low=low, high=high, is_log=True).ticks(5)][: len(texts)] == texts


def test_categories_have_places_of_their_own() -> None:
    scale = scale_of(["adam", "sgd"])
    assert scale.ticks(5) == [(0.0, "adam"), (1.0, "sgd")]
    assert (scale.place(0), scale.place(1)) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.1, "0.1"), (12345.678, "12345.7"), (1e-5, "1e-5"), (2.5e8, "2.5e8")]
)
def test_a_mark_is_written_shortly(value: float, text: str) -> None:
    assert tick_text(value) == text


DRAWN = st.floats(min_value=-1e100, max_value=1e100)
POSITIVE = st.floats(min_value=1e-100, max_value=1e100)


@given(st.lists(DRAWN, min_size=1, max_size=20))
def test_every_value_has_its_place_on_its_scale_whatever_it_is(values: list[float]) -> None:
    scale = scale_over(values)
    assert all(-0.01 <= scale.place(value) <= 1.01 for value in values)
    ticks = scale.ticks(5)
    assert len(ticks) <= 12
    assert all(before <= after for (before, _), (after, _) in pairwise(ticks))


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_every_positive_value_has_its_place_on_a_log_scale(values: list[float]) -> None:
    scale = scale_over(values, is_log=True)
    assert all(-0.01 <= scale.place(value) <= 1.01 for value in values)
    assert len(scale.ticks(5)) <= 12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e101, -1e300])
def test_what_is_as_good_as_infinite_has_no_place(value: float) -> None:
    assert not can_be_drawn(value)
    assert not Scale(low=0, high=1).holds(value)
    assert not Scale(low=1, high=10, is_log=True).holds(0.0)
