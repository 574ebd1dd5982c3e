"""Tables from files and from scikit-learn's bundled sets.

Guarantees: the format of a file is detected from its bytes, not from its name; every error states the fault and a fix;
every guess is in a note. Column types are decided later, when the target is known.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.schemas import Problem, ProblemChoice, TableFacts, TableOrigin
from stoker.core.text import first_line, nearest

_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 256 * 1024
_SAMPLE_LINES = 50
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+")
_WITH_POINT = re.compile(r"[+-]?\d*\.\d+")


def read_bundled(name: str) -> tuple[pd.DataFrame, TableOrigin]:
    """Read a set that ships inside scikit-learn; classes appear under their names."""
    from sklearn import datasets

    loaded: Any = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = loaded.frame.copy()
    names = loaded.get("target_names")
    if names is not None and not all(isinstance(value, int) or str(value).isdigit() for value in names):
        frame["target"] = [str(names[code]) for code in frame["target"]]
    rows, columns = frame.shape
    return frame, TableOrigin(
        name=name, format="bundled", sha256=None, rows=rows, columns=columns, target="target", notes=[]
    )


def read_file(path: Path, *, least_columns: int = 2) -> tuple[pd.DataFrame, TableOrigin]:
    """Read a user's CSV or Parquet file. Most tables need two columns; a series does not."""
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StageInputError(f"{path.name} can't be read: {error.strerror}") from error
    if not head:
        raise StageInputError(f"{path.name} is empty", hint="use a CSV or Parquet file with a header and rows")
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise StageInputError(f"{path.name} is {name}-compressed", hint="unpack it first")
    is_parquet = head.startswith(b"PAR1")
    frame, notes = (_read_parquet(path), []) if is_parquet else _read_csv(path, least_columns)
    if frame.shape[1] < least_columns:
        raise StageInputError(
            f"{path.name} has {'one column' if frame.shape[1] else 'no columns'}",
            hint="a table needs a column to predict and at least one to predict it from",
        )
    if len(frame) == 0:
        raise StageInputError(f"{path.name} has a header but no rows", hint="give a table with rows")
    return frame, TableOrigin(
        name=None,
        format="parquet" if is_parquet else "csv",
        sha256=digest,
        rows=len(frame),
        columns=frame.shape[1],
        target=None,
        notes=notes,
    )


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        _refuse_duplicates([str(name) for name in file.schema_arrow.names], path.name)
        frame: pd.DataFrame = file.read().to_pandas(ignore_metadata=True)
    except (pa.ArrowException, OSError) as error:
        reason = first_line(error).replace(str(path), path.name)
        raise StageInputError(f"{path.name} is not a whole Parquet file: {reason}") from error
    # An index that pandas stored as a column is not data.
    return frame.drop(columns=[name for name in frame.columns if re.fullmatch(r"__index_level_\d+__", str(name))])


def _read_csv(path: Path, least_columns: int) -> tuple[pd.DataFrame, list[str]]:
    lines = _sample_lines(path)
    delimiter, rows = _sniff(lines)
    header = [name.strip() for name in rows[0]]
    if len(header) < least_columns:
        raise StageInputError(
            f"{path.name} has one column, {header[0]!r}",
            hint="columns must be separated by a comma, semicolon, tab or | and there must be at least two",
        )
    names = [name or f"column_{position}" for position, name in enumerate(header, start=1)]
    _refuse_duplicates(names, path.name)
    decimal = _decimal_mark(delimiter, rows[1:])
    frame = _parse(path, names, delimiter, decimal)
    notes = []
    if decimal == ",":
        notes.append("Numbers were read with a decimal comma.")
    unnamed = [new for new, name in zip(names, header, strict=True) if not name]
    if unnamed[:1] == names[:1] and frame[names[0]].tolist() == list(range(len(frame))):
        frame = frame.drop(columns=names[0])
        notes.append("The first column has no name and only counts the rows; it was left out.")
    elif unnamed:
        notes.append(f"Columns without a name in the header are called {', '.join(unnamed)}.")
    return frame, notes


def _parse(path: Path, names: Sequence[str], delimiter: str, decimal: str) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            # Longer lines are only a warning of the parser, and cut; here they are a fault.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                path,
                sep=delimiter,
                decimal=decimal,
                names=list(names),
                header=0,
                index_col=False,
                encoding="utf-8-sig",
                skipinitialspace=True,
                low_memory=False,
            )
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise StageInputError(
            f"{path.name} is not a regular table: {first_line(error)}",
            hint="every line needs as many fields as the header; quote fields that contain the separator",
        ) from error


def _sample_lines(path: Path) -> list[str]:
    with path.open("rb") as stream:
        sample = stream.read(_SAMPLE_BYTES)
        cut = bool(stream.read(1))
    if b"\x00" in sample:
        raise StageInputError(f"{path.name} is neither text nor Parquet", hint="save it as CSV (UTF-8) or Parquet")
    if cut:
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    try:
        text = sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    lines = text.splitlines(keepends=True)
    if not any(line.strip() for line in lines):
        raise StageInputError(f"{path.name} is empty", hint="use a CSV or Parquet file with a header and rows")
    return lines


def _sniff(lines: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Return the separator with which most sampled lines have as many fields as the header."""
    best: tuple[float, int] = (-1.0, 0)
    chosen = ","
    chosen_rows: list[list[str]] = []
    for delimiter in _DELIMITERS:
        rows = [row for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row][:_SAMPLE_LINES]
        width = len(rows[0])
        agreeing = sum(len(row) == width for row in rows) / len(rows) if width > 1 else 0.0
        if (agreeing, width) > best:
            best, chosen, chosen_rows = (agreeing, width), delimiter, rows
    return chosen, chosen_rows


def _decimal_mark(delimiter: str, rows: Sequence[Sequence[str]]) -> str:
    if delimiter == ",":
        return "."
    fields = [field.strip() for row in rows for field in row]
    has_comma = any(_WITH_COMMA.fullmatch(field) for field in fields)
    has_point = any(_WITH_POINT.fullmatch(field) for field in fields)
    return "," if has_comma and not has_point else "."


def _refuse_duplicates(names: Sequence[str], file_name: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise StageInputError(
            f"{file_name} has more than one column named {', '.join(map(repr, repeated))}",
            hint="give every column its own name",
        )


def _not_utf8(path: Path) -> StageInputError:
    content = path.read_bytes()
    where = ""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f" (byte 0x{content[error.start]:02x} in line {line})"
    return StageInputError(
        f"{path.name} is not UTF-8 text{where}",
        hint="save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 OLD > NEW",
    )


# The target, and the types of all other columns.
#
# Guarantees: nothing here uses relations between columns or fits anything (imputation, scaling and encoding are in the
# model's pipeline, after the split, so nothing leaks from test rows into training); every left-out row or column and
# every changed value is in a note; the order of classes is fixed.


_FEW_VALUES = 20
_ROWS_TO_KNOW_AN_IDENTIFIER = 20
_USUAL_TARGETS = ("target", "label", "class", "y", "outcome")
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")


def label_table(
    table: pd.DataFrame,
    origin: TableOrigin,
    *,
    target: str | None,
    problem: ProblemChoice,
    drop: tuple[str, ...],
) -> tuple[pd.DataFrame, TableFacts]:
    """Return features and an encoded target, with their facts."""
    frame = table.rename(columns=str)
    names = list(frame.columns)
    target = _choose_target(names, target if target is not None else origin["target"])
    _refuse_unknown(drop, names, target)
    notes = list(origin["notes"])
    values, present = _usable_target(frame[target], target, notes)
    frame = frame[present].reset_index(drop=True)
    problem = _choose_problem(values, target, problem, notes)
    encoded, classes = _encode_target(values, target, problem)
    features: dict[str, pd.Series[Any]] = {}
    numeric: list[str] = []
    categorical: list[str] = []
    for name in names:
        if name == target or name in drop:
            continue
        column = _settle(frame[name], notes)
        if column is None:
            continue
        features[name] = column
        (numeric if types.is_numeric_dtype(column.dtype) else categorical).append(name)
    if drop:
        notes.append(f"Left out on request: {listed(drop)}.")
    if not features:
        raise StageInputError("no column is left to predict from", hint="; ".join(notes))
    labelled = pd.DataFrame({**{name: features[name] for name in (*numeric, *categorical)}, target: encoded})
    repeated = int(labelled.duplicated().sum())
    if repeated:
        notes.append(
            f"{_counted(repeated, 'row')} {'repeats' if repeated == 1 else 'repeat'} an earlier row exactly: a copy "
            "may lie on both sides of the split, which flatters the scores."
        )
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


def _choose_target(names: Sequence[str], target: str | None) -> str:
    if target is None:
        lowered = {name.lower(): name for name in names}
        usual = [lowered[name] for name in _USUAL_TARGETS if name in lowered]
        raise StageInputError(
            f"target is missing; the table has {listed(names)}",
            hint=f"use target={usual[0] if usual else 'COLUMN'}",
        )
    if target not in names:
        candidate = nearest(target, names)
        raise StageInputError(
            f"no column {target!r}; the table has {listed(names)}",
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
                f"no column {name!r} to drop; the table has {listed(names)}",
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
            f"{_counted(missing, 'row')} of {len(column)} had no value in {target!r} and "
            f"{'was' if missing == 1 else 'were'} left out."
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


def _choose_problem(values: pd.Series[Any], target: str, wanted: ProblemChoice, notes: list[str]) -> Problem:
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
    """Return whole numbers as integers, booleans unchanged, anything else as text."""
    if types.is_bool_dtype(values.dtype):
        return values.to_numpy(dtype=bool)
    if types.is_numeric_dtype(values.dtype) and bool((values == values.round()).all()):
        return values.to_numpy(dtype=np.int64)
    return np.array([str(value) for value in values])


def _settle(column: pd.Series[Any], notes: list[str]) -> pd.Series[Any] | None:
    """Return the column as 64-bit numbers or as text; None if it is useless."""
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
    is_iso_text = content == "string" and all(ISO_DATE.fullmatch(value) for value in column.dropna().unique())
    if is_iso_text or content in {"datetime", "datetime64", "date"}:
        moments = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601" if content == "string" else None)
        if moments.notna().sum() == column.notna().sum():
            notes.append(f"Column {name!r} is a date and is used as days since 1970-01-01.")
            return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return None


def _as_text(column: pd.Series[Any]) -> pd.Series[Any] | None:
    present = column.notna()
    if not all(isinstance(value, str | int | float | bool) for value in column[present]):
        return None
    return column.astype(object).map(_text_of).where(present, None)


def _text_of(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(map(str, names[:limit]))
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
