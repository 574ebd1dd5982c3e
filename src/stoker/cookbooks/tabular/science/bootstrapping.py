"""How sure a score on the test rows is: the spread it has over resamples of them."""

from __future__ import annotations

import numpy as np

from stoker.cookbooks.tabular.records import Interval
from stoker.cookbooks.tabular.science.metrics import Floats, Predictions, weighted_scores
from stoker.cookbooks.tabular.science.training import significant

_CELLS_AT_ONCE = 4_000_000


def bootstrap(predictions: Predictions, *, repeats: int, seed: int) -> dict[str, Floats]:
    """Score `repeats` resamples of the rows.

    The same seed draws the same rows for every model, so that models can be compared resample by resample.
    """
    rows = len(predictions.truth)
    generator = np.random.default_rng(seed)
    at_once = max(1, _CELLS_AT_ONCE // rows)
    parts: list[dict[str, Floats]] = []
    for start in range(0, repeats, at_once):
        count = min(at_once, repeats - start)
        drawn = generator.integers(0, rows, size=(count, rows)) + rows * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * rows).reshape(count, rows).astype(np.float64)
        parts.append(weighted_scores(predictions, weights))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def interval(value: float, resampled: Floats) -> Interval:
    """Give a score with the middle 95 % of its resamples, leaving out those that left it undefined."""
    known = resampled[np.isfinite(resampled)]
    low, high = np.percentile(known, [2.5, 97.5]) if len(known) else (np.nan, np.nan)
    return Interval(value=significant(value), low=significant(low), high=significant(high))
