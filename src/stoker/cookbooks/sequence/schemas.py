"""Schemas of series, windows and models (plain JSON with named fields), and common arguments.

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
    """Facts of a series."""

    name: str | None
    """The generated series; None for a user's file."""
    format: FileFormat
    sha256: str | None
    rows: int
    channels: list[str]
    """Numeric input columns, in order."""
    target: str
    problem: Problem
    classes: list[Any]
    """In the order of their codes; empty for regression."""
    time: str | None
    """The column that orders the rows; None: the order of the file."""
    notes: list[str]
    """Notes about left-out columns and changed values, one sentence each."""


class WindowFacts(TypedDict):
    """How a series was divided in time, scaled and cut into windows."""

    series: SeriesFacts
    window: int
    stride: int
    horizon: int
    """Rows to predict; 0 for classification."""
    borders: list[int]
    """First row of each part (train, validation, test), and the number of rows."""
    counts: dict[str, int]
    """Windows of each part."""
    mean: list[float]
    spread: list[float]
    """Of each channel, over the training rows only."""
    notes: list[str]


class SequenceCurve(TypedDict):
    """The losses of a training, one value per epoch."""

    name: str
    train: list[float]
    validation: list[float]
    kept: int
    """The epoch, from 1, whose weights were kept."""


class SequenceModelFacts(TypedDict):
    """Everything to build and use the network again, and its training curve."""

    family: Family
    shape: dict[str, Any]
    params: dict[str, Any]
    weights: int
    """Number of trained weights."""
    data: WindowFacts
    curves: list[SequenceCurve]
    notes: list[str]
    versions: dict[str, str]


class EncoderFacts(TypedDict):
    """The result of the pre-training, and its data."""

    shape: dict[str, Any]
    params: dict[str, Any]
    curve: SequenceCurve
    notes: list[str]


class SequenceEvaluation(TypedDict):
    """One model beside a baseline, on later windows than the training's."""

    model: SequenceModelFacts
    metrics: list[str]
    rank_by: str
    test: dict[str, float]
    baseline: dict[str, float]
    baseline_is: str
    """The baseline, in words."""
    by_step: list[float]
    """Regression: root mean squared error of each step ahead."""
    confusion: list[list[int]]
    """Classification: rows are true classes, columns predicted ones."""
    shown: dict[str, list[float]]
    """Regression: a part of the test rows, true and predicted one step ahead."""


GeneratedName = Literal["waves", "regimes"]
"""Names of generated series."""
GENERATED: Final[tuple[str, ...]] = get_args(GeneratedName)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLoadArgs:
    """A generated series or a file, and settings of its columns."""

    generated: GeneratedName | None = arg(None, help="generated series")
    file: InputPath | None = arg(None, help="CSV or Parquet file, a row for each time step")
    target: str | None = arg(None, help="the column to predict")
    time: str | None = arg(None, help="time column")
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities")
    drop: tuple[str, ...] = arg((), help="columns to leave out")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowArgs:
    """How to divide and cut a series."""

    window: int = arg(24, help="rows of a window", ge=1, le=100_000)
    stride: int = arg(1, help="rows between the starts of windows (stride)", ge=1)
    horizon: int | None = arg(None, help="regression: next values to predict; null: 1", ge=1, le=10_000)
    validation_percent: int = arg(15, help="share of validation rows, before the test rows", ge=1, le=45)
    test_percent: int = arg(20, help="share of test rows, the newest", ge=1, le=45)


# Without slots: recipes inherit from it beside data arguments, and two bases with slots are incompatible.
@dataclass(frozen=True, kw_only=True)
class TrainingArgs:
    """How to train a network."""

    epochs: int = arg(20, help="maximum number of epochs; the best one is kept", ge=1, le=100_000)
    lr: float = arg(3e-3, help="learning rate (AdamW)", gt=0)
    weight_decay: float = arg(1e-2, help="weight decay", ge=0)
    batch: int = arg(64, help="windows per step, over all ranks", ge=1)
    patience: int = arg(5, help="epochs without improvement before stopping", ge=1)
    clip: float = arg(1.0, help="gradient clipping by norm", gt=0)
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    ranks: int = arg(1, help="number of ranks, each trains on its part of every batch", ge=1, le=1024)
    n_jobs: int | None = arg(None, help="maximum threads per rank; null: one", ge=1, runtime=True)
    checkpoint_every: int = arg(1, help="epochs between checkpoints", ge=1, runtime=True)
