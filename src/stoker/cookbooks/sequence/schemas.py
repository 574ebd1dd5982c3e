"""What the stages of this cookbook write down about series, windows, models and scores: plain JSON with named fields.

Standard library only, so that kinds and recipes can be imported without numpy or torch.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Problem = Literal["classification", "regression"]
Family = Literal["cnn", "gru", "lstm", "transformer", "transformer_ssl"]
PartName = Literal["train", "validation", "test"]


class SeriesFacts(TypedDict):
    """What is known of a series."""

    name: str | None
    """The generated series; None for a user's file."""
    format: Literal["generated", "csv", "parquet"]
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
