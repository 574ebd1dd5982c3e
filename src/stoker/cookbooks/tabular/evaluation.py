"""The whole evaluation: every model and a baseline on the same held-out rows.

Which model is best is decided on the training rows (cross-validation), so that the test score of the winner is not
the largest of several lucky draws; only when cross-validation was impossible does the test decide, and the book says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import roc_curve

from stoker.cookbooks.tabular.examples import FittedPipeline, TableExamples, TrainTestExamples, library_versions
from stoker.cookbooks.tabular.metrics import (
    Floats,
    Predictions,
    confusion,
    metrics_of,
    plain_scores,
    predict,
    weighted_scores,
)
from stoker.cookbooks.tabular.schemas import (
    LESS_IS_BETTER,
    ClassScores,
    CurveSeries,
    Interval,
    ModelScores,
    TabularEvaluation,
    ValidatedModel,
)
from stoker.cookbooks.tabular.training import significant

# One model's behaviour on the test rows, beyond single scores.

_CALIBRATION_BINS = 10
_LEAST_ROWS_IN_BIN = 5
_ROC_POINTS = 201
_SCATTER_POINTS = 400


def baseline(examples: TableExamples) -> Any:
    """Fit the baseline, which ignores all features."""
    model = (
        DummyClassifier(strategy="prior") if examples.problem == "classification" else DummyRegressor(strategy="mean")
    )
    return model.fit(examples.features, examples.target)


def per_class(predictions: Predictions, classes: Sequence[Any]) -> list[ClassScores]:
    """Return precision, recall and F1 of each class; 0 for a class that was never predicted."""
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


def roc(predictions: Predictions) -> CurveSeries:
    """Return the ROC curve: of the second class, or averaged over classes if there are more."""
    count = predictions.probabilities.shape[1]
    grid = np.linspace(0.0, 1.0, _ROC_POINTS)
    rises = []
    for code in [1] if count == 2 else np.unique(predictions.truth):
        false_rate, true_rate, _ = roc_curve(predictions.truth == code, predictions.probabilities[:, code])
        rises.append(np.interp(grid, false_rate, true_rate))
    mean = np.mean(rises, axis=0)
    mean[-1] = 1.0
    # Every curve starts at zero, which a grid of false positive rates can't show.
    return CurveSeries(name="roc", x=_plain(np.r_[0.0, grid]), y=_plain(np.r_[0.0, mean]))


def calibration(predictions: Predictions) -> CurveSeries:
    """Return mean confidence and accuracy in bins of the model's confidence.

    Bins with very few rows are left out.
    """
    confidence = predictions.probabilities.max(axis=1)
    right = predictions.answers == predictions.truth
    bins = np.minimum((confidence * _CALIBRATION_BINS).astype(int), _CALIBRATION_BINS - 1)
    filled = [number for number in range(_CALIBRATION_BINS) if (bins == number).sum() >= _LEAST_ROWS_IN_BIN]
    return CurveSeries(
        name="calibration",
        x=[significant(confidence[bins == number].mean()) for number in filled],
        y=[significant(right[bins == number].mean()) for number in filled],
    )


def scatter(predictions: Predictions, *, seed: int) -> CurveSeries:
    """Return true and predicted values, at most a few hundred."""
    rows = np.arange(len(predictions.truth))
    if len(rows) > _SCATTER_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _SCATTER_POINTS, replace=False))
    return CurveSeries(name="test rows", x=_plain(predictions.truth[rows]), y=_plain(predictions.answers[rows]))


def _plain(values: Floats) -> list[float]:
    return [significant(float(value)) for value in values]


# Uncertainty of test scores, by bootstrap.

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
    """Return a score with the middle 95 % of its resamples; undefined ones are left out."""
    known = resampled[np.isfinite(resampled)]
    low, high = np.percentile(known, [2.5, 97.5]) if len(known) else (np.nan, np.nan)
    return Interval(value=significant(value), low=significant(low), high=significant(high))


# Permutation importance of columns.
#
# A call of a pipeline costs more than its rows, so many shuffled tables are predicted at once.

_ROWS = 500
_REPEATS = 5
_SHOWN = 12
_IMPORTANCE_CELLS_AT_ONCE = 1_000_000


def importance(
    pipeline: Any, examples: TableExamples, *, metric: str, seed: int, cells_at_once: int = _IMPORTANCE_CELLS_AT_ONCE
) -> list[dict[str, Any]]:
    """Return how much worse the metric gets when one column is shuffled, for the most important columns."""
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
    columns: Sequence[str], pipeline: Any, examples: TableExamples, orders: Sequence[npt.NDArray[np.int64]]
) -> Iterator[Predictions]:
    """Return the predictions with each of these columns in each of these orders."""
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


BASELINE = "baseline"


def evaluate_models(  # noqa: PLR0913 - each one is a decision of the caller's
    parts: TrainTestExamples,
    models: Sequence[FittedPipeline],
    validations: Sequence[ValidatedModel],
    *,
    metric: str,
    bootstraps: int,
    seed: int,
    watch: Callable[[int, int], None],
) -> TabularEvaluation:
    """Score every model on the test part and rank them."""
    steps = len(models) + 2
    by_name = {validation["name"]: validation for validation in validations}
    resampled: dict[str, Floats] = {}
    scored: list[ModelScores] = []
    for done, model in enumerate(models, start=1):
        predictions = predict(model.pipeline, parts.test)
        entry = _entry(model.facts["family"], predictions, parts, seed)
        entry["params"], entry["curves"] = model.facts["params"], model.facts["curves"]
        validation = by_name.get(entry["name"])
        if validation is not None:
            entry["cross_validation"], entry["learning"] = validation["cross_validation"], validation["learning"]
        entry["notes"] = [*model.facts["notes"], *(validation["notes"] if validation is not None else [])]
        resampled[entry["name"]] = _add_intervals(entry, predictions, metric, bootstraps, seed)
        scored.append(entry)
        watch(done, steps)
    best, ranked_on = _choose_best(scored, metric)
    simple = predict(baseline(parts.train), parts.test)
    entry = _entry(BASELINE, simple, parts, seed)
    resampled[BASELINE] = _add_intervals(entry, simple, metric, bootstraps, seed)
    scored.append(entry)
    watch(steps - 1, steps)
    for entry in scored:
        entry["behind_best"] = _behind(entry, best, metric, resampled) if entry is not best else None
    winner = next(model for model in models if model.facts["family"] == best["name"])
    looked_at = importance(winner.pipeline, parts.test, metric=metric, seed=seed)
    watch(steps, steps)
    return TabularEvaluation(
        facts=parts.facts,
        split=parts.split,
        metrics=list(metrics_of(parts.facts["problem"])),
        rank_by=metric,
        ranked_on=ranked_on,
        best=best["name"],
        bootstraps=bootstraps,
        models=scored,
        importance=looked_at,
        versions=library_versions(),
    )


def headline_scores(book: TabularEvaluation) -> dict[str, float]:
    """Return the numbers for comparing runs: the best model's test and cross-validated scores."""
    best = next(model for model in book["models"] if model["name"] == book["best"])
    scores = {name: best["test"][name]["value"] for name in book["metrics"]}
    validation = best["cross_validation"]
    if validation is not None:
        scores[f"cv_{book['rank_by']}"] = validation["mean"][book["rank_by"]]
    return scores


def _entry(name: str, predictions: Predictions, parts: TrainTestExamples, seed: int) -> ModelScores:
    classes = parts.facts["classes"]
    return ModelScores(
        name=name,
        params={},
        notes=[],
        test={},
        cross_validation=None,
        behind_best=None,
        per_class=per_class(predictions, classes) if classes else [],
        confusion=confusion(predictions).tolist() if classes else [],
        roc=roc(predictions) if classes else None,
        calibration=calibration(predictions) if classes else None,
        scatter=None if classes else scatter(predictions, seed=seed),
        curves=[],
        learning=None,
    )


def _add_intervals(entry: ModelScores, predictions: Predictions, metric: str, bootstraps: int, seed: int) -> Floats:
    resampled = bootstrap(predictions, repeats=bootstraps, seed=seed)
    plain = plain_scores(predictions)
    entry["test"] = {name: interval(value, resampled[name]) for name, value in plain.items()}
    return resampled[metric]


def _choose_best(scored: Sequence[ModelScores], metric: str) -> tuple[ModelScores, Literal["cross-validation", "test"]]:
    sign = -1.0 if metric in LESS_IS_BETTER else 1.0
    if all(entry["cross_validation"] is not None for entry in scored):
        by_folds = [
            entry["cross_validation"]["mean"][metric] if entry["cross_validation"] is not None else 0.0
            for entry in scored
        ]
        return scored[max(range(len(scored)), key=lambda place: sign * by_folds[place])], "cross-validation"
    return max(scored, key=lambda entry: sign * entry["test"][metric]["value"]), "test"


def _behind(entry: ModelScores, best: ModelScores, metric: str, resampled: dict[str, Floats]) -> Interval:
    sign = -1.0 if metric in LESS_IS_BETTER else 1.0
    gap = sign * (best["test"][metric]["value"] - entry["test"][metric]["value"])
    return interval(gap, sign * (resampled[best["name"]] - resampled[entry["name"]]))
