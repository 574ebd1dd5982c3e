"""Rows of tables: CSV and TSV files line by line, Parquet files batch by batch, as maps from a column to its value.

Only the columns that are needed are read. A value is bounded like a line of JSON; what is wrong with one row is
returned in its place, and what is wrong with a file as a whole is raised.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.authoring import StageInputError
from stoker.core.text import first_line, format_size

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[int, Mapping[str, Any] | str]
"""The number of a row, and its values or its fault."""
ColumnChoice = Callable[[Sequence[str]], Mapping[str, str]]
"""Returns the column of each part of an example, from all columns. Raises `StageInputError`."""

LONGEST_VALUE: Final = 16 * 1024 * 1024
_LONGEST_ROW = 4 * LONGEST_VALUE
_ROWS_AT_ONCE, _LEAST_ROWS = 256, 4
_BATCH_BYTES = 64 * 1024 * 1024
_ROWS_ONCE, _MOST_ONCE_BYTES = 1024, 128 * 1024 * 1024
"""For columns of which equal values are read once: 32 MiB of texts took 107 MiB."""
_VALUE_BYTES = 32
"""Memory of a value beside its bytes, also of one that is missing: 26 bytes were measured in lists of texts."""
_ROLES = frozenset({"role", "from"})
"""Keys of a message."""
_DELIMITERS = ",;\t"
_QUOTE_HINT = "a quote inside a value is written twice"


class CsvLines:
    """The lines of a text file for the csv module; lines that are no text are noted, and replaced."""

    def __init__(self, lines: Iterator[tuple[int, str, str]]) -> None:
        self._lines = lines
        self.number = 0
        """The number of the last line that was read."""
        self._faults: list[tuple[int, str]] = []
        self._left = _LONGEST_ROW

    def __iter__(self) -> Iterator[str]:
        for number, text, fault in self._lines:
            self.number = number
            self._left -= len(text)
            if self._left < 0:
                # Quotes join lines: a file may be one row of any number of values.
                raise csv.Error("field limit of a row")
            if fault:
                self._faults.append((number, fault))
            yield text

    def taken_faults(self) -> list[tuple[int, str]]:
        """Return the faults of the lines since the last call."""
        self._left = _LONGEST_ROW
        taken, self._faults = self._faults, []
        return taken


def csv_rows(name: str, lines: CsvLines, choose: ColumnChoice, delimiter: str = "") -> Iterator[Row]:
    """Return the rows below the header, each with the number of its first line. An empty delimiter is detected."""
    texts = iter(lines)
    head = next(texts, "")
    sign = delimiter or max(_DELIMITERS, key=head.count)
    # The default refuses values that are longer than 128 KiB.
    csv.field_size_limit(LONGEST_VALUE)
    rows = csv.reader(chain([head], texts), delimiter=sign, strict=True)
    try:
        names = [one.strip() for one in next(rows, [])]
    except csv.Error as error:
        raise StageInputError(f"{name}:1: {_csv_fault(error)}", hint=_QUOTE_HINT) from None
    _refuse_columns(f"{name}:1", names)
    columns = choose(names)
    places = {part: names.index(column) for part, column in columns.items()}
    while True:
        first = lines.number + 1
        row = _next_row(rows, len(names))
        yield from lines.taken_faults()
        if row is None:
            return
        if isinstance(row, str):
            yield first, row
        elif row:
            yield first, _read_conversations({part: row[place] for part, place in places.items()})


def _next_row(rows: Iterator[list[str]], columns: int) -> list[str] | str | None:
    """Return the values of the next row, empty for an empty line, or its fault; None after the last."""
    try:
        values = next(rows)
    except StopIteration:
        return None
    except csv.Error as error:
        return f"{_csv_fault(error)}; {_QUOTE_HINT}"
    if values and len(values) != columns:
        return f"it has {len(values):,} value{'' if len(values) == 1 else 's'}; the header has {columns:,} columns"
    return values


def _csv_fault(error: csv.Error) -> str:
    if "field limit" in str(error):
        return f"a value is longer than {LONGEST_VALUE >> 20} MiB: is a quote not closed?"
    return "a quote is not closed" if "end of data" in str(error) else str(error)


def _read_conversations(values: dict[str, Any]) -> Mapping[str, Any] | str:
    """Return the values with conversations read from their texts: a table of text holds them as JSON."""
    if "rejected" in values:
        return {part: _conversation_in(value) or value for part, value in values.items()}
    text = values.get("messages")
    if not isinstance(text, str):
        return values
    try:
        return {**values, "messages": json.loads(text)}
    except (ValueError, RecursionError):
        return "messages is no JSON list"


def _conversation_in(value: Any) -> list[Any] | None:
    """Return the messages in a text of a pair; None if it is another text, perhaps another list."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    is_conversation = all(isinstance(one, dict) and not _ROLES.isdisjoint(one) for one in found)
    return found if is_conversation else None


def parquet_rows(path: Path, choose: ColumnChoice, most_bytes: int) -> Iterator[Row]:
    """Return the rows of a Parquet file, numbered from 1; only the chosen columns are read, some rows at a time.

    Raises `StageInputError` if the file is damaged, or its values take more than `most_bytes`: a few bytes can stand
    for any number of equal values.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        _refuse_columns(path.name, schema.names)
        columns = choose(schema.names)
        for part, column in columns.items():
            _refuse_type(path.name, part, column, schema.field(column).type)
        leaves = _leaves(metadata, frozenset(columns.values()))
        sizes = list(_stated_sizes(metadata, leaves)) or [0]
        if max(sizes) > most_bytes or _stated_values(metadata, leaves) * _VALUE_BYTES > most_bytes:
            raise unpacks_to_more(path.name, most_bytes)
        # Equal values are stored once, and any of them may be as large as all that is stored.
        at_once = max(_LEAST_ROWS, min(_ROWS_AT_ONCE, _BATCH_BYTES // max(1, *sizes)))
        repeated = _in_lists(metadata, leaves) if max(sizes) <= _MOST_ONCE_BYTES else []
        if repeated:
            at_once = _ROWS_ONCE
        # Without a buffer of whole row groups: pages are read as they are needed.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, read_dictionary=repeated) as file:
            number = read_bytes = 0
            for batch in file.iter_batches(at_once, columns=list(columns.values()), use_threads=False):
                for part in _parts(batch):
                    part_bytes = sum(map(_size_of, part.columns))
                    read_bytes += part_bytes
                    if read_bytes > most_bytes:
                        raise unpacks_to_more(path.name, most_bytes)
                    first, number = number + 1, number + part.num_rows
                    if part_bytes > _LONGEST_ROW:
                        yield first, f"it is longer than {_LONGEST_ROW >> 20} MiB"
                        continue
                    plain = [_expanded(part.column(one), schema.field(one).type) for one in columns.values()]
                    for place, row in enumerate(zip(*plain, strict=True), first):
                        yield place, _row({name: one.as_py() for name, one in zip(columns, row, strict=True)})
    except (pa.ArrowException, OSError, MemoryError) as error:
        reason = first_line(error).replace(str(path), path.name)
        raise StageInputError(f"{path.name} is not a whole Parquet file: {reason}", hint="copy it again") from error


def _leaves(metadata: Any, columns: Collection[str]) -> list[int]:
    """Return the numbers of the stored columns that the chosen ones are made of."""
    paths = {number: metadata.schema.column(number).path for number in range(metadata.num_columns)}
    return [number for number, path in paths.items() if path.split(".", 1)[0] in columns or path in columns]


def _stated_sizes(metadata: Any, leaves: Sequence[int]) -> Iterator[int]:
    """Return the bytes of each part of some stored columns, as the file states them."""
    for group in range(metadata.num_row_groups):
        for number in leaves:
            yield metadata.row_group(group).column(number).total_uncompressed_size


def _stated_values(metadata: Any, leaves: Sequence[int]) -> int:
    """Return the number of values of the stored column that has the most, as the file states it."""
    groups = range(metadata.num_row_groups)
    counts = (sum(metadata.row_group(group).column(number).num_values for group in groups) for number in leaves)
    return max(counts, default=0)


def _in_lists(metadata: Any, leaves: Sequence[int]) -> list[str]:
    """Return the stored columns with texts of lists: a list may have one text any number of times.

    They are read as they are stored, each text once.
    """
    stored = [metadata.schema.column(number) for number in leaves]
    return [one.path for one in stored if one.max_repetition_level and one.physical_type == "BYTE_ARRAY"]


def _expanded(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values as their file states them, equal ones as often as they are there: rows are taken from it faster."""
    import pyarrow as pa

    try:
        return values if values.type == kind else values.cast(kind)
    except pa.ArrowNotImplementedError:
        return values


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return some rows as they are if they are small, otherwise one by one."""
    if sum(map(_size_of, batch.columns)) <= _BATCH_BYTES:
        yield batch
        return
    for number in range(batch.num_rows):
        yield batch.slice(number, 1)


def _size_of(values: pa.Array) -> int:
    """Return about how many bytes the values of a column take, each of equal ones counted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type):
        lengths = pc.binary_length(values.dictionary)
        size: int = pc.sum(lengths.take(values.indices)).as_py() or 0
        return len(values) + size
    if isinstance(values, pa.StructArray):
        return len(values) + sum(map(_size_of, values.flatten()))
    if isinstance(values, pa.ListArray | pa.LargeListArray):
        begin, end = (values.offsets[at].as_py() for at in (0, len(values)))
        return len(values) + _size_of(values.values[begin:end])
    if isinstance(values, pa.FixedSizeListArray):
        return len(values) + _size_of(values.flatten())
    size = values.nbytes
    return len(values) + size


def _row(values: dict[str, Any]) -> Mapping[str, Any] | str:
    for part, value in values.items():
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            return f"{part} is longer than {LONGEST_VALUE >> 20} MiB"
    return _read_conversations(values)


def unpacks_to_more(name: str, most_bytes: int) -> StageInputError:
    """Return the error for a file whose content is much larger than it is."""
    message = f"{name} unpacks to more than {format_size(most_bytes)}, the maximum for a file of its size"
    return StageInputError(message, hint="if its content is right, write it as JSONL")


def _refuse_columns(where: str, names: Sequence[str]) -> None:
    """Raise `StageInputError` if a header is no list of different names."""
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise StageInputError(f"{where}: duplicate column {twice[0][:40]!r}", hint="rename one of them")
    if not any(names):
        raise StageInputError(f"{where}: there are no columns", hint="the first line has the names of the columns")


def _refuse_type(name: str, part: str, column: str, kind: pa.DataType) -> None:
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(inner) or pa.types.is_large_string(inner) or str(inner) == "string_view"
    is_list = pa.types.is_list(inner) or pa.types.is_large_list(inner)
    # A pair may be of texts or of conversations.
    may_be_list = part in {"messages", "prompt", "chosen", "rejected"}
    if is_text or (may_be_list and is_list):
        return
    wanted = "a list of messages" if part == "messages" else "text"
    raise StageInputError(
        f"{name}: column {column[:40]!r} has {str(kind)[:80]}, not {wanted}", hint="choose another column"
    )
