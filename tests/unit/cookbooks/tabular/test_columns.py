from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.schemas import TableOrigin
from tests.later import imported_later

with imported_later():
    import pandas as pd

    from stoker.cookbooks.tabular.tables import label_table


def label(frame: pd.DataFrame, target: str | None = "y", **more: Any):
    origin = TableOrigin(
        name=None, format="csv", sha256="0" * 64, rows=len(frame), columns=frame.shape[1], target=None, notes=[]
    )
    choice: dict[str, Any] = {"target": target, "problem": "auto", "drop": (), **more}
    return label_table(frame, origin, **choice)


def table(**columns: Any) -> pd.DataFrame:
    rows = 40
    base = {"x": np.arange(rows) * 0.5, "y": ["no", "yes"] * (rows // 2)}
    return pd.DataFrame({**base, **columns})


def test_text_classes_are_encoded_in_sorted_order_and_their_names_kept():
    frame, facts = label(table())
    assert facts["problem"] == "classification"
    assert facts["classes"] == ["no", "yes"]
    assert frame["y"].tolist()[:3] == [0, 1, 0]


def test_whole_number_and_truth_classes_keep_their_type():
    assert label(table(y=[3.0, 7.0] * 20))[1]["classes"] == [3, 7]
    assert label(table(y=[True, False] * 20))[1]["classes"] == [False, True]
    assert label(table(y=[2, 10] * 20))[1]["classes"] == [2, 10]


def test_many_different_numbers_are_a_quantity_and_it_is_said():
    frame, facts = label(table(y=np.linspace(0, 1, 40)))
    assert facts["problem"] == "regression"
    assert facts["classes"] == []
    assert frame["y"].dtype == np.float64
    assert "40 different values" in facts["notes"][0]


def test_the_user_decides_between_classes_and_quantities():
    assert label(table(y=[1, 2] * 20), problem="regression")[1]["problem"] == "regression"
    assert label(table(y=[0.5, 1.5] * 20), problem="classification")[1]["classes"] == ["0.5", "1.5"]


def test_rows_without_a_target_are_left_out_counted_and_said():
    frame, facts = label(table(y=["a", None, "b", "a"] * 10))
    assert facts["rows"] == len(frame) == 30
    assert facts["notes"][0] == "10 rows of 40 had no value in 'y' and were left out."


def test_columns_that_can_not_help_are_left_out_and_named():
    frame, facts = label(
        table(
            nothing=[None] * 40,
            same=["k"] * 40,
            key=[f"id-{number}" for number in range(40)],
            lists=[[number] for number in range(40)],
        )
    )
    assert list(frame.columns) == ["x", "y"]
    said = "\n".join(facts["notes"])
    assert "'nothing' is empty" in said
    assert "'same' has one value" in said
    assert "'key' is text that differs in every row" in said
    assert "'lists' holds list values" in said


def test_every_kind_of_column_becomes_a_number_or_text():
    frame, facts = label(
        table(
            flag=[True, False] * 20,
            maybe=[True, None] * 20,
            price=[Decimal("1.5"), Decimal("2.5")] * 20,
            day=[dt.date(1970, 1, 2), dt.date(1970, 1, 11)] * 20,
            moment=pd.to_datetime(["1970-01-02 00:00", "1970-01-03 12:00"] * 20),
            written=["1970-01-02", "1970-01-11"] * 20,
            took=pd.to_timedelta([12, 24] * 20, unit="h"),
            grade=pd.Categorical(["low", "high"] * 20),
            mixed=["a", 1.0] * 20,
        )
    )
    assert facts["categorical"] == ["grade", "mixed"]
    assert frame["flag"].tolist()[:2] == [1.0, 0.0]
    assert frame["maybe"].isna().sum() == 20
    assert frame["price"].tolist()[:2] == [1.5, 2.5]
    assert frame["day"].tolist()[:2] == frame["written"].tolist()[:2] == [1.0, 10.0]
    assert frame["moment"].tolist()[:2] == [1.0, 2.5]
    assert frame["took"].tolist()[:2] == [0.5, 1.0]
    assert frame["mixed"].tolist()[:2] == ["a", "1"]


def test_infinite_features_are_treated_as_missing_and_it_is_said():
    frame, facts = label(table(x=[1.0, np.inf, -np.inf, 2.0] * 10))
    assert frame["x"].isna().sum() == 20
    assert "20 infinite values" in facts["notes"][0]


def test_repeated_rows_are_counted_because_they_flatter_the_scores():
    _, facts = label(table(x=[1.0, 2.0] * 20))
    assert facts["notes"] == [
        "38 rows repeat an earlier row exactly: a copy may lie on both sides of the split, which flatters the scores."
    ]


def test_columns_are_left_out_on_request():
    frame, facts = label(table(z=[1, 2] * 20), drop=("z",))
    assert "z" not in frame.columns
    assert "Left out on request: z." in facts["notes"]


@pytest.mark.parametrize(
    ("columns", "choice", "message", "hint"),
    [
        ({"label": [1, 2] * 20}, {"target": None}, "target is missing", "target=label"),
        ({}, {"target": "Y2"}, "no column 'Y2'; the table has x, y", "target=y"),
        ({}, {"drop": ("xx",)}, "no column 'xx' to drop", "'x'"),
        ({}, {"drop": ("y",)}, "can't be dropped", ""),
        ({}, {"drop": ("x",)}, "no column is left to predict from", "Left out on request"),
        ({"y": ["a"] * 40}, {}, "has one class, a, in all 40 rows", "another target"),
        ({"y": [None] * 40}, {}, "has no value in any of the 40 rows", ""),
        ({"y": [str(n) for n in range(40)]}, {}, "has 40 different values in 40 rows", "problem=regression"),
        ({}, {"problem": "regression"}, "holds 'no' and the like, not numbers", "problem=classification"),
        ({"y": [1.5] * 40}, {"problem": "regression"}, "has the same value in every row", ""),
    ],
)
def test_a_table_that_can_not_be_learned_from_is_refused_with_what_to_do(columns, choice, message, hint):
    with pytest.raises(StageInputError) as caught:
        label(table(**columns), **choice)
    assert message in str(caught.value)
    assert hint in caught.value.hint
