"""The stage that estimates a model's quality on the training rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, assert_never

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Split, TabularModel, Validation
from stoker.cookbooks.tabular.schemas import CrossValidation, LearningCurve, RankBy, TabularModelFacts, ValidatedModel

if TYPE_CHECKING:
    from stoker.cookbooks.tabular.examples import TableExamples
    from stoker.cookbooks.tabular.metrics import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidateArgs:
    """How often a model is trained again."""

    folds: int = arg(5, help="number of folds", ge=2, le=50)
    curve_points: int = arg(5, help="sizes in the learning curve; 0 for none", ge=0, le=20)
    rank_by: RankBy = arg("auto", help="metric of the learning curve")
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="maximum threads; null: every core; a small table uses one", ge=1, runtime=True)


@stage("tabular/cross_validate", version=1, uses=("scikit-learn", "numpy", "pandas"))
def cross_validate(job: StageContext, model: TabularModel, data: Split, args: CrossValidateArgs) -> Validation:
    """Train the same model on parts of the training rows and score it on the rest."""
    from stoker.cookbooks.tabular.metrics import ranking_metric
    from stoker.cookbooks.tabular.training import limited

    facts, train = model.facts(), data.load().train
    with limited(args.n_jobs, train):
        validated = validate(
            facts,
            train,
            args,
            metric=ranking_metric(facts["problem"], args.rank_by),
            after_fit=lambda done, of: job.step(done, of=of),
        )
    for note in validated["notes"]:
        job.log(note)
    return job.save(Validation, validated)


# Cross-validation and learning curves on the training rows.


def refit(facts: TabularModelFacts, examples: TableExamples) -> Any:
    """Return a pipeline of the same family and settings, fitted on these examples."""
    from stoker.cookbooks.tabular import train_gbt, train_knn, train_mlp
    from stoker.cookbooks.tabular.training import args_of

    params = facts["params"]
    match facts["family"]:
        case "gbt":
            return train_gbt.fit(examples, args_of(train_gbt.GbtArgs, params))
        case "knn":
            return train_knn.fit(examples, args_of(train_knn.KnnArgs, params))
        case "knn_semi":
            return train_knn.fit_semi(examples, args_of(train_knn.KnnSemiArgs, params))
        case "mlp":
            return train_mlp.fit(examples, args_of(train_mlp.MlpArgs, params))
        case other:
            assert_never(other)


_CURVE_FOLDS = 3
_LEAST_CURVE_ROWS = 10


def validate(
    facts: TabularModelFacts,
    train: TableExamples,
    effort: CrossValidateArgs,
    *,
    metric: str,
    after_fit: Callable[[int, int], None],
) -> ValidatedModel:
    """Cross-validate one model on the training rows and compute its learning curve.

    There are as many folds as requested, or fewer if a class is too small, with a note.
    """
    from stoker.cookbooks.tabular.examples import fold_count

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
    effort: CrossValidateArgs,
    metric: str,
    after_fit: Callable[[int, int], None],
) -> tuple[CrossValidation, LearningCurve | None]:
    """Train on all folds but one and score on that one, in turn; on the first folds also with fewer rows."""
    import numpy as np

    from stoker.cookbooks.tabular.examples import folds_of, nested_subset
    from stoker.cookbooks.tabular.metrics import plain_scores, predict

    scores: list[dict[str, float]] = []
    curves: list[list[float]] = []
    sizes: list[int] = []
    done, fits = 0, effort.folds + min(effort.folds, _CURVE_FOLDS) * max(0, effort.curve_points - 1)
    for number, (fit_rows, score_rows) in enumerate(folds_of(train, folds=effort.folds, seed=effort.seed)):
        fitted, scored = train.take(fit_rows), train.take(score_rows)
        # Folds differ by a row; the curve has the sizes of the first.
        sizes = sizes or _curve_sizes(len(fitted), effort.curve_points, len(train.classes))
        points: list[float] = []
        for size in sizes[:-1] if number < _CURVE_FOLDS else []:
            smaller = fitted.take(nested_subset(fitted, rows=size, seed=effort.seed))
            points.append(plain_scores(predict(refit(facts, smaller), scored))[metric])
            done += 1
            after_fit(done, fits)
        scores.append(plain_scores(predict(refit(facts, fitted), scored)))
        done += 1
        after_fit(done, fits)
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
    import numpy as np

    return LearningCurve(
        metric=metric,
        rows=sizes,
        mean=[_known(np.mean, list(column)) for column in zip(*curves, strict=True)],
        std=[_known(np.std, list(column)) for column in zip(*curves, strict=True)],
    )


def _known(summary: Callable[[Floats], Any], values: list[float]) -> float:
    """Summarise the values that are defined."""
    import numpy as np

    from stoker.cookbooks.tabular.training import significant

    known = np.asarray(values)[np.isfinite(values)]
    return significant(float(summary(known))) if len(known) else float("nan")
