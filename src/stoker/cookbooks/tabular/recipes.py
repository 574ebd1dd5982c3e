"""The recipes of this cookbook: from what a user types to a plan.

    load → label → split → train … → cross-validate … → evaluate → report

`data` is the name of a bundled set or a path. A path reaches the plan as an input whose content, not its place,
decides whether work is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from stoker.authoring import (
    ArgsFaults,
    Category,
    Cookbook,
    Fault,
    InputPath,
    Plan,
    PlanBuilder,
    Stage,
    Tips,
    arg,
    recipe,
)
from stoker.cookbooks.tabular.bundled import BUNDLED
from stoker.cookbooks.tabular.cross_validate import CrossValidateArgs, cross_validate
from stoker.cookbooks.tabular.evaluate import EvaluateArgs, evaluate
from stoker.cookbooks.tabular.kinds import Labelled, Model, Report, Scores, Split, Table, Validation
from stoker.cookbooks.tabular.label import LabelArgs, label
from stoker.cookbooks.tabular.load import LoadArgs, load
from stoker.cookbooks.tabular.report import report
from stoker.cookbooks.tabular.schemas import Family, RankBy
from stoker.cookbooks.tabular.split import SplitArgs, split
from stoker.cookbooks.tabular.train_gbt import GbtArgs, train_gbt
from stoker.cookbooks.tabular.train_knn import KnnArgs, train_knn
from stoker.cookbooks.tabular.train_knn_semi import KnnSemiArgs, train_knn_semi
from stoker.cookbooks.tabular.train_mlp import MlpArgs, train_mlp
from stoker.core.text import nearest

_BUNDLED_TEXT = ", ".join(BUNDLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableArgs:
    """What every recipe of this cookbook asks."""

    data: str = arg("breast_cancer", help=f"a CSV or Parquet file, or one of {_BUNDLED_TEXT}")
    target: str | None = arg(None, help="the column to predict; needed for a file")
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities; auto looks")
    drop: tuple[str, ...] = arg((), help="columns to leave out, such as identifiers")
    test_percent: int = arg(25, help="share of rows held out for the test", ge=1, le=90)
    folds: int = arg(5, help="folds of the cross-validation on the training rows", ge=2, le=50)
    curve_points: int = arg(5, help="sizes in the learning curve; 0 for none", ge=0, le=20)
    bootstraps: int = arg(1000, help="resamples of the test rows behind each 95 % interval", ge=100, le=100_000)
    rank_by: RankBy = arg("auto", help="metric that decides which model is best; auto: balanced_accuracy or r2")
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(
        None, help="most threads per stage; null: every core; a small table uses one", ge=1, runtime=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GbtShape:
    """How large boosted trees may become."""

    trees: int = arg(200, help="most trees to grow; fewer are kept if more do not help", ge=1, le=10_000)
    depth: int | None = arg(None, help="deepest tree; null for no limit", ge=1, le=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GbtRecipeArgs(TableArgs):
    """Arguments of tabular/gbt."""

    model: GbtShape = arg(GbtShape(), help="the trees")
    lr: float = arg(0.1, help="learning rate: how much each tree may change", gt=0, le=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnnRecipeArgs(TableArgs):
    """Arguments of tabular/knn."""

    neighbours: int | None = arg(None, help="rows to ask; null: the best of 1 to 45", ge=1, le=10_000)
    weights: Literal["uniform", "distance"] = arg("uniform", help="whether nearer rows count more")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnnSemiRecipeArgs(TableArgs):
    """Arguments of tabular/knn_semi."""

    neighbours: int = arg(5, help="rows to ask", ge=1, le=10_000)
    labelled_percent: int = arg(20, help="share of training rows that keep their label", ge=1, le=100)
    confidence: float = arg(0.9, help="how sure the model must be to label a row itself", gt=0, lt=1)
    rounds: int = arg(10, help="most rounds of labelling", ge=1, le=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpRecipeArgs(TableArgs):
    """Arguments of tabular/mlp."""

    hidden: tuple[int, ...] = arg((64, 32), help="width of each hidden layer, such as [64,32]", ge=1, le=4096)
    epochs: int = arg(200, help="most epochs; fewer are kept if more do not help", ge=1, le=100_000)
    lr: float = arg(1e-3, help="learning rate (Adam)", gt=0)
    weight_decay: float = arg(1e-4, help="strength of the L2 penalty", ge=0)
    batch: int | None = arg(None, help="rows per step; null: 32, or 200 for a large table", ge=1)
    patience: int = arg(15, help="epochs without improvement before stopping", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareArgs(TableArgs):
    """Arguments of tabular/compare."""

    models: tuple[Family, ...] = arg(("gbt", "knn", "mlp"), help="models to train: gbt, knn, knn_semi, mlp")
    trees: int = arg(200, help="gbt: most trees to grow", ge=1, le=10_000)
    depth: int | None = arg(None, help="gbt: deepest tree; null for no limit", ge=1, le=64)
    lr: float = arg(0.1, help="gbt: learning rate", gt=0, le=1)
    neighbours: int | None = arg(None, help="knn: rows to ask; null: the best of 1 to 45", ge=1, le=10_000)
    labelled_percent: int = arg(20, help="knn_semi: share of training rows that keep their label", ge=1, le=100)
    hidden: tuple[int, ...] = arg((64, 32), help="mlp: width of each hidden layer", ge=1, le=4096)
    epochs: int = arg(200, help="mlp: most epochs", ge=1, le=100_000)
    mlp_lr: float = arg(1e-3, help="mlp: learning rate (Adam)", gt=0)


@recipe("tabular/gbt", version=2, category=Category.TRAIN, output=Report, backend="scikit-learn")
def gbt(args: GbtRecipeArgs) -> Plan:
    """Train gradient boosted trees on a table and report how good they are."""
    shape = args.model
    settings = GbtArgs(trees=shape.trees, depth=shape.depth, lr=args.lr, seed=args.seed, n_jobs=args.n_jobs)
    return _plan("tabular/gbt", args, [(train_gbt, settings)])


@recipe("tabular/knn", version=1, category=Category.TRAIN, output=Report, backend="scikit-learn")
def knn(args: KnnRecipeArgs) -> Plan:
    """Train k nearest neighbours on a table and report how good they are."""
    settings = KnnArgs(neighbours=args.neighbours, weights=args.weights, seed=args.seed, n_jobs=args.n_jobs)
    return _plan("tabular/knn", args, [(train_knn, settings)])


@recipe("tabular/knn_semi", version=1, category=Category.TRAIN, output=Report, backend="scikit-learn")
def knn_semi(args: KnnSemiRecipeArgs) -> Plan:
    """Train k nearest neighbours from few labels and report how good they are."""
    settings = KnnSemiArgs(
        neighbours=args.neighbours,
        labelled_percent=args.labelled_percent,
        confidence=args.confidence,
        rounds=args.rounds,
        seed=args.seed,
        n_jobs=args.n_jobs,
    )
    return _plan("tabular/knn_semi", args, [(train_knn_semi, settings)])


@recipe("tabular/mlp", version=1, category=Category.TRAIN, output=Report, backend="scikit-learn")
def mlp(args: MlpRecipeArgs) -> Plan:
    """Train a multi-layer perceptron on a table and report how good it is."""
    settings = MlpArgs(
        hidden=args.hidden,
        epochs=args.epochs,
        lr=args.lr,
        weight_decay=args.weight_decay,
        batch=args.batch,
        patience=args.patience,
        seed=args.seed,
        n_jobs=args.n_jobs,
    )
    return _plan("tabular/mlp", args, [(train_mlp, settings)])


@recipe("tabular/compare", version=1, category=Category.PIPELINE, output=Report, backend="scikit-learn")
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


def _faults_in(models: tuple[Family, ...]) -> list[Fault]:
    hint = f"known: {', '.join(get_args(Family))}"
    repeated = sorted({name for name in models if models.count(name) > 1})
    if repeated:
        return [Fault("tabular/compare.models", f"{', '.join(repeated)} more than once", hint)]
    return [] if models else [Fault("tabular/compare.models", "no model to train", hint)]


def _plan(name: str, args: TableArgs, branches: Sequence[tuple[Stage, Any]], faults: Sequence[Fault] = ()) -> Plan:
    source = _source(args.data)
    if isinstance(source, _Unusable):
        faults = [Fault(f"{name}.data", source.message, source.hint), *faults]
    if isinstance(source, _Unusable) or faults:
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the arguments of {name}"
        raise ArgsFaults(message, faults=tuple(faults), hint=f"stoker recipes show {name}")
    builder = PlanBuilder(name.rpartition("/")[2])
    data = (
        builder.start(load, source)
        .then(label, LabelArgs(target=args.target, problem=args.problem, drop=args.drop))
        .then(split, SplitArgs(test_percent=args.test_percent, seed=args.seed))
    )
    models = data.fork(*branches)
    effort = CrossValidateArgs(
        folds=args.folds, curve_points=args.curve_points, rank_by=args.rank_by, seed=args.seed, n_jobs=args.n_jobs
    )
    validations = Tips(
        [tip.then(cross_validate, effort, id=f"validate_{_model_of(tip.id)}", data=data) for tip in models.tips]
    )
    judge = EvaluateArgs(bootstraps=args.bootstraps, rank_by=args.rank_by, seed=args.seed)
    scores = models.merge(evaluate, judge, validations=validations, data=data)
    return scores.then(report, models=models).finish()


def _model_of(train_node: str) -> str:
    return train_node.removeprefix("train_")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unusable:
    """Why there is no table behind what was typed."""

    message: str
    hint: str


def _source(data: str) -> LoadArgs | _Unusable:
    """Tell a bundled set from a file, and both from a mistake."""
    if data in BUNDLED:
        return LoadArgs(bundled=data)  # type: ignore[arg-type]  # a name out of the tuple that the type was made from
    if not data.strip():
        return _Unusable(message="is empty", hint=f"a CSV or Parquet file, or one of {_BUNDLED_TEXT}")
    path = Path(data).expanduser()
    if path.is_file():
        return LoadArgs(file=InputPath(str(path)))
    if path.is_dir():
        return _Unusable(message=f"{data} is a folder", hint="give one CSV or Parquet file")
    if path.suffix or path.parent != Path():
        return _Unusable(message=f"there is no file {data}", hint=f"bundled sets are {_BUNDLED_TEXT}")
    candidate = nearest(data, BUNDLED)
    return _Unusable(
        message=f"{data!r} is neither a file nor a bundled data set",
        hint=f"did you mean {candidate!r}?" if candidate else f"a CSV or Parquet file, or one of {_BUNDLED_TEXT}",
    )


# The cookbook itself: what the catalogue sees of it.

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
    kinds=(Table, Labelled, Split, Model, Validation, Scores, Report),
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
