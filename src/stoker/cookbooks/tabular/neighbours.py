"""k nearest neighbours on standardised columns.

`train` chooses the number of neighbours by cross-validation on the training part unless it is given; `fit` makes no
choice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors
from sklearn.pipeline import Pipeline

from stoker.cookbooks.tabular.examples import TableExamples
from stoker.cookbooks.tabular.partition import fold_count, folds_of
from stoker.cookbooks.tabular.preparation import scaled
from stoker.cookbooks.tabular.schemas import CurveSeries, TabularCurve
from stoker.cookbooks.tabular.training import TrainedPipeline, Watch, loss_name, significant, unwatched

_CANDIDATES = (1, 3, 5, 7, 9, 11, 15, 21, 31, 45)
_USUAL = 5
_CHOICE_FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Settings of k nearest neighbours."""

    neighbours: int | None
    """None until it is chosen."""
    weights: Literal["uniform", "distance"]
    seed: int


def train(examples: TableExamples, settings: Neighbours, watch: Watch = unwatched) -> TrainedPipeline:
    """Choose the number of neighbours if it is open, then fit on every row."""
    notes: list[str] = []
    curves: list[TabularCurve] = []
    if settings.neighbours is None:
        curve = _losses(examples, settings, watch)
        if curve is None:
            notes.append("Too few rows to choose the number of neighbours on.")
        else:
            curves.append(curve)
        settings = replace(settings, neighbours=int(curve["chosen"] or _USUAL) if curve else _USUAL)
    chosen = settings.neighbours or _USUAL
    if chosen > len(examples):
        notes.append(
            f"There are only {len(examples)} training rows, so as many neighbours are asked instead of {chosen}."
        )
        settings = replace(settings, neighbours=len(examples))
    return TrainedPipeline(pipeline=fit(examples, settings), params=asdict(settings), curves=curves, notes=notes)


def fit(examples: TableExamples, settings: Neighbours) -> Any:
    """Remember the rows. Fewer rows than neighbours: all rows are asked."""
    preparation = scaled(examples)
    matrix = preparation.fit_transform(examples.features)
    family: Any = KNeighborsClassifier if examples.problem == "classification" else KNeighborsRegressor
    model = family(n_neighbors=min(settings.neighbours or _USUAL, len(examples)), weights=settings.weights)
    return Pipeline([("prepare", preparation), ("model", model.fit(matrix, examples.target))])


def _losses(examples: TableExamples, settings: Neighbours, watch: Watch) -> TabularCurve | None:
    folds = fold_count(examples, _CHOICE_FOLDS)
    smallest = len(examples) - -(-len(examples) // folds) if folds else 0
    candidates = [count for count in _CANDIDATES if count <= smallest]
    if not candidates:
        return None
    losses: list[list[float]] = []
    for done, (fit_rows, score_rows) in enumerate(folds_of(examples, folds=folds, seed=settings.seed), start=1):
        losses.append(_losses_in_fold(examples.take(fit_rows), examples.take(score_rows), candidates, settings))
        watch(done, folds, {})
    mean = np.mean(losses, axis=0)
    return TabularCurve(
        x_label="neighbours",
        y_label="error rate" if examples.problem == "classification" else loss_name(examples.problem),
        series=[
            CurveSeries(
                name="cross-validation", x=[float(k) for k in candidates], y=[significant(value) for value in mean]
            )
        ],
        # Of equally good counts the largest, which is the smoothest.
        chosen=float(candidates[int(len(mean) - 1 - np.argmin(mean[::-1]))]),
    )


def _losses_in_fold(
    fitted: TableExamples, scored: TableExamples, candidates: list[int], settings: Neighbours
) -> list[float]:
    """Search the nearest rows once and let every candidate count of them vote."""
    preparation = scaled(fitted)
    index = NearestNeighbors(n_neighbors=candidates[-1]).fit(preparation.fit_transform(fitted.features))
    distances, nearest = index.kneighbors(preparation.transform(scored.features))
    losses = []
    for count in candidates:
        weights = _weights(distances[:, :count], settings.weights)
        if fitted.problem == "regression":
            predicted = (fitted.target[nearest[:, :count]] * weights).sum(axis=1) / weights.sum(axis=1)
            losses.append(float(np.sqrt(np.mean((predicted - scored.target) ** 2))))
            continue
        votes = np.zeros((len(scored), len(fitted.classes)))
        for place in range(count):
            np.add.at(votes, (np.arange(len(scored)), fitted.codes[nearest[:, place]]), weights[:, place])
        losses.append(float((votes.argmax(axis=1) != scored.codes).mean()))
    return losses


def _weights(distances: npt.NDArray[np.float64], kind: str) -> npt.NDArray[np.float64]:
    if kind == "uniform":
        return np.ones_like(distances)
    exact = distances == 0
    with np.errstate(divide="ignore"):
        inverse = 1.0 / distances
    inverse[exact.any(axis=1)] = 0.0
    inverse[exact] = 1.0
    return inverse
