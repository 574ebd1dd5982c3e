"""A series as arrays, and the folder it travels in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.cookbooks.sequence.records import SeriesFacts
from stoker.model import json_text

UNKNOWN_CLASS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Channels over time, oldest row first."""

    signals: npt.NDArray[np.float64]
    """Rows by channels; NaN where nothing is known."""
    answers: npt.NDArray[Any]
    """What each row's answer is: a number, or the code of a class (`UNKNOWN_CLASS` where it is missing)."""
    facts: SeriesFacts


def write_series(series: Series, folder: Path) -> None:
    """Write arrays and facts into an empty folder."""
    np.save(folder / "signals.npy", series.signals, allow_pickle=False)
    np.save(folder / "answers.npy", series.answers, allow_pickle=False)
    text = json_text.dumps(series.facts, indent=2, sort_keys=True)
    (folder / "series.json").write_text(f"{text}\n", encoding="utf-8")


def read_series(folder: Path) -> Series:
    """Read back what `write_series` wrote."""
    return Series(
        signals=np.load(folder / "signals.npy", allow_pickle=False),
        answers=np.load(folder / "answers.npy", allow_pickle=False),
        facts=json_text.loads((folder / "series.json").read_text(encoding="utf-8")),
    )
