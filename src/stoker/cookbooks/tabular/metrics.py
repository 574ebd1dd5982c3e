"""Scores of predictions, computed for many weightings of the same rows at once.

A bootstrap resample is nothing but a weight per row (how often it was drawn), so one implementation gives both the
plain score (all weights 1) and its whole bootstrap distribution in a few matrix products. The values equal
scikit-learn's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.examples import TableExamples
from stoker.cookbooks.tabular.schemas import Problem, RankBy

Floats = npt.NDArray[np.float64]

CLASSIFICATION: Final = ("accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "log_loss", "brier")
REGRESSION: Final = ("r2", "mae", "rmse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predictions for rows with known targets."""

    problem: Problem
    truth: npt.NDArray[Any]
    """Codes of classes, or numbers."""
    answers: npt.NDArray[Any]
    """Codes of the most probable classes, or numbers."""
    probabilities: Floats
    """Rows by classes; empty for regression."""


def metrics_of(problem: Problem) -> tuple[str, ...]:
    """Return the metrics for a problem."""
    return CLASSIFICATION if problem == "classification" else REGRESSION


def ranking_metric(problem: Problem, wanted: RankBy) -> str:
    """Return the metric that decides. Raises `BadInput` if it does not fit the problem."""
    if wanted == "auto":
        return "balanced_accuracy" if problem == "classification" else "r2"
    if wanted not in metrics_of(problem):
        raise StageInputError(
            f"rank_by={wanted} does not fit {problem}", hint=f"one of: auto, {', '.join(metrics_of(problem))}"
        )
    return wanted


def predict(pipeline: Any, examples: TableExamples) -> Predictions:
    """Predict every row with a fitted pipeline."""
    if examples.problem == "regression":
        answers = np.asarray(pipeline.predict(examples.features), dtype=np.float64)
        empty = np.empty((len(examples), 0))
        return Predictions(problem="regression", truth=examples.target, answers=answers, probabilities=empty)
    given = pipeline.predict_proba(examples.features)
    # A model fitted on few rows may lack a class.
    probabilities = np.zeros((len(examples), len(examples.classes)))
    probabilities[:, np.searchsorted(examples.classes, pipeline.classes_)] = given
    return Predictions(
        problem="classification",
        truth=examples.codes,
        answers=probabilities.argmax(axis=1),
        probabilities=probabilities,
    )


def plain_scores(predictions: Predictions) -> dict[str, float]:
    """Score the rows as they are."""
    weights = np.ones((1, len(predictions.truth)))
    return {name: float(values[0]) for name, values in weighted_scores(predictions, weights).items()}


def weighted_scores(predictions: Predictions, weights: Floats) -> dict[str, Floats]:
    """Return each metric once per row of `weights` (weightings by rows); NaN where a weighting leaves it undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if predictions.problem == "regression":
            return _regression_scores(predictions, weights)
        return _classification_scores(predictions, weights)


def confusion(predictions: Predictions) -> npt.NDArray[np.int64]:
    """Count rows by true class (rows) and predicted class (columns)."""
    count = predictions.probabilities.shape[1]
    pairs = predictions.truth * count + predictions.answers
    return np.bincount(pairs, minlength=count * count).reshape(count, count)


def _classification_scores(predictions: Predictions, weights: Floats) -> dict[str, Floats]:
    truth, probabilities = predictions.truth, predictions.probabilities
    rows, count = probabilities.shape
    total = weights.sum(axis=1)
    truth_one_hot = np.zeros((rows, count))
    truth_one_hot[np.arange(rows), truth] = 1.0
    answer_one_hot = np.zeros((rows, count))
    answer_one_hot[np.arange(rows), predictions.answers] = 1.0
    hits = weights @ (truth_one_hot * answer_one_hot)
    per_true = weights @ truth_one_hot
    per_answer = weights @ answer_one_hot
    surprise = -np.log(np.clip(probabilities[np.arange(rows), truth], 1e-15, 1.0))
    # Two classes: the usual score of one probability; more: the sum over classes.
    squared = ((probabilities - truth_one_hot) ** 2).sum(axis=1) / (2.0 if count == 2 else 1.0)
    return {
        "accuracy": hits.sum(axis=1) / total,
        "balanced_accuracy": _mean_of_known(hits / per_true),
        "macro_f1": _mean_of_known(2.0 * hits / (per_true + per_answer)),
        "roc_auc": _area_under_roc(truth, probabilities, weights),
        "log_loss": (weights @ surprise) / total,
        "brier": (weights @ squared) / total,
    }


def _area_under_roc(truth: npt.NDArray[np.int64], probabilities: Floats, weights: Floats) -> Floats:
    count = probabilities.shape[1]
    positives = [1] if count == 2 else range(count)
    areas = [_binary_area(truth == code, probabilities[:, code], weights) for code in positives]
    # One class against the rest, averaged over the classes that a weighting has.
    return _mean_of_known(np.stack(areas, axis=1))


def _binary_area(positive: npt.NDArray[np.bool_], scores: Floats, weights: Floats) -> Floats:
    """Return the chance that a positive row scores above a negative one, ties counting half."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    ordered = weights[:, order]
    above = np.add.reduceat(ordered * positive[order], starts, axis=1)
    below = np.add.reduceat(ordered * ~positive[order], starts, axis=1)
    beaten = np.cumsum(below, axis=1) - below / 2.0
    return np.asarray((above * beaten).sum(axis=1) / (above.sum(axis=1) * below.sum(axis=1)))


def _regression_scores(predictions: Predictions, weights: Floats) -> dict[str, Floats]:
    truth = predictions.truth
    error = predictions.answers - truth
    total = weights.sum(axis=1)
    squared = (weights @ error**2) / total
    mean = (weights @ truth) / total
    variance = (weights @ truth**2) / total - mean**2
    return {
        "r2": np.where(variance > 0, 1.0 - squared / variance, np.nan),
        "mae": (weights @ np.abs(error)) / total,
        "rmse": np.sqrt(squared),
    }


def _mean_of_known(values: Floats) -> Floats:
    known = np.isfinite(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))
