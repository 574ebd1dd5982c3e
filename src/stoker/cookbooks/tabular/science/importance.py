"""Which columns a model looks at: how much worse it gets when one of them is shuffled.

What a pipeline does per question costs more than what it does per row, so it is asked about many shuffled tables at
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stoker.cookbooks.tabular.records import LESS_IS_BETTER
from stoker.cookbooks.tabular.science.examples import Examples
from stoker.cookbooks.tabular.science.metrics import Floats, Predictions, plain_scores, predict
from stoker.cookbooks.tabular.science.training import significant

_ROWS = 500
_REPEATS = 5
_SHOWN = 12
_CELLS_AT_ONCE = 1_000_000


def importance(
    pipeline: Any, examples: Examples, *, metric: str, seed: int, cells_at_once: int = _CELLS_AT_ONCE
) -> list[dict[str, Any]]:
    """How much worse the metric gets when one column is shuffled, for the columns that matter most."""
    generator = np.random.default_rng(seed)
    if len(examples) > _ROWS:
        examples = examples.take(np.sort(generator.choice(len(examples), _ROWS, replace=False)))
    orders = [generator.permutation(len(examples)) for _ in range(_REPEATS)]
    sign = -1.0 if metric in LESS_IS_BETTER else 1.0
    whole = plain_scores(predict(pipeline, examples))[metric]
    columns = list(examples.features.columns)
    at_once = max(1, cells_at_once // (len(orders) * examples.features.size))
    losses: list[Floats] = []
    for start in range(0, len(columns), at_once):
        scores = [
            plain_scores(part)[metric]
            for part in _without(columns[start : start + at_once], pipeline, examples, orders)
        ]
        losses += list(sign * (whole - np.array(scores)).reshape(-1, len(orders)))
    order = sorted(range(len(columns)), key=lambda place: (-losses[place].mean(), place))
    return [
        {
            "feature": str(columns[place]),
            "mean": significant(float(losses[place].mean())),
            "std": significant(float(losses[place].std())),
        }
        for place in order[:_SHOWN]
    ]


def _without(
    columns: Sequence[str], pipeline: Any, examples: Examples, orders: Sequence[npt.NDArray[np.int64]]
) -> Iterator[Predictions]:
    """Give what the model says when each of these columns is in each of these orders, one after another."""
    rows, repeats = len(examples), len(orders)
    in_place = np.tile(np.arange(rows), len(columns) * repeats)
    taken = {}
    for name in examples.features.columns:
        where = in_place
        if name in columns:
            begin = columns.index(name) * repeats * rows
            where = in_place.copy()
            where[begin : begin + repeats * rows] = np.concatenate(orders)
        taken[name] = examples.features[name].array.take(where)
    asked = replace(examples, features=pd.DataFrame(taken), target=examples.target[in_place])
    said = predict(pipeline, asked)
    for begin in range(0, len(asked), rows):
        part = slice(begin, begin + rows)
        yield replace(said, truth=said.truth[part], answers=said.answers[part], probabilities=said.probabilities[part])
