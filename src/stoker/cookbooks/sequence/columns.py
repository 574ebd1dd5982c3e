"""From a table to channels over time: the time column, the inputs, the target.

Guarantees: nothing here uses relations between rows or fits anything; every left-out column or value is in a note; the
order of classes is fixed. A predicted quantity is a channel too (its past is known when its future is predicted); a
class never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from stoker.authoring import StageInputError
from stoker.cookbooks.sequence.arrays import UNKNOWN_CLASS, SeriesArrays
from stoker.cookbooks.sequence.schemas import FileFormat, Problem, SeriesFacts, SeriesLoadArgs
from stoker.cookbooks.tabular.tables import ISO_DATE, listed
from stoker.core.text import nearest

_FEW_VALUES = 20
_EXACT = 2**53


def settle(
    table: pd.DataFrame, choice: SeriesLoadArgs, *, form: FileFormat, sha256: str | None, notes: Sequence[str]
) -> SeriesArrays:
    """Sort the rows, choose the target and use every numeric column as a channel."""
    frame = table.rename(columns=str)
    notes = list(notes)
    for name in choice.drop:
        _refuse_unknown(name, list(frame.columns))
    frame = frame.drop(columns=list(choice.drop))
    if choice.time is not None:
        _refuse_unknown(choice.time, list(frame.columns))
    frame, time = _ordered(frame, choice.time, notes)
    target = _choose_target(frame, choice.target)
    problem = _choose_problem(frame[target], choice.problem)
    names = [name for name in frame.columns if problem == "regression" or name != target]
    channels = {name: column for name in names if (column := _channel(frame[name], notes, target)) is not None}
    if not channels:
        raise StageInputError("no numeric column is left", hint="; ".join(notes))
    answers: npt.NDArray[Any]
    classes: list[Any]
    if problem == "regression":
        answers, classes = channels[target], []
    else:
        answers, classes = _codes(frame[target], notes)
    facts = SeriesFacts(
        name=choice.generated,
        format=form,
        sha256=sha256,
        rows=len(frame),
        channels=list(channels),
        target=target,
        problem=problem,
        classes=classes,
        time=time,
        notes=notes,
    )
    return SeriesArrays(signals=np.stack(list(channels.values()), axis=1), answers=answers, facts=facts)


def _ordered(frame: pd.DataFrame, wanted: str | None, notes: list[str]) -> tuple[pd.DataFrame, str | None]:
    """Sort rows by time, and remove the time column."""
    time = wanted
    if time is None:
        time = next((str(name) for name in frame.columns if _is_moment(frame[name])), None)
        if time is None:
            notes.append("No time column: rows are in the order of the file.")
            return frame, None
        notes.append(f"Column {time!r} holds dates and orders the rows.")
    moments = _moments(frame[time], time)
    missing = int(moments.isna().sum())
    if missing:
        raise StageInputError(
            f"column {time!r} orders the rows, and {missing} of {len(frame)} rows have no value in it",
            hint="fill them, or remove those rows",
        )
    if not moments.is_monotonic_increasing:
        notes.append(f"Rows were put in the order of {time!r}.")
    if moments.duplicated().any():
        notes.append(f"Some rows have the same {time!r}: they keep their order in the file.")
    order = np.argsort(moments.to_numpy(), kind="stable")
    return frame.drop(columns=time).iloc[order].reset_index(drop=True), time


def _is_moment(column: pd.Series[Any]) -> bool:
    if types.is_datetime64_any_dtype(column.dtype):
        return True
    if types.infer_dtype(column, skipna=True) != "string":
        return False
    return bool(column.notna().any()) and all(ISO_DATE.fullmatch(value) for value in column.dropna())


def _moments(column: pd.Series[Any], name: str) -> pd.Series[Any]:
    if types.is_numeric_dtype(column.dtype):
        return column
    try:
        return pd.to_datetime(column, utc=True, format="ISO8601")
    except (ValueError, TypeError) as error:
        raise StageInputError(
            f"column {name!r} holds {column.dropna().iloc[0]!r} and the like, not times",
            hint="numbers, or dates such as 2024-02-29 or 2024-02-29T13:00",
        ) from error


def _choose_target(frame: pd.DataFrame, wanted: str | None) -> str:
    names = list(frame.columns)
    if wanted is not None:
        _refuse_unknown(wanted, names)
        return wanted
    if len(names) == 1:
        return names[0]
    raise StageInputError(f"target is missing; the series has {listed(names)}", hint=f"say it with target={names[-1]}")


def _choose_problem(column: pd.Series[Any], wanted: Literal["auto", "classification", "regression"]) -> Problem:
    is_quantity = types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype)
    if wanted == "regression" and not is_quantity:
        raise StageInputError(
            f"column {column.name!r} holds {next(iter(column.dropna()), None)!r} and the like, not numbers",
            hint="problem=classification, or another target",
        )
    if wanted != "auto":
        return wanted
    known = column.dropna()
    is_few = bool((known == known.round()).all()) and known.nunique() <= _FEW_VALUES if is_quantity else True
    return "classification" if is_few else "regression"


def _channel(column: pd.Series[Any], notes: list[str], target: str) -> npt.NDArray[np.float64] | None:
    name = str(column.name)
    content = types.infer_dtype(column, skipna=True)
    if content not in {"integer", "floating", "mixed-integer-float", "decimal", "boolean"}:
        notes.append(f"Column {name!r} holds no numbers and was left out.")
        return None
    values = pd.to_numeric(column.astype(object), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    infinite = int(np.isinf(values).sum())
    if infinite:
        notes.append(f"Column {name!r} has {infinite} infinite values, treated as missing.")
        values = np.where(np.isinf(values), np.nan, values)
    known = values[np.isfinite(values)]
    if len(known) == 0 or (known == known[0]).all():
        if name == target:
            raise StageInputError(f"column {name!r} has the same value in every row: nothing to predict")
        notes.append(f"Column {name!r} never changes and was left out.")
        return None
    return values


def _codes(column: pd.Series[Any], notes: list[str]) -> tuple[npt.NDArray[np.int64], list[Any]]:
    present = column.notna().to_numpy()
    known = column[present]
    is_whole = types.is_numeric_dtype(known.dtype) and bool(((known == known.round()) & (known.abs() <= _EXACT)).all())
    plain = known.to_numpy(dtype=np.int64) if is_whole else np.array([str(value) for value in known])
    classes, codes = np.unique(plain, return_inverse=True)
    if len(classes) < 2:
        raise StageInputError(f"column {column.name!r} has {len(classes)} classes: nothing to tell apart")
    if len(classes) > max(2, len(known) // 4):
        raise StageInputError(
            f"column {column.name!r} has {len(classes)} different values in {len(known)} rows: these are not classes",
            hint="problem=regression if they are numbers, else another target",
        )
    if not present.all():
        notes.append(f"{int((~present).sum())} rows have no class: windows that end there are left out.")
    answers = np.full(len(column), UNKNOWN_CLASS, dtype=np.int64)
    answers[present] = codes
    return answers, classes.tolist()


def _refuse_unknown(name: str, names: Sequence[str]) -> None:
    if name not in names:
        candidate = nearest(name, names)
        raise StageInputError(
            f"no column {name!r}; the series has {listed(names)}",
            hint=f"did you mean {candidate!r}?" if candidate else "",
        )


# Generated series, from formulas and a fixed seed: the same numbers on every machine, with patterns to learn.


_ROWS: Final = 1_200
_SEED: Final = 20_240_229
_STATES: Final = ("idle", "running", "worn")


def generate(name: str) -> tuple[pd.DataFrame, str]:
    """Return a series by name, and its target column."""
    made = {"waves": _waves, "regimes": _regimes}[name]
    return made(np.random.default_rng(_SEED))


def _waves(random: np.random.Generator) -> tuple[pd.DataFrame, str]:
    """Return the hourly load of a small grid: a day, a week, the weather of some hours ago, and correlated noise."""
    hour = np.arange(_ROWS)
    weather = 12.0 + 6.0 * np.sin(2 * np.pi * hour / 24 - 2.0) + _lingering(random, 0.97, 0.6)
    day = np.sin(2 * np.pi * hour / 24) + 0.4 * np.sin(4 * np.pi * hour / 24 + 1.0)
    week = np.where((hour // 24) % 7 >= 5, -8.0, 0.0)
    load = 60.0 + 14.0 * day + week - 1.2 * np.roll(weather, 3) + _lingering(random, 0.6, 1.0)
    return pd.DataFrame({"load": load.round(4), "weather": weather.round(4)}), "load"


def _regimes(random: np.random.Generator) -> tuple[pd.DataFrame, str]:
    """Return a machine that changes between states with different rhythms: a single row does not show the state."""
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
