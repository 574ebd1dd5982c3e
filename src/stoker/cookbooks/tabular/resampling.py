"""What the training rows alone say about a model: cross-validation and learning curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np

from stoker.cookbooks.tabular import boosting, neighbours, network, self_training
from stoker.cookbooks.tabular.examples import TableExamples
from stoker.cookbooks.tabular.metrics import Floats, plain_scores, predict
from stoker.cookbooks.tabular.partition import fold_count, folds_of, nested_subset
from stoker.cookbooks.tabular.schemas import CrossValidation, LearningCurve, TabularModelFacts, ValidatedModel
from stoker.cookbooks.tabular.training import significant

# Train a model again, on other rows, from what was written down about it.


def refit(facts: TabularModelFacts, examples: TableExamples) -> Any:
    """Return a pipeline of the same family and settings, fitted on these examples."""
    params = facts["params"]
    match facts["family"]:
        case "gbt":
            return boosting.fit(examples, boosting.Boosting(**params))
        case "knn":
            return neighbours.fit(examples, neighbours.Neighbours(**params))
        case "knn_semi":
            return self_training.fit(examples, self_training.SelfTraining(**params))
        case "mlp":
            return network.fit(examples, network.PerceptronSettings(**{**params, "hidden": tuple(params["hidden"])}))
        case other:
            assert_never(other)


_CURVE_FOLDS = 3
_LEAST_CURVE_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplingSettings:
    """How often to train again."""

    folds: int
    curve_points: int
    seed: int

    @property
    def fits(self) -> int:
        return self.folds + min(self.folds, _CURVE_FOLDS) * max(0, self.curve_points - 1)


def validate(
    facts: TabularModelFacts,
    train: TableExamples,
    effort: ResamplingSettings,
    *,
    metric: str,
    after_fit: Callable[[int, int], None],
) -> ValidatedModel:
    """Cross-validate one model on the training rows and draw its learning curve.

    There are as many folds as asked for, or fewer where a class is too small, which a note then says.
    """
    notes: list[str] = []
    folds = fold_count(train, effort.folds)
    if folds < effort.folds:
        smallest = (
            "the smallest class has too few training rows" if train.problem == "classification" else "too few rows"
        )
        what = f"{folds} folds instead of {effort.folds}" if folds else "no cross-validation"
        notes.append(f"{what[0].upper()}{what[1:]}: {smallest}.")
    if not folds:
        return ValidatedModel(name=facts["family"], cross_validation=None, learning=None, notes=notes)
    summary, learning = _cross_validate(facts, train, replace(effort, folds=folds), metric, after_fit)
    return ValidatedModel(name=facts["family"], cross_validation=summary, learning=learning, notes=notes)


def _cross_validate(
    facts: TabularModelFacts,
    train: TableExamples,
    effort: ResamplingSettings,
    metric: str,
    after_fit: Callable[[int, int], None],
) -> tuple[CrossValidation, LearningCurve | None]:
    """Train on all folds but one and score on that one, in turn; on the first folds also with fewer rows."""
    scores: list[dict[str, float]] = []
    curves: list[list[float]] = []
    sizes: list[int] = []
    done = 0
    for number, (fit_rows, score_rows) in enumerate(folds_of(train, folds=effort.folds, seed=effort.seed)):
        fitted, scored = train.take(fit_rows), train.take(score_rows)
        # Folds differ by a row; the curve has the sizes of the first.
        sizes = sizes or _curve_sizes(len(fitted), effort.curve_points, len(train.classes))
        points: list[float] = []
        for size in sizes[:-1] if number < _CURVE_FOLDS else []:
            smaller = fitted.take(nested_subset(fitted, rows=size, seed=effort.seed))
            points.append(plain_scores(predict(refit(facts, smaller), scored))[metric])
            done += 1
            after_fit(done, effort.fits)
        scores.append(plain_scores(predict(refit(facts, fitted), scored)))
        done += 1
        after_fit(done, effort.fits)
        if points:
            curves.append([*points, scores[-1][metric]])
    summary = CrossValidation(
        folds=effort.folds,
        mean={name: _known(np.mean, [score[name] for score in scores]) for name in scores[0]},
        std={name: _known(np.std, [score[name] for score in scores]) for name in scores[0]},
    )
    return summary, _learning_curve(metric, sizes, curves) if curves else None


def _curve_sizes(rows: int, points: int, classes: int) -> list[int]:
    least = min(rows, max(_LEAST_CURVE_ROWS, 2 * classes))
    return sorted({max(least, rows * step // points) for step in range(1, points + 1)})


def _learning_curve(metric: str, sizes: list[int], curves: list[list[float]]) -> LearningCurve:
    return LearningCurve(
        metric=metric,
        rows=sizes,
        mean=[_known(np.mean, list(column)) for column in zip(*curves, strict=True)],
        std=[_known(np.std, list(column)) for column in zip(*curves, strict=True)],
    )


def _known(summary: Callable[[Floats], Any], values: list[float]) -> float:
    """Summarise the values that are defined."""
    known = np.asarray(values)[np.isfinite(values)]
    return significant(float(summary(known))) if len(known) else float("nan")
