"""Tables out of files and out of scikit-learn's bundled sets.

Promises: what a file is follows from its bytes, not from its name (two names for the same bytes give the same table);
every refusal says what is wrong with the file and what to do; a reading that guessed something says so in a note.
Column types are settled later, when it is known which column is the target.
"""

from __future__ import annotations

import csv
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.schemas import TableOrigin
from stoker.core.text import first_line

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
    return frame, _origin(frame, name=name, kind="bundled", target="target", notes=[])


def read_file(path: Path, *, least_columns: int = 2) -> tuple[pd.DataFrame, TableOrigin]:
    """Read a CSV or Parquet file of the user's. Most tables make no sense with one column; a series does."""
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
            digest = hashlib.file_digest(_rewound(stream), "sha256").hexdigest()
    except OSError as error:
        raise StageInputError(f"{path.name} can't be read: {error.strerror}") from error
    if not head:
        raise StageInputError(f"{path.name} is empty", hint="give a CSV or Parquet file with a header and rows")
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise StageInputError(f"{path.name} is {name}-compressed", hint="unpack it first")
    if head.startswith(b"PAR1"):
        frame, notes = _read_parquet(path), list[str]()
        origin = _origin(frame, kind="parquet", sha256=digest, notes=notes)
    else:
        frame, notes = _read_csv(path, least_columns)
        origin = _origin(frame, kind="csv", sha256=digest, notes=notes)
    _refuse_unusable(frame, path.name, least_columns)
    return frame, origin


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
            # Lines longer than the header are only warned about, and cut; here they are a fault.
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
        raise StageInputError(f"{path.name} is empty", hint="give a CSV or Parquet file with a header and rows")
    return lines


def _sniff(lines: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Choose the separator under which most sampled lines have as many fields as the header."""
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


def _refuse_unusable(frame: pd.DataFrame, file_name: str, least_columns: int) -> None:
    if frame.shape[1] < least_columns:
        raise StageInputError(
            f"{file_name} has {'one column' if frame.shape[1] else 'no columns'}",
            hint="a table needs a column to predict and at least one to predict it from",
        )
    if len(frame) == 0:
        raise StageInputError(f"{file_name} has a header but no rows", hint="give a table with rows")


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


def _origin(
    frame: pd.DataFrame,
    *,
    kind: Any,
    notes: list[str],
    name: str | None = None,
    sha256: str | None = None,
    target: str | None = None,
) -> TableOrigin:
    rows, columns = frame.shape
    return TableOrigin(name=name, format=kind, sha256=sha256, rows=rows, columns=columns, target=target, notes=notes)


def _rewound(stream: Any) -> Any:
    stream.seek(0)
    return stream
