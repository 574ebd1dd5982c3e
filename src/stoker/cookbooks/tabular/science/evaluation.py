"""The whole evaluation: every model and a baseline on the same held-out rows.

Which model is best is decided on the training rows (cross-validation), so that the test score of the winner is not
the largest of several lucky draws; only when cross-validation was impossible does the test decide, and the book says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from stoker.cookbooks.tabular.records import LESS_IS_BETTER, Interval, ModelScores, ScoreBook, ValidatedModel
from stoker.cookbooks.tabular.science import assessment
from stoker.cookbooks.tabular.science.bootstrapping import bootstrap, interval
from stoker.cookbooks.tabular.science.examples import Parts
from stoker.cookbooks.tabular.science.fitted import FittedModel, library_versions
from stoker.cookbooks.tabular.science.importance import importance
from stoker.cookbooks.tabular.science.metrics import (
    Floats,
    Predictions,
    confusion,
    metrics_of,
    plain_scores,
    predict,
)

BASELINE = "baseline"


def evaluate_models(  # noqa: PLR0913 - each one is a decision of the caller's
    parts: Parts,
    models: Sequence[FittedModel],
    validations: Sequence[ValidatedModel],
    *,
    metric: str,
    bootstraps: int,
    seed: int,
    watch: Callable[[int, int], None],
) -> ScoreBook:
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
    simple = predict(assessment.baseline(parts.train), parts.test)
    entry = _entry(BASELINE, simple, parts, seed)
    resampled[BASELINE] = _add_intervals(entry, simple, metric, bootstraps, seed)
    scored.append(entry)
    watch(steps - 1, steps)
    for entry in scored:
        entry["behind_best"] = _behind(entry, best, metric, resampled) if entry is not best else None
    winner = next(model for model in models if model.facts["family"] == best["name"])
    looked_at = importance(winner.pipeline, parts.test, metric=metric, seed=seed)
    watch(steps, steps)
    return ScoreBook(
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


def headline_scores(book: ScoreBook) -> dict[str, float]:
    """Give the numbers by which one run is compared with another: the best model's, held out and cross-validated."""
    best = next(model for model in book["models"] if model["name"] == book["best"])
    scores = {name: best["test"][name]["value"] for name in book["metrics"]}
    validation = best["cross_validation"]
    if validation is not None:
        scores[f"cv_{book['rank_by']}"] = validation["mean"][book["rank_by"]]
    return scores


def _entry(name: str, predictions: Predictions, parts: Parts, seed: int) -> ModelScores:
    classes = parts.facts["classes"]
    return ModelScores(
        name=name,
        params={},
        notes=[],
        test={},
        cross_validation=None,
        behind_best=None,
        per_class=assessment.per_class(predictions, classes) if classes else [],
        confusion=confusion(predictions).tolist() if classes else [],
        roc=assessment.roc(predictions) if classes else None,
        calibration=assessment.calibration(predictions) if classes else None,
        scatter=None if classes else assessment.scatter(predictions, seed=seed),
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
