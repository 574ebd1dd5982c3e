"""Which column to predict, and what every other column is.

Promises: nothing here looks at relations between columns or fits anything (imputation, scaling and encoding belong to
the model's pipeline, after the split, so nothing leaks from test rows into training); every row or column that is
left out, and every value that is changed, is named in a note; classes come in one fixed order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api import types

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.schemas import Problem, TableFacts, TableOrigin
from stoker.core.text import nearest

_FEW_VALUES = 20
_ROWS_TO_KNOW_AN_IDENTIFIER = 20
_USUAL_TARGETS = ("target", "label", "class", "y", "outcome")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumnChoice:
    """What the user says about the columns."""

    target: str | None
    problem: Literal["auto", "classification", "regression"]
    drop: tuple[str, ...]


def label_table(table: pd.DataFrame, origin: TableOrigin, choice: TableColumnChoice) -> tuple[pd.DataFrame, TableFacts]:
    """Return features and an encoded target, with all that is known of them."""
    frame = table.rename(columns=str)
    names = list(frame.columns)
    target = _choose_target(names, origin, choice.target)
    _refuse_unknown(choice.drop, names, target)
    notes = list(origin["notes"])
    values, present = _usable_target(frame[target], target, notes)
    frame = frame[present].reset_index(drop=True)
    problem = _choose_problem(values, target, choice.problem, notes)
    encoded, classes = _encode_target(values, target, problem)
    features: dict[str, pd.Series[Any]] = {}
    numeric: list[str] = []
    categorical: list[str] = []
    for name in names:
        if name == target or name in choice.drop:
            continue
        column = _settle(frame[name], notes)
        if column is None:
            continue
        features[name] = column
        (numeric if types.is_numeric_dtype(column.dtype) else categorical).append(name)
    if choice.drop:
        notes.append(f"Left out on request: {_listed(choice.drop)}.")
    if not features:
        raise StageInputError("no column is left to predict from", hint="; ".join(notes))
    labelled = pd.DataFrame({**{name: features[name] for name in (*numeric, *categorical)}, target: encoded})
    _note_duplicates(labelled, notes)
    facts = TableFacts(
        origin=origin,
        problem=problem,
        target=target,
        classes=classes,
        numeric=numeric,
        categorical=categorical,
        rows=len(labelled),
        notes=notes,
    )
    return labelled, facts


def _choose_target(names: Sequence[str], origin: TableOrigin, wanted: str | None) -> str:
    target = wanted if wanted is not None else origin["target"]
    if target is None:
        lowered = {name.lower(): name for name in names}
        usual = [lowered[name] for name in _USUAL_TARGETS if name in lowered]
        raise StageInputError(
            f"which column is to be predicted? The table has {_listed(names)}",
            hint=f"say it with target={usual[0] if usual else 'COLUMN'}",
        )
    if target not in names:
        candidate = nearest(target, names)
        raise StageInputError(
            f"there is no column {target!r} to predict; the table has {_listed(names)}",
            hint=f"did you mean target={candidate}?" if candidate else "say it with target=COLUMN",
        )
    return target


def _refuse_unknown(drop: Sequence[str], names: Sequence[str], target: str) -> None:
    for name in drop:
        if name == target:
            raise StageInputError(f"column {name!r} is to be predicted and can't be dropped")
        if name not in names:
            candidate = nearest(name, names)
            raise StageInputError(
                f"there is no column {name!r} to drop; the table has {_listed(names)}",
                hint=f"did you mean {candidate!r}?" if candidate else "",
            )


def _usable_target(column: pd.Series[Any], target: str, notes: list[str]) -> tuple[pd.Series[Any], pd.Series[bool]]:
    if types.is_float_dtype(column.dtype):
        column = column.replace([np.inf, -np.inf], np.nan)
    present = column.notna()
    missing = int((~present).sum())
    if missing == len(column):
        raise StageInputError(f"column {target!r} has no value in any of the {len(column)} rows")
    if missing:
        notes.append(
            f"{_counted(missing, 'row')} of {len(column)} had no value in {target!r} and {_were(missing)} left out."
        )
    values = column[present].reset_index(drop=True)
    content = types.infer_dtype(values)
    if content == "decimal":
        values = values.astype(np.float64)
    elif content == "boolean":
        values = values.astype(bool)
    elif not all(isinstance(value, Hashable) for value in values):
        raise StageInputError(f"column {target!r} holds {type(values.iloc[0]).__name__} values, not classes or numbers")
    return values, present


def _choose_problem(
    values: pd.Series[Any], target: str, wanted: Literal["auto", "classification", "regression"], notes: list[str]
) -> Problem:
    countable = types.is_numeric_dtype(values.dtype) and not types.is_bool_dtype(values.dtype)
    distinct = int(values.nunique())
    if wanted == "regression" and not countable:
        raise StageInputError(
            f"column {target!r} holds {values.iloc[0]!r} and the like, not numbers",
            hint="problem=classification, or another target",
        )
    if wanted != "auto":
        return wanted
    if not countable:
        return "classification"
    whole = bool((values == values.round()).all())
    if whole and distinct <= min(_FEW_VALUES, len(values) // 2):
        return "classification"
    notes.append(
        f"{target!r} holds numbers with {distinct} different values, so it is predicted as a quantity (regression)."
    )
    return "regression"


def _encode_target(values: pd.Series[Any], target: str, problem: Problem) -> tuple[pd.Series[Any], list[Any]]:
    if problem == "regression":
        if (values == values.iloc[0]).all():
            raise StageInputError(f"column {target!r} has the same value in every row: nothing to predict")
        return values.astype(np.float64), []
    plain = _class_values(values)
    classes, codes = np.unique(plain, return_inverse=True)
    if len(classes) == 1:
        raise StageInputError(
            f"column {target!r} has one class, {classes[0]!s}, in all {len(values)} rows: nothing to predict",
            hint="choose another target, or add rows of another class",
        )
    if len(classes) > max(2, len(values) // 2):
        raise StageInputError(
            f"column {target!r} has {len(classes)} different values in {len(values)} rows: these are not classes",
            hint="problem=regression if they are numbers, else another target",
        )
    return pd.Series(codes.astype(np.int64)), classes.tolist()


def _class_values(values: pd.Series[Any]) -> Any:
    """Return whole numbers as integers, truth values as they are, anything else as text."""
    if types.is_bool_dtype(values.dtype):
        return values.to_numpy(dtype=bool)
    if types.is_numeric_dtype(values.dtype) and bool((values == values.round()).all()):
        return values.to_numpy(dtype=np.int64)
    return np.array([str(value) for value in values])


def _settle(column: pd.Series[Any], notes: list[str]) -> pd.Series[Any] | None:
    """Return the column as 64-bit numbers or as text, or nothing where it can't help."""
    name = str(column.name)
    if column.isna().all():
        notes.append(f"Column {name!r} is empty and was left out.")
        return None
    numbers = _as_numbers(column, notes)
    settled = numbers if numbers is not None else _as_text(column)
    if settled is None:
        content = type(column.dropna().iloc[0]).__name__
        notes.append(f"Column {name!r} holds {content} values, not numbers or text, and was left out.")
        return None
    distinct = int(settled.nunique(dropna=False))
    if distinct == 1:
        notes.append(f"Column {name!r} has one value in every row and was left out.")
        return None
    if numbers is None and distinct == len(settled) >= _ROWS_TO_KNOW_AN_IDENTIFIER:
        notes.append(f"Column {name!r} is text that differs in every row, such as an identifier, and was left out.")
        return None
    return settled


def _as_numbers(column: pd.Series[Any], notes: list[str]) -> pd.Series[Any] | None:
    name = str(column.name)
    content = types.infer_dtype(column, skipna=True)
    if content == "boolean":
        return column.map({True: 1.0, False: 0.0}).astype(np.float64)
    if content in {"integer", "floating", "mixed-integer-float", "decimal"}:
        numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
        infinite = int(np.isinf(numbers).sum())
        if infinite:
            notes.append(f"Column {name!r} has {_counted(infinite, 'infinite value')}, treated as missing.")
            numbers = numbers.replace([np.inf, -np.inf], np.nan)
        return numbers
    if content in {"timedelta", "timedelta64"}:
        notes.append(f"Column {name!r} is a duration and is used as a number of days.")
        return pd.to_timedelta(column) / pd.Timedelta(days=1)
    if content in {"datetime", "datetime64", "date"} or _all_iso_dates(column, content):
        moments = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601" if content == "string" else None)
        if moments.notna().sum() == column.notna().sum():
            notes.append(f"Column {name!r} is a date and is used as days since 1970-01-01.")
            return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return None


def _all_iso_dates(column: pd.Series[Any], content: str) -> bool:
    return content == "string" and all(_ISO_DATE.fullmatch(value) for value in column.dropna().unique())


def _as_text(column: pd.Series[Any]) -> pd.Series[Any] | None:
    present = column.notna()
    if not all(isinstance(value, str | int | float | bool) for value in column[present]):
        return None
    return column.astype(object).map(_text_of).where(present, None)


def _text_of(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def _note_duplicates(labelled: pd.DataFrame, notes: list[str]) -> None:
    repeated = int(labelled.duplicated().sum())
    if repeated:
        repeat = "repeats" if repeated == 1 else "repeat"
        notes.append(
            f"{_counted(repeated, 'row')} {repeat} an earlier row exactly: a copy may lie on both sides of the split, "
            "which flatters the scores."
        )


def _listed(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(map(str, names[:limit]))
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
