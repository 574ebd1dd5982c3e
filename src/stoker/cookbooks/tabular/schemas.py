"""What the stages of this cookbook store about data, models and scores (plain JSON with named fields), and ask.

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
    """Where a table came from, in words that hold on every machine (never a path)."""

    name: str | None
    """The bundled set; None for a user's file."""
    format: Literal["bundled", "csv", "parquet"]
    sha256: str | None
    rows: int
    columns: int
    target: str | None
    """The column that a bundled set is meant to predict."""
    notes: list[str]


class TableFacts(TypedDict):
    """What is known of a labelled table."""

    origin: TableOrigin
    problem: Problem
    target: str
    classes: list[Any]
    """In the order of their codes; empty for regression."""
    numeric: list[str]
    categorical: list[str]
    rows: int
    notes: list[str]
    """What was left out or changed, one sentence each."""


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
    """What a model's training looked like, over rounds, epochs or candidate settings."""

    x_label: str
    y_label: str
    series: list[CurveSeries]
    chosen: float | None
    """The x that was kept."""


class TabularModelFacts(TypedDict):
    """All that is needed to train the same model again, and what its training looked like."""

    family: Family
    problem: Problem
    params: dict[str, Any]
    """Settings after any choice made while training: training again with them makes no further choice."""
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
    """Scores on rows that each refitted model had not seen, all from the training part."""

    folds: int
    mean: dict[str, float]
    std: dict[str, float]


class ClassScores(TypedDict):
    """How well one class is found."""

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
    """What the training rows alone say about one model."""

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
    """How far the ranking metric lies behind the best model on the same resampled test rows; positive is worse."""
    per_class: list[ClassScores]
    confusion: list[list[int]]
    """Rows are true classes, columns predicted ones."""
    roc: CurveSeries | None
    calibration: CurveSeries | None
    """Confidence against the share that was right, in bins."""
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
    """What every training stage asks."""

    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="most threads; null: every core; a small table uses one", ge=1, runtime=True)


Watch = Callable[[int, int, Mapping[str, float]], None]
"""Called with (steps done, steps planned, metrics); may raise to stop the training."""


def unwatched(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """Watch nothing."""
