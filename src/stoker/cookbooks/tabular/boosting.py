"""Gradient boosted trees (scikit-learn's histogram version).

`train` chooses the number of trees on rows set aside from the training part, then fits on the whole of it; `fit`
makes no choice. Both grow the trees in small groups, so that they can be watched and stopped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline

from stoker.cookbooks.tabular.examples import TableExamples
from stoker.cookbooks.tabular.partition import holdout
from stoker.cookbooks.tabular.preparation import for_trees
from stoker.cookbooks.tabular.schemas import CurveSeries, TabularCurve
from stoker.cookbooks.tabular.training import (
    HOLDOUT_PERCENT,
    TrainedPipeline,
    Watch,
    loss_name,
    loss_of,
    significant,
    still_falling,
    unwatched,
)

# After every group of trees scikit-learn answers all rows anew, which counts in a large table.
_GROUPS = 50
_GROUPS_OF_LARGE = 20
_LARGE_ROWS = 10_000
_PATIENCE_TREES_PERCENT = 16
_SMALL_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Boosting:
    """Settings of boosted trees."""

    trees: int
    depth: int | None
    learning_rate: float
    seed: int


def train(examples: TableExamples, settings: Boosting, watch: Watch = unwatched) -> TrainedPipeline:
    """Choose how many trees to keep, then fit on every row."""
    parts = holdout(examples, percent=HOLDOUT_PERCENT, seed=settings.seed)
    if parts is None:
        notes = [f"Too few rows to choose the number of trees on; all {settings.trees} were kept."]
        return TrainedPipeline(pipeline=fit(examples, settings, watch), params=asdict(settings), curves=[], notes=notes)
    curve = _losses(examples.take(parts[0]), examples.take(parts[1]), settings, watch)
    chosen = replace(settings, trees=int(curve["chosen"] or settings.trees))
    notes = still_falling(curve, settings.trees)
    return TrainedPipeline(pipeline=fit(examples, chosen), params=asdict(chosen), curves=[curve], notes=notes)


def fit(examples: TableExamples, settings: Boosting, watch: Watch = unwatched) -> Any:
    """Fit exactly `settings.trees` trees."""
    preparation = for_trees(examples)
    matrix = preparation.fit_transform(examples.features)
    model = _new_model(examples, settings)
    group = _group(examples, settings) if watch is not unwatched else settings.trees
    for trees in _group_ends(settings.trees, group):
        model.set_params(max_iter=trees).fit(matrix, examples.target)
        watch(trees, settings.trees, {})
    model.set_params(warm_start=False)
    # It remembers how many threads it was trained with, which would make the same model different bytes elsewhere.
    model._bin_mapper.n_threads = 1  # noqa: SLF001 - scikit-learn has no other way to forget it
    return Pipeline([("prepare", preparation), ("model", model)])


def _losses(fitted: TableExamples, aside: TableExamples, settings: Boosting, watch: Watch) -> TabularCurve:
    """Grow trees until the loss on the rows set aside has not fallen for a while."""
    preparation = for_trees(fitted)
    matrix = preparation.fit_transform(fitted.features)
    aside_matrix = preparation.transform(aside.features)
    model = _new_model(fitted, settings)
    xs: list[float] = []
    seen: list[float] = []
    unseen: list[float] = []
    group = _group(fitted, settings)
    patience = max(3, -(-settings.trees * _PATIENCE_TREES_PERCENT // 100) // group)
    for trees in _group_ends(settings.trees, group):
        model.set_params(max_iter=trees).fit(matrix, fitted.target)
        xs.append(trees)
        seen.append(loss_of(model, matrix, fitted))
        unseen.append(loss_of(model, aside_matrix, aside))
        watch(trees, settings.trees, {"loss": unseen[-1], "train_loss": seen[-1]})
        if len(unseen) - unseen.index(min(unseen)) > patience:
            break
    return TabularCurve(
        x_label="trees",
        y_label=loss_name(fitted.problem),
        series=[
            CurveSeries(name="training rows", x=xs, y=[significant(value) for value in seen]),
            CurveSeries(name="rows set aside", x=xs, y=[significant(value) for value in unseen]),
        ],
        chosen=xs[unseen.index(min(unseen))],
    )


def _new_model(examples: TableExamples, settings: Boosting) -> Any:
    family: Any = (
        HistGradientBoostingClassifier if examples.problem == "classification" else HistGradientBoostingRegressor
    )
    return family(
        learning_rate=settings.learning_rate,
        max_depth=settings.depth,
        # The usual 20 rows per leaf leave nothing to split in a table of a few dozen rows.
        min_samples_leaf=20 if len(examples) >= _SMALL_ROWS else max(2, len(examples) // 10),
        categorical_features=[position < len(examples.categorical) for position in range(examples.features.shape[1])],
        early_stopping=False,
        warm_start=True,
        random_state=settings.seed,
    )


def _group(examples: TableExamples, settings: Boosting) -> int:
    return max(1, settings.trees // (_GROUPS_OF_LARGE if len(examples) >= _LARGE_ROWS else _GROUPS))


def _group_ends(total: int, group: int) -> list[int]:
    return [*range(group, total, group), total]
