"""What the stages of this cookbook store about series, windows and models (plain JSON with named fields), and ask.

No numeric library, so that kinds and recipes can be imported without numpy or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, get_args

from stoker.authoring import InputPath, arg

Problem = Literal["classification", "regression"]
FileFormat = Literal["generated", "csv", "parquet"]
Family = Literal["cnn", "gru", "lstm", "transformer", "transformer_ssl"]
PartName = Literal["train", "validation", "test"]


class SeriesFacts(TypedDict):
    """What is known of a series."""

    name: str | None
    """The generated series; None for a user's file."""
    format: FileFormat
    sha256: str | None
    rows: int
    channels: list[str]
    """Numeric columns that a model sees, in their order."""
    target: str
    problem: Problem
    classes: list[Any]
    """In the order of their codes; empty for regression."""
    time: str | None
    """The column that orders the rows; None: they are in order as they stand."""
    notes: list[str]
    """What was left out or changed, one sentence each."""


class WindowFacts(TypedDict):
    """How a series was divided in time, scaled and cut into windows."""

    series: SeriesFacts
    window: int
    stride: int
    horizon: int
    """Rows to predict; 0 for classification."""
    borders: list[int]
    """Row at which each part begins (train, validation, test), and the number of rows."""
    counts: dict[str, int]
    """Windows of each part."""
    mean: list[float]
    spread: list[float]
    """Of each channel, over the rows of the training part alone."""
    notes: list[str]


class SequenceCurve(TypedDict):
    """The losses of a training, one value per epoch."""

    name: str
    train: list[float]
    validation: list[float]
    kept: int
    """The epoch, from 1, whose weights were kept."""


class SequenceModelFacts(TypedDict):
    """All that is needed to build the network again and to use it, and what its training looked like."""

    family: Family
    shape: dict[str, Any]
    params: dict[str, Any]
    weights: int
    """How many numbers were learned."""
    data: WindowFacts
    curves: list[SequenceCurve]
    notes: list[str]
    versions: dict[str, str]


class EncoderFacts(TypedDict):
    """What was learned without answers, and from what."""

    shape: dict[str, Any]
    params: dict[str, Any]
    curve: SequenceCurve
    notes: list[str]


class SequenceEvaluation(TypedDict):
    """One model beside a baseline, on windows that come after everything either has seen."""

    model: SequenceModelFacts
    metrics: list[str]
    rank_by: str
    test: dict[str, float]
    baseline: dict[str, float]
    baseline_is: str
    """What the baseline answers, in words."""
    by_step: list[float]
    """Regression: root mean squared error of each step ahead."""
    confusion: list[list[int]]
    """Classification: rows are true classes, columns predicted ones."""
    shown: dict[str, list[float]]
    """Regression: a stretch of the test part, true and predicted one step ahead."""


GeneratedName = Literal["waves", "regimes"]
"""The series that are made, not read, by the names a user types."""
GENERATED: Final[tuple[str, ...]] = get_args(GeneratedName)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArgs:
    """A generated series or a file, and what the user says about its columns."""

    generated: GeneratedName | None = arg(None, help="a series that is made, not read")
    file: InputPath | None = arg(None, help="a CSV or Parquet file, a row for each moment")
    target: str | None = arg(None, help="the column to predict")
    time: str | None = arg(None, help="the column that orders the rows")
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities")
    drop: tuple[str, ...] = arg((), help="columns to leave out")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowArgs:
    """How to divide and to cut."""

    window: int = arg(24, help="rows that a model sees at once", ge=1, le=100_000)
    stride: int = arg(1, help="rows from the beginning of one window to the next", ge=1)
    horizon: int | None = arg(None, help="regression: next values to predict; null: 1", ge=1, le=10_000)
    validation_percent: int = arg(15, help="share of rows, before the test, that decide when to stop", ge=1, le=45)
    test_percent: int = arg(20, help="share of rows, the newest, held out for the test", ge=1, le=45)


# Without slots: recipes take it in beside what they ask about the data, and two bases with slots don't go together.
@dataclass(frozen=True, kw_only=True)
class TrainingArgs:
    """How to train a network."""

    epochs: int = arg(20, help="most epochs; the best one is kept", ge=1, le=100_000)
    lr: float = arg(3e-3, help="learning rate (AdamW)", gt=0)
    weight_decay: float = arg(1e-2, help="how strongly weights are pulled to zero", ge=0)
    batch: int = arg(64, help="windows per step, over all ranks together", ge=1)
    patience: int = arg(5, help="epochs without improvement before stopping", ge=1)
    clip: float = arg(1.0, help="longest gradient; a longer one is shortened", gt=0)
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    ranks: int = arg(1, help="processes that train together, each on its share of every batch", ge=1, le=1024)
    n_jobs: int | None = arg(None, help="most threads per rank; null: one", ge=1, runtime=True)
    checkpoint_every: int = arg(1, help="epochs between checkpoints", ge=1, runtime=True)
