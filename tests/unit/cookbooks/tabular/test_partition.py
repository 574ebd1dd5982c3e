from __future__ import annotations

import numpy as np
import pytest

from stoker.authoring import StageInputError
from tests.later import imported_later

with imported_later():
    import pandas as pd

    from stoker.cookbooks.tabular.examples import TableExamples, divide, fold_count, folds_of, holdout, nested_subset


def examples(*counts: int) -> TableExamples:
    names = np.array([f"class{number}" for number in range(len(counts))])
    target = np.repeat(names, counts)
    features = pd.DataFrame({"x": np.arange(len(target), dtype=np.float64)})
    return TableExamples(
        features=features, target=target, classes=names, numeric=("x",), categorical=(), problem="classification"
    )


def quantities(rows: int) -> TableExamples:
    values = np.arange(rows, dtype=np.float64)
    return TableExamples(
        features=pd.DataFrame({"x": values}),
        target=values,
        classes=np.array([]),
        numeric=("x",),
        categorical=(),
        problem="regression",
    )


def test_every_class_has_its_share_in_both_parts_and_no_row_is_in_two():
    data = examples(80, 40)
    train, test = divide(data, test_percent=25, seed=3)
    assert np.bincount(data.codes[test]).tolist() == [20, 10]
    assert sorted([*train, *test]) == list(range(120))


def test_the_same_seed_gives_the_same_rows_and_another_one_others():
    data = quantities(50)
    first, second, other = (divide(data, test_percent=20, seed=seed)[1].tolist() for seed in (1, 1, 2))
    assert first == second != other


def test_a_class_with_one_row_is_refused_with_the_counts():
    with pytest.raises(StageInputError, match=r"at least 2 rows.*rows per class: class1: 1, class0: 30"):
        divide(examples(30, 1), test_percent=25, seed=0)


def test_a_part_too_small_for_all_classes_is_refused_with_the_counts():
    with pytest.raises(StageInputError, match=r"3 classes .* test_percent=5 of 30 rows leaves 2 to test and 28"):
        divide(examples(10, 10, 10), test_percent=5, seed=0)


def test_a_handful_of_rows_is_refused():
    with pytest.raises(StageInputError, match="4 rows are too few"):
        divide(quantities(4), test_percent=25, seed=0)


def test_rows_are_set_aside_only_where_there_are_enough():
    assert holdout(examples(10, 10), percent=15, seed=0) is None
    assert holdout(examples(200, 1), percent=15, seed=0) is None
    parts = holdout(examples(100, 100), percent=15, seed=0)
    assert parts is not None
    assert len(parts[1]) == 30


def test_folds_are_as_many_as_the_smallest_class_allows():
    assert fold_count(examples(50, 3), 5) == 3
    assert fold_count(examples(50, 1), 5) == 0
    assert fold_count(quantities(50), 5) == 5
    assert len(list(folds_of(examples(50, 3), folds=3, seed=0))) == 3


def test_a_small_subset_has_every_class_and_lies_inside_a_larger_one():
    data = examples(90, 9, 1)
    small, large = nested_subset(data, rows=10, seed=0), nested_subset(data, rows=40, seed=0)
    assert set(data.codes[small]) == {0, 1, 2}
    assert set(small) <= set(large)
