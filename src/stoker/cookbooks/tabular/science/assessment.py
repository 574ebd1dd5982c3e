"""One model's behaviour on the held-out test rows, beyond single scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import roc_curve

from stoker.cookbooks.tabular.records import ClassScores, Series
from stoker.cookbooks.tabular.science.examples import Examples
from stoker.cookbooks.tabular.science.metrics import Floats, Predictions, confusion
from stoker.cookbooks.tabular.science.training import significant

_CALIBRATION_BINS = 10
_LEAST_ROWS_IN_BIN = 5
_ROC_POINTS = 201
_SCATTER_POINTS = 400


def baseline(examples: Examples) -> Any:
    """Fit the model that any other has to beat: it never looks at a feature."""
    model = (
        DummyClassifier(strategy="prior") if examples.problem == "classification" else DummyRegressor(strategy="mean")
    )
    return model.fit(examples.features, examples.target)


def per_class(predictions: Predictions, classes: Sequence[Any]) -> list[ClassScores]:
    """Precision, recall and F1 of each class; 0 where a class was never answered."""
    table = confusion(predictions)
    scores = []
    for code, name in enumerate(classes):
        hits, true, answered = table[code, code], table[code].sum(), table[:, code].sum()
        scores.append(
            ClassScores(
                name=str(name),
                precision=significant(hits / answered) if answered else 0.0,
                recall=significant(hits / true) if true else 0.0,
                f1=significant(2 * hits / (true + answered)) if true + answered else 0.0,
                rows=int(true),
            )
        )
    return scores


def roc(predictions: Predictions) -> Series:
    """The trade-off of false against true alarms: of the second class, or averaged over classes when there are more."""
    count = predictions.probabilities.shape[1]
    grid = np.linspace(0.0, 1.0, _ROC_POINTS)
    rises = []
    for code in [1] if count == 2 else np.unique(predictions.truth):
        false_rate, true_rate, _ = roc_curve(predictions.truth == code, predictions.probabilities[:, code])
        rises.append(np.interp(grid, false_rate, true_rate))
    mean = np.mean(rises, axis=0)
    mean[-1] = 1.0
    # Every curve begins at no alarms at all, which a grid of false rates can't show.
    return Series(name="roc", x=_plain(np.r_[0.0, grid]), y=_plain(np.r_[0.0, mean]))


def calibration(predictions: Predictions) -> Series:
    """In bins of the model's confidence in its answer: the mean confidence and the share that was right.

    Bins of a handful of rows say nothing and are left out.
    """
    confidence = predictions.probabilities.max(axis=1)
    right = predictions.answers == predictions.truth
    bins = np.minimum((confidence * _CALIBRATION_BINS).astype(int), _CALIBRATION_BINS - 1)
    filled = [number for number in range(_CALIBRATION_BINS) if (bins == number).sum() >= _LEAST_ROWS_IN_BIN]
    return Series(
        name="calibration",
        x=[significant(confidence[bins == number].mean()) for number in filled],
        y=[significant(right[bins == number].mean()) for number in filled],
    )


def scatter(predictions: Predictions, *, seed: int) -> Series:
    """True against predicted quantities, at most a few hundred of them."""
    rows = np.arange(len(predictions.truth))
    if len(rows) > _SCATTER_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _SCATTER_POINTS, replace=False))
    return Series(name="test rows", x=_plain(predictions.truth[rows]), y=_plain(predictions.answers[rows]))


def _plain(values: Floats) -> list[float]:
    return [significant(float(value)) for value in values]
