from __future__ import annotations

import numpy as np
import pytest

from stoker.authoring import StageInputError
from tests.later import imported_later

with imported_later():
    import pandas as pd

    from stoker.cookbooks.sequence.columns import generate
    from tests.unit.cookbooks.sequence.walked_series import settled


DAYS = ["2024-03-02", "2024-03-01", "2024-03-03"]


def test_rows_are_put_in_the_order_of_the_time_that_is_named():
    series = settled(pd.DataFrame({"t": [3, 1, 2], "x": [0.3, 0.1, 0.2]}), time="t")
    assert series.signals[:, 0].tolist() == [0.1, 0.2, 0.3]
    assert series.facts["channels"] == ["x"]
    assert "Rows were put in the order of 't'." in series.facts["notes"]


def test_a_column_of_dates_orders_the_rows_unasked_and_says_so():
    series = settled(pd.DataFrame({"day": DAYS, "x": [0.2, 0.1, 0.3]}))
    assert series.signals[:, 0].tolist() == [0.1, 0.2, 0.3]
    assert series.facts["notes"][0] == "Column 'day' holds dates and orders the rows."


def test_without_a_time_the_order_of_the_file_counts_and_that_is_said():
    series = settled(pd.DataFrame({"x": [0.3, 0.1, 0.2]}))
    assert series.signals[:, 0].tolist() == [0.3, 0.1, 0.2]
    assert series.facts["notes"] == ["No time column: rows are in the order of the file."]


@pytest.mark.parametrize(
    ("columns", "choice", "message"),
    [
        ({"x": [0.5, 1, 2], "y": [2.5, 1, 0]}, {}, "target is missing"),
        ({"x": [0.5, 1, 2]}, {"target": "z"}, "no column 'z'"),
        ({"x": [0.5, 1, 2]}, {"drop": ("z",)}, "no column 'z'"),
        ({"x": [0.5, 1, 2]}, {"time": "when"}, "no column 'when'"),
        ({"t": [1, None, 3], "x": [0.5, 1, 2]}, {"time": "t"}, "1 of 3 rows have no value in it"),
        ({"t": ["soon", "now", "x"], "x": [0.5, 1, 2]}, {"time": "t"}, "holds 'soon' and the like, not times"),
        ({"t": [1, 2, 3], "x": [0.5, 1, 2]}, {"time": "t", "drop": ("t",)}, "no column 't'"),
        ({"x": ["a", "b", "a"]}, {"problem": "regression"}, "holds 'a' and the like, not numbers"),
        ({"x": [None] * 3}, {"problem": "regression"}, "holds None and the like, not numbers"),
        ({"x": [2.5, 2.5, 2.5]}, {"problem": "regression"}, "has the same value in every row"),
        ({"s": ["a", "a", "a"], "x": [0.5, 1, 2]}, {"target": "s"}, "has 1 classes: nothing to tell apart"),
        ({"s": ["a", "b", "c"], "x": [0.5, 1, 2]}, {"target": "s"}, "these are not classes"),
        ({"s": ["a", "b"] * 4, "u": ["q"] * 8}, {"target": "s"}, "no numeric column is left"),
    ],
)
def test_what_can_not_be_a_series_is_refused_in_a_sentence(columns, choice, message):
    with pytest.raises(StageInputError, match=message):
        settled(pd.DataFrame(columns), **choice)


def test_what_is_left_out_is_named():
    frame = pd.DataFrame({"x": [0.5, np.inf, 2], "word": ["u", "v", "w"], "still": [1, 1, 1]})
    series = settled(frame, target="x")
    assert series.facts["channels"] == ["x"]
    assert np.isnan(series.signals[1, 0])
    said = " ".join(series.facts["notes"])
    assert "'word' holds no numbers" in said
    assert "'still' never changes" in said
    assert "1 infinite values" in said


def test_whole_numbers_of_few_values_are_classes_and_may_be_called_quantities():
    frame = pd.DataFrame({"x": np.linspace(0, 1, 40), "level": [0, 1] * 20})
    assert settled(frame, target="level").facts["classes"] == [0, 1]
    assert settled(frame, target="level", problem="regression").facts["classes"] == []


@pytest.mark.parametrize("name", ["waves", "regimes"])
def test_a_generated_series_is_the_same_every_time(name):
    (first, target), (second, _) = generate(name), generate(name)
    assert first.equals(second)
    assert len(first) == 1200
    assert target in first
