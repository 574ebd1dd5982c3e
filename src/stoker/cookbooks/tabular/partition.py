"""Which rows are for training, which for the held-out test, which for choosing settings on the way.

Every division is seeded, keeps the order of rows, and keeps the share of each class where there are classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.examples import TableExamples

Rows = npt.NDArray[np.int64]

_LEAST_ROWS = 8
_LEAST_HOLDOUT_ROWS = 8
_MOST_LISTED = 12


def divide(examples: TableExamples, *, test_percent: int, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of the training part and of the test part."""
    total = len(examples)
    if total < _LEAST_ROWS:
        raise StageInputError(
            f"{total} rows are too few to train and test on", hint=f"at least {_LEAST_ROWS} are needed"
        )
    test_rows = -(-total * test_percent // 100)
    if examples.problem == "classification":
        _refuse_small_classes(examples, test_rows, test_percent)
    return _shuffled_parts(examples, test_rows, seed)


def holdout(examples: TableExamples, *, percent: int, seed: int) -> tuple[Rows, Rows] | None:
    """Set rows aside for choosing a setting, or give nothing when there are too few for an honest choice."""
    aside = -(-len(examples) * percent // 100)
    if aside < _LEAST_HOLDOUT_ROWS:
        return None
    if examples.problem == "classification":
        counts = np.bincount(examples.codes, minlength=len(examples.classes))
        if counts.min() < 2 or aside < len(examples.classes):
            return None
    return _shuffled_parts(examples, aside, seed)


def fold_count(examples: TableExamples, wanted: int) -> int:
    """Return how many folds every class can fill: `wanted` or fewer, and 0 when not even two work."""
    most = len(examples)
    if examples.problem == "classification":
        most = int(np.bincount(examples.codes, minlength=len(examples.classes)).min())
    folds = min(wanted, most)
    return folds if folds >= 2 else 0


def folds_of(examples: TableExamples, *, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Return (rows to fit on, rows to score on) once per fold."""
    splitter: Any = StratifiedKFold if examples.problem == "classification" else KFold
    keys = examples.codes if examples.problem == "classification" else None
    yield from splitter(n_splits=folds, shuffle=True, random_state=seed).split(np.zeros(len(examples)), keys)


def nested_subset(examples: TableExamples, *, rows: int, seed: int) -> Rows:
    """Choose this many rows, each class with its share and at least one row."""
    order = np.random.default_rng(seed).permutation(len(examples))
    if examples.problem == "classification":
        codes = examples.codes[order]
        first_of_each = np.unique(codes, return_index=True)[1]
        rank_in_class = np.empty(len(order), dtype=np.float64)
        for code in np.unique(codes):
            mine = np.flatnonzero(codes == code)
            rank_in_class[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
        rank_in_class[first_of_each] = 0.0
        order = order[np.argsort(rank_in_class, kind="stable")]
    return np.sort(order[:rows])


def _shuffled_parts(examples: TableExamples, second_rows: int, seed: int) -> tuple[Rows, Rows]:
    keys = examples.codes if examples.problem == "classification" else None
    first, second = train_test_split(np.arange(len(examples)), test_size=second_rows, random_state=seed, stratify=keys)
    return np.sort(first), np.sort(second)


def _refuse_small_classes(examples: TableExamples, test_rows: int, test_percent: int) -> None:
    counts = np.bincount(examples.codes, minlength=len(examples.classes))
    if counts.min() < 2:
        smallest_first = np.argsort(counts, kind="stable")
        shown = ", ".join(f"{examples.classes[code]!s}: {counts[code]}" for code in smallest_first[:_MOST_LISTED])
        more = f" and {len(counts) - _MOST_LISTED} more" if len(counts) > _MOST_LISTED else ""
        raise StageInputError(
            f"each class needs at least 2 rows, one to train on and one to test on; rows per class: {shown}{more}",
            hint="add rows of the small classes, merge them, or remove them",
        )
    train_rows = len(examples) - test_rows
    if min(test_rows, train_rows) < len(counts):
        raise StageInputError(
            f"{len(counts)} classes need as many rows in each part, but test_percent={test_percent} of "
            f"{len(examples)} rows leaves {test_rows} to test and {train_rows} to train on",
            hint="change test_percent, or add rows",
        )
