"""A series into windows: divided in time, scaled by what the training part knows, cut where windows begin.

    rows  0 ────────── train ──────────┬─ validation ─┬──── test ────  now

Promises: parts follow each other in time, and a window lies in one part with all that is asked about it, so no row of a
later part is seen, as input or answer, in an earlier one. Means and spreads are those of the training rows. A gap is
filled with the last known value before it, never with a later one; what is asked about is never filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt

from stoker.authoring import StageInputError
from stoker.cookbooks.sequence.schemas import PartName, SeriesFacts, WindowArgs, WindowFacts
from stoker.core import jsontext

# A series as arrays, and its folder.

UNKNOWN_CLASS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesArrays:
    """Channels over time, oldest row first."""

    signals: npt.NDArray[np.float64]
    """Rows by channels; NaN where nothing is known."""
    answers: npt.NDArray[Any]
    """The target of each row: a number, or the code of a class (`UNKNOWN_CLASS` if it is missing)."""
    facts: SeriesFacts


def write_series(series: SeriesArrays, folder: Path) -> None:
    """Write arrays and facts into an empty folder."""
    np.save(folder / "signals.npy", series.signals, allow_pickle=False)
    np.save(folder / "answers.npy", series.answers, allow_pickle=False)
    text = jsontext.dumps(series.facts, indent=2, sort_keys=True)
    (folder / "series.json").write_text(f"{text}\n", encoding="utf-8")


def read_series(folder: Path) -> SeriesArrays:
    """Read back what `write_series` wrote."""
    return SeriesArrays(
        signals=np.load(folder / "signals.npy", allow_pickle=False),
        answers=np.load(folder / "answers.npy", allow_pickle=False),
        facts=jsontext.loads((folder / "series.json").read_text(encoding="utf-8")),
    )


PARTS: Final[tuple[PartName, ...]] = get_args(PartName)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowArrays:
    """A scaled series and the first rows of its windows, part by part."""

    signals: npt.NDArray[np.float32]
    """Rows by channels, scaled, without gaps."""
    answers: npt.NDArray[Any]
    """By row: the scaled quantity, or the code of the class."""
    starts: dict[PartName, npt.NDArray[np.int64]]
    facts: WindowFacts


def cut(series: SeriesArrays, how: WindowArgs) -> WindowArrays:
    """Divide a series in time, scale it and cut it into windows."""
    facts, rows = series.facts, len(series.signals)
    ahead = (how.horizon or 1) if facts["problem"] == "regression" else 0
    borders = _borders(rows, how)
    train = series.signals[: borders[1]]
    mean, spread = _scale(train, facts["channels"])
    filled, gaps = _filled(series.signals, mean)
    signals = ((filled - mean) / spread).astype(np.float32)
    answers = series.answers
    if facts["problem"] == "regression":
        place = facts["channels"].index(facts["target"])
        answers = ((series.answers - mean[place]) / spread[place]).astype(np.float32)
    starts = {name: _starts(borders[at], borders[at + 1], how, ahead) for at, name in enumerate(PARTS)}
    known = np.isfinite(answers) if facts["problem"] == "regression" else answers != UNKNOWN_CLASS
    answered = {name: found[_has_answer(found, known, how.window, ahead)] for name, found in starts.items()}
    _refuse_empty(answered, how, ahead, rows)
    notes = [*facts["notes"], *_notes(series, answered, starts, how, gaps)]
    return WindowArrays(
        signals=signals,
        answers=answers,
        starts=answered,
        facts=WindowFacts(
            series=facts,
            window=how.window,
            stride=how.stride,
            horizon=ahead,
            borders=borders,
            counts={name: len(found) for name, found in answered.items()},
            mean=mean.tolist(),
            spread=spread.tolist(),
            notes=notes,
        ),
    )


def write_windows(windows: WindowArrays, folder: Path) -> None:
    """Write arrays and facts into an empty folder."""
    arrays: dict[str, npt.NDArray[Any]] = {"signals": windows.signals, "answers": windows.answers}
    arrays.update((str(name), starts) for name, starts in windows.starts.items())
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    text = jsontext.dumps(windows.facts, indent=2, sort_keys=True)
    (folder / "windows.json").write_text(f"{text}\n", encoding="utf-8")


def read_windows(folder: Path) -> WindowArrays:
    """Read back what `write_windows` wrote."""
    return WindowArrays(
        signals=np.load(folder / "signals.npy", allow_pickle=False),
        answers=np.load(folder / "answers.npy", allow_pickle=False),
        starts={name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in PARTS},
        facts=jsontext.loads((folder / "windows.json").read_text(encoding="utf-8")),
    )


def _borders(rows: int, how: WindowArgs) -> list[int]:
    test = -(-rows * how.test_percent // 100)
    validation = -(-rows * how.validation_percent // 100)
    return [0, max(0, rows - test - validation), max(0, rows - test), rows]


def _scale(
    train: npt.NDArray[np.float64], channels: list[str]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    known = np.isfinite(train)
    for place, name in enumerate(channels):
        if not known[:, place].any():
            raise StageInputError(
                f"column {name!r} has no value in the training part", hint=f"leave it out: drop={name}"
            )
    mean = np.array([train[known[:, place], place].mean() for place in range(train.shape[1])])
    spread = np.array([train[known[:, place], place].std() for place in range(train.shape[1])])
    return mean, np.where(spread > 0, spread, 1.0)


def _filled(values: npt.NDArray[np.float64], mean: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
    """Fill each gap with the last value before it, or with the training mean if there is none."""
    known = np.isfinite(values)
    latest = np.maximum.accumulate(np.where(known, np.arange(len(values))[:, None], -1), axis=0)
    before = np.take_along_axis(values, np.maximum(latest, 0), axis=0)
    return np.where(latest >= 0, before, mean), int((~known).sum())


def _starts(first: int, end: int, how: WindowArgs, ahead: int) -> npt.NDArray[np.int64]:
    return np.arange(first, end - how.window - ahead + 1, how.stride, dtype=np.int64)


def _has_answer(
    starts: npt.NDArray[np.int64], known: npt.NDArray[np.bool_], window: int, ahead: int
) -> npt.NDArray[np.bool_]:
    asked = starts[:, None] + window + (np.arange(ahead) if ahead else np.array([-1]))
    return np.asarray(known[asked].all(axis=1))


def _refuse_empty(starts: dict[PartName, npt.NDArray[np.int64]], how: WindowArgs, ahead: int, rows: int) -> None:
    empty = [name for name in PARTS if len(starts[name]) == 0]
    if empty:
        length = how.window + ahead
        what = f"{how.window} + {ahead} ahead" if ahead else str(how.window)
        raise StageInputError(
            f"{rows} rows are too few for windows of {what} in every part: none in {' and '.join(empty)}",
            hint=f"each part needs {length} rows with values: use a smaller window, or other shares of rows",
        )


def _notes(
    series: SeriesArrays,
    answered: dict[PartName, npt.NDArray[np.int64]],
    starts: dict[PartName, npt.NDArray[np.int64]],
    how: WindowArgs,
    gaps: int,
) -> list[str]:
    notes = []
    if gaps:
        notes.append(f"{gaps} missing values were filled with the last known value before them.")
    left_out = sum(len(starts[name]) - len(answered[name]) for name in PARTS)
    if left_out:
        notes.append(f"{left_out} windows were left out: their target is missing.")
    classes = series.facts["classes"]
    if classes:
        seen = set(series.answers[answered["train"] + how.window - 1].tolist())
        unseen = [str(name) for code, name in enumerate(classes) if code not in seen]
        if unseen:
            notes.append(f"No training window shows {', '.join(unseen)}: a model can't know it.")
    return notes
