"""Series made from formulas and a fixed seed: the same numbers on every machine, with something in them to learn."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

_ROWS: Final = 1_200
_SEED: Final = 20_240_229
_STATES: Final = ("idle", "running", "worn")


def generate(name: str) -> tuple[pd.DataFrame, str]:
    """Return a series by name, and the column that it is meant to predict."""
    made = {"waves": _waves, "regimes": _regimes}[name]
    return made(np.random.default_rng(_SEED))


def _waves(random: np.random.Generator) -> tuple[pd.DataFrame, str]:
    """The load of a small grid by the hour: a day, a week, the weather of some hours ago, and noise that lingers."""
    hour = np.arange(_ROWS)
    weather = 12.0 + 6.0 * np.sin(2 * np.pi * hour / 24 - 2.0) + _lingering(random, 0.97, 0.6)
    day = np.sin(2 * np.pi * hour / 24) + 0.4 * np.sin(4 * np.pi * hour / 24 + 1.0)
    week = np.where((hour // 24) % 7 >= 5, -8.0, 0.0)
    load = 60.0 + 14.0 * day + week - 1.2 * np.roll(weather, 3) + _lingering(random, 0.6, 1.0)
    return pd.DataFrame({"load": load.round(4), "weather": weather.round(4)}), "load"


def _regimes(random: np.random.Generator) -> tuple[pd.DataFrame, str]:
    """A machine that changes between states, known by its rhythm: no single row tells them apart."""
    states = np.zeros(_ROWS, dtype=np.int64)
    row = 0
    while row < _ROWS:
        length = int(random.integers(25, 70))
        states[row : row + length] = random.choice([one for one in range(3) if row == 0 or one != states[row - 1]])
        row += length
    turns = np.cumsum(2 * np.pi / np.array([24.0, 8.0, 4.0])[states])
    strength = np.array([1.0, 1.3, 1.0])[states]
    frame = pd.DataFrame(
        {
            "vibration": (strength * np.sin(turns) + random.normal(0, 0.35, _ROWS)).round(4),
            "current": (strength * np.cos(turns + 0.5) + random.normal(0, 0.35, _ROWS)).round(4),
            "state": np.array(_STATES)[states],
        }
    )
    return frame, "state"


def _lingering(random: np.random.Generator, memory: float, spread: float) -> Any:
    noise = random.normal(0.0, spread, _ROWS)
    for row in range(1, _ROWS):
        noise[row] += memory * noise[row - 1]
    return noise
