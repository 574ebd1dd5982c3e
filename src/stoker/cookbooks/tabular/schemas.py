"""Schemas of data, models and scores (plain JSON with named fields), and common arguments.

No numeric library, so that kinds and recipes can be imported without numpy or scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

from stoker.authoring import arg

Problem = Literal["classification", "regression"]
ProblemChoice = Literal["auto", "classification", "regression"]
Family = Literal["gbt", "knn", "knn_semi", "mlp"]
RankBy = Literal[
    "auto", "accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "log_loss", "brier", "r2", "mae", "rmse"
]
"""The metric that decides between models; auto is balanced_accuracy for classes and r2 for quantities."""
LESS_IS_BETTER: Final = frozenset({"log_loss", "brier", "mae", "rmse"})


class TableOrigin(TypedDict):
    """The origin of a table, the same on every machine (never a path)."""

    name: str | None
    """The bundled set; None for a user's file."""
    format: Literal["bundled", "csv", "parquet"]
    sha256: str | None
    rows: int
    columns: int
    target: str | None
    """The default target of a bundled set."""
    notes: list[str]


class TableFacts(TypedDict):
    """Facts of a labelled table."""

    origin: TableOrigin
    problem: Problem
    target: str
    classes: list[Any]
    """In the order of their codes; empty for regression."""
    numeric: list[str]
    categorical: list[str]
    rows: int
    notes: list[str]
    """Notes about left-out rows and changed values, one sentence each."""


class SplitFacts(TypedDict):
    """How rows were divided."""

    train_rows: int
    test_rows: int
    test_percent: int
    seed: int


class CurveSeries(TypedDict):
    """One line of a curve."""

    name: str
    x: list[float]
    y: list[float]


class TabularCurve(TypedDict):
    """The training curve of a model, over rounds, epochs or candidate settings."""

    x_label: str
    y_label: str
    series: list[CurveSeries]
    chosen: float | None
    """The chosen x."""


class TabularModelFacts(TypedDict):
    """Everything to train the same model again, and its training curve."""

    family: Family
    problem: Problem
    params: dict[str, Any]
    """Settings after all choices of the training: training again with them makes no further choice."""
    classes: list[Any]
    numeric: list[str]
    categorical: list[str]
    target: str
    train_rows: int
    curves: list[TabularCurve]
    notes: list[str]
    versions: dict[str, str]


class Interval(TypedDict):
    """A score with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class CrossValidation(TypedDict):
    """Scores of refitted models on the rest of the training rows."""

    folds: int
    mean: dict[str, float]
    std: dict[str, float]


class ClassScores(TypedDict):
    """Scores of one class."""

    name: str
    precision: float
    recall: float
    f1: float
    rows: int


class LearningCurve(TypedDict):
    """The ranking metric against the number of training rows."""

    metric: str
    rows: list[int]
    mean: list[float]
    std: list[float]


class ValidatedModel(TypedDict):
    """The result of one model on the training rows."""

    name: str
    cross_validation: CrossValidation | None
    learning: LearningCurve | None
    notes: list[str]


class ModelScores(TypedDict):
    """Everything measured about one model."""

    name: str
    params: dict[str, Any]
    notes: list[str]
    test: dict[str, Interval]
    cross_validation: CrossValidation | None
    behind_best: Interval | None
    """Distance to the best model in the ranking metric on the same resampled test rows; positive is worse."""
    per_class: list[ClassScores]
    confusion: list[list[int]]
    """Rows are true classes, columns predicted ones."""
    roc: CurveSeries | None
    calibration: CurveSeries | None
    """Confidence and accuracy, in bins."""
    scatter: CurveSeries | None
    """True against predicted values (regression)."""
    curves: list[TabularCurve]
    learning: LearningCurve | None


class TabularEvaluation(TypedDict):
    """The whole evaluation: one entry per model, the baseline last."""

    facts: TableFacts
    split: SplitFacts
    metrics: list[str]
    rank_by: str
    ranked_on: Literal["cross-validation", "test"]
    best: str
    bootstraps: int
    models: list[ModelScores]
    importance: list[dict[str, Any]]
    """Of the best model: feature, mean drop of the ranking metric when it is shuffled, and its spread."""
    versions: dict[str, str]


# Without slots: stages and recipes add settings of a second base.
@dataclass(frozen=True, kw_only=True)
class TrainArgs:
    """Arguments of every training stage."""

    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="maximum threads; null: every core; a small table uses one", ge=1, runtime=True)


Watch = Callable[[int, int, Mapping[str, float]], None]
"""Called with (steps done, steps planned, metrics); may raise to stop the training."""


def unwatched(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """Watch nothing."""
