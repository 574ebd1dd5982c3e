"""The stage that trains gradient boosted trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Split, TabularModel
from stoker.cookbooks.tabular.schemas import TabularCurve, TrainArgs, Watch, unwatched

if TYPE_CHECKING:
    from stoker.cookbooks.tabular.examples import TableExamples
    from stoker.cookbooks.tabular.training import TrainedPipeline


# Settings are without slots: two bases with slots do not go together.
@dataclass(frozen=True, kw_only=True)
class GbtSettings:
    """Settings of boosted trees."""

    trees: int = arg(200, help="maximum number of trees, with early stopping", ge=1, le=10_000)
    depth: int | None = arg(None, help="maximum depth of a tree; null: no limit", ge=1, le=64)
    lr: float = arg(0.1, help="learning rate", gt=0, le=1)


@dataclass(frozen=True, kw_only=True)
class GbtArgs(TrainArgs, GbtSettings):
    """Arguments of tabular/train_gbt."""


@stage("tabular/train_gbt", version=1, uses=("scikit-learn", "numpy", "pandas"), diverges_on=("loss",))
def train_gbt(job: StageContext, data: Split, args: GbtArgs) -> TabularModel:
    """Train gradient boosted trees."""
    from stoker.cookbooks.tabular.training import produce

    return produce(job, "gbt", data, args, train)


# Gradient boosted trees (scikit-learn's histogram version).
#
# `train` chooses the number of trees on rows set aside from the training part, then fits on the whole of it; `fit`
# makes no choice. Both grow the trees in small groups, so that they can be watched and stopped.


# After every group of trees scikit-learn predicts all rows again, which is slow for a large table.
_GROUPS = 50
_GROUPS_OF_LARGE = 20
_LARGE_ROWS = 10_000
_PATIENCE_TREES_PERCENT = 16
_SMALL_ROWS = 200


def train(examples: TableExamples, settings: GbtArgs, watch: Watch = unwatched) -> TrainedPipeline:
    """Choose the number of trees, then fit on every row."""
    from stoker.cookbooks.tabular.examples import holdout
    from stoker.cookbooks.tabular.training import HOLDOUT_PERCENT, TrainedPipeline, params_of, still_falling

    parts = holdout(examples, percent=HOLDOUT_PERCENT, seed=settings.seed)
    if parts is None:
        notes = [f"Too few rows to choose the number of trees on; all {settings.trees} were kept."]
        return TrainedPipeline(
            pipeline=fit(examples, settings, watch), params=params_of(settings), curves=[], notes=notes
        )
    curve = _losses(examples.take(parts[0]), examples.take(parts[1]), settings, watch)
    chosen = replace(settings, trees=int(curve["chosen"] or settings.trees))
    notes = still_falling(curve, settings.trees)
    return TrainedPipeline(pipeline=fit(examples, chosen), params=params_of(chosen), curves=[curve], notes=notes)


def fit(examples: TableExamples, settings: GbtArgs, watch: Watch = unwatched) -> Any:
    """Fit exactly `settings.trees` trees."""
    from sklearn.pipeline import Pipeline

    from stoker.cookbooks.tabular.training import for_trees

    preparation = for_trees(examples)
    matrix = preparation.fit_transform(examples.features)
    model = _new_model(examples, settings)
    group = _group(examples, settings) if watch is not unwatched else settings.trees
    for trees in _group_ends(settings.trees, group):
        model.set_params(max_iter=trees).fit(matrix, examples.target)
        watch(trees, settings.trees, {})
    model.set_params(warm_start=False)
    # The number of threads is an attribute of the model, which would change its bytes on another machine.
    model._bin_mapper.n_threads = 1  # noqa: SLF001 - scikit-learn has no other way to forget it
    return Pipeline([("prepare", preparation), ("model", model)])


def _losses(fitted: TableExamples, aside: TableExamples, settings: GbtArgs, watch: Watch) -> TabularCurve:
    """Grow trees until the validation loss has not fallen for a while."""
    from stoker.cookbooks.tabular.training import for_trees, loss_of, two_part_curve

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
    return two_part_curve("trees", fitted.problem, xs, seen, unseen)


def _new_model(examples: TableExamples, settings: GbtArgs) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    family: Any = (
        HistGradientBoostingClassifier if examples.problem == "classification" else HistGradientBoostingRegressor
    )
    return family(
        learning_rate=settings.lr,
        max_depth=settings.depth,
        # The default of 20 rows per leaf leaves nothing to split in a table of a few dozen rows.
        min_samples_leaf=20 if len(examples) >= _SMALL_ROWS else max(2, len(examples) // 10),
        categorical_features=[position < len(examples.categorical) for position in range(examples.features.shape[1])],
        early_stopping=False,
        warm_start=True,
        random_state=settings.seed,
    )


def _group(examples: TableExamples, settings: GbtArgs) -> int:
    return max(1, settings.trees // (_GROUPS_OF_LARGE if len(examples) >= _LARGE_ROWS else _GROUPS))


def _group_ends(total: int, group: int) -> list[int]:
    return [*range(group, total, group), total]
