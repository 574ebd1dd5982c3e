"""The recipes of this cookbook: from what a user types to a plan.

    load → label → split → train … → cross-validate … → evaluate → report

`data` is the name of a bundled set or a path. A path reaches the plan as an input whose content, not its place,
decides whether work is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from stoker.authoring import Category, Cookbook, Diagnostic, InputPath, Plan, PlanBuilder, Stage, Tips, arg, recipe
from stoker.cookbooks.recipe_parts import find_table, refuse, stage_args
from stoker.cookbooks.tabular.cross_validate import CrossValidateArgs, cross_validate
from stoker.cookbooks.tabular.data import BUNDLED, LabelArgs, SplitArgs, TabularLoadArgs, label, load, split
from stoker.cookbooks.tabular.evaluate import EvaluateArgs, evaluate
from stoker.cookbooks.tabular.kinds import (
    Labelled,
    Split,
    Table,
    TabularModel,
    TabularReport,
    TabularScores,
    Validation,
)
from stoker.cookbooks.tabular.report import report
from stoker.cookbooks.tabular.schemas import Family, ProblemChoice, RankBy
from stoker.cookbooks.tabular.train_gbt import GbtArgs, train_gbt
from stoker.cookbooks.tabular.train_knn import (
    KnnArgs,
    KnnSemiArgs,
    KnnSemiSettings,
    KnnSettings,
    train_knn,
    train_knn_semi,
)
from stoker.cookbooks.tabular.train_mlp import MlpArgs, MlpSettings, train_mlp

_BUNDLED_TEXT = ", ".join(BUNDLED)


@dataclass(frozen=True, kw_only=True)
class TableArgs:
    """Arguments of every recipe of this cookbook."""

    data: str = arg("breast_cancer", help=f"a CSV or Parquet file, or one of {_BUNDLED_TEXT}")
    target: str | None = arg(None, help="the column to predict; required for a file")
    problem: ProblemChoice = arg("auto", help="classes or quantities; auto: detect")
    drop: tuple[str, ...] = arg((), help="columns to leave out, such as identifiers")
    test_percent: int = arg(25, help="share of rows held out for the test", ge=1, le=90)
    folds: int = arg(5, help="folds of the cross-validation on the training rows", ge=2, le=50)
    curve_points: int = arg(5, help="sizes in the learning curve; 0 for none", ge=0, le=20)
    bootstraps: int = arg(1000, help="resamples of the test rows behind each 95 % interval", ge=100, le=100_000)
    rank_by: RankBy = arg("auto", help="metric that decides which model is best; auto: balanced_accuracy or r2")
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(
        None, help="maximum threads per stage; null: every core; a small table uses one", ge=1, runtime=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GbtShape:
    """Size of boosted trees."""

    trees: int = arg(200, help="maximum number of trees, with early stopping", ge=1, le=10_000)
    depth: int | None = arg(None, help="maximum depth of a tree; null: no limit", ge=1, le=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GbtRecipeArgs(TableArgs):
    """Arguments of tabular/gbt."""

    model: GbtShape = arg(GbtShape(), help="the trees")
    lr: float = arg(0.1, help="learning rate", gt=0, le=1)


@dataclass(frozen=True, kw_only=True)
class KnnRecipeArgs(KnnSettings, TableArgs):
    """Arguments of tabular/knn."""


@dataclass(frozen=True, kw_only=True)
class KnnSemiRecipeArgs(KnnSemiSettings, TableArgs):
    """Arguments of tabular/knn_semi."""


@dataclass(frozen=True, kw_only=True)
class MlpRecipeArgs(MlpSettings, TableArgs):
    """Arguments of tabular/mlp."""

    hidden: tuple[int, ...] = arg((64, 32), help="width of each hidden layer, such as [64,32]", ge=1, le=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareArgs(TableArgs):
    """Arguments of tabular/compare."""

    models: tuple[Family, ...] = arg(("gbt", "knn", "mlp"), help="models to train: gbt, knn, knn_semi, mlp")
    trees: int = arg(200, help="gbt: maximum number of trees", ge=1, le=10_000)
    depth: int | None = arg(None, help="gbt: maximum depth of a tree; null: no limit", ge=1, le=64)
    lr: float = arg(0.1, help="gbt: learning rate", gt=0, le=1)
    neighbours: int | None = arg(None, help="knn: number of neighbours; null: the best of 1 to 45", ge=1, le=10_000)
    labelled_percent: int = arg(20, help="knn_semi: share of training rows that keep their label", ge=1, le=100)
    hidden: tuple[int, ...] = arg((64, 32), help="mlp: width of each hidden layer", ge=1, le=4096)
    epochs: int = arg(200, help="mlp: most epochs", ge=1, le=100_000)
    mlp_lr: float = arg(1e-3, help="mlp: learning rate (Adam)", gt=0)


@recipe("tabular/gbt", version=2, category=Category.TRAIN, output=TabularReport, backend="scikit-learn")
def gbt(args: GbtRecipeArgs) -> Plan:
    """Train gradient boosted trees on a table and report how good they are."""
    settings = stage_args(GbtArgs, args, trees=args.model.trees, depth=args.model.depth)
    return _plan("tabular/gbt", args, [(train_gbt, settings)])


@recipe("tabular/knn", version=1, category=Category.TRAIN, output=TabularReport, backend="scikit-learn")
def knn(args: KnnRecipeArgs) -> Plan:
    """Train k nearest neighbours on a table and report how good they are."""
    return _plan("tabular/knn", args, [(train_knn, stage_args(KnnArgs, args))])


@recipe("tabular/knn_semi", version=1, category=Category.TRAIN, output=TabularReport, backend="scikit-learn")
def knn_semi(args: KnnSemiRecipeArgs) -> Plan:
    """Train k nearest neighbours from few labels and report how good they are."""
    return _plan("tabular/knn_semi", args, [(train_knn_semi, stage_args(KnnSemiArgs, args))])


@recipe("tabular/mlp", version=1, category=Category.TRAIN, output=TabularReport, backend="scikit-learn")
def mlp(args: MlpRecipeArgs) -> Plan:
    """Train a multi-layer perceptron on a table and report how good it is."""
    return _plan("tabular/mlp", args, [(train_mlp, stage_args(MlpArgs, args))])


@recipe("tabular/compare", version=1, category=Category.PIPELINE, output=TabularReport, backend="scikit-learn")
def compare(args: CompareArgs) -> Plan:
    """Train several models on the same rows and report which is best, and by how much."""
    shared: dict[str, Any] = {"seed": args.seed, "n_jobs": args.n_jobs}
    branches: dict[Family, tuple[Stage, Any]] = {
        "gbt": (train_gbt, GbtArgs(trees=args.trees, depth=args.depth, lr=args.lr, **shared)),
        "knn": (train_knn, KnnArgs(neighbours=args.neighbours, **shared)),
        "knn_semi": (train_knn_semi, KnnSemiArgs(labelled_percent=args.labelled_percent, **shared)),
        "mlp": (train_mlp, MlpArgs(hidden=args.hidden, epochs=args.epochs, lr=args.mlp_lr, **shared)),
    }
    return _plan("tabular/compare", args, [branches[name] for name in args.models], _faults_in(args.models))


def _faults_in(models: tuple[Family, ...]) -> list[Diagnostic]:
    hint = f"known: {', '.join(get_args(Family))}"
    repeated = sorted({name for name in models if models.count(name) > 1})
    if repeated:
        return [Diagnostic("tabular/compare.models", f"{', '.join(repeated)} more than once", hint)]
    return [] if models else [Diagnostic("tabular/compare.models", "no model to train", hint)]


def _plan(name: str, args: TableArgs, branches: Sequence[tuple[Stage, Any]], faults: Sequence[Diagnostic] = ()) -> Plan:
    found = find_table(f"{name}.data", args.data, BUNDLED, one="bundled data set", several="bundled sets")
    refuse(name, [found, *faults] if isinstance(found, Diagnostic) else faults)
    source = TabularLoadArgs(file=InputPath(str(found))) if found else TabularLoadArgs(bundled=args.data)  # type: ignore[arg-type]  # a bundled name
    data = (
        PlanBuilder(name.rpartition("/")[2])
        .start(load, source)
        .then(label, stage_args(LabelArgs, args))
        .then(split, stage_args(SplitArgs, args))
    )
    models = data.fork(*branches)
    effort = stage_args(CrossValidateArgs, args)
    validations = Tips(
        [
            tip.then(cross_validate, effort, id=f"validate_{tip.id.removeprefix('train_')}", data=data)
            for tip in models.tips
        ]
    )
    scores = models.merge(evaluate, stage_args(EvaluateArgs, args), validations=validations, data=data)
    return scores.then(report, models=models).finish()


# The cookbook for the catalogue.

COOKBOOK: Final = Cookbook(
    name="tabular",
    summary="classify and predict from CSV and Parquet files",
    recipes=(compare, gbt, knn, knn_semi, mlp),
    stages=(
        load,
        label,
        split,
        train_gbt,
        train_knn,
        train_knn_semi,
        train_mlp,
        cross_validate,
        evaluate,
        report,
    ),
    kinds=(Table, Labelled, Split, TabularModel, Validation, TabularScores, TabularReport),
    prefill={recipe.name: {"data": "breast_cancer"} for recipe in (compare, gbt, knn, knn_semi, mlp)},
    preload=(
        "pandas",
        "pyarrow.parquet",
        "sklearn.compose",
        "sklearn.ensemble",
        "sklearn.neighbors",
        "sklearn.neural_network",
        "sklearn.semi_supervised",
    ),
)
