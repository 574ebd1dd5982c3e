"""Backups: all rows of a queue in one file that any database of ours can be filled from.

Lines of JSON, compressed: a head, then for each table its columns and its rows, then an end with the number of rows and
the SHA-256 of everything before it. A file without its end, or with another digest, is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sqlalchemy import Connection, Select, String, Table, collate, func, select

from stoker.coordinator.database.migrating import HEAD
from stoker.coordinator.database.tables import META, METADATA
from stoker.model.errors import Damaged, LocalFile
from stoker.model.fleet_errors import VersionSkew
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads

FORMAT = "stoker-backup"
VERSION = 1
TABLES: tuple[Table, ...] = tuple(METADATA.sorted_tables)
"""What is pointed at before what points at it."""
_TOGETHER = 2000
_QUICK = 1
_MAGIC = b"\x1f\x8b"

Progress = Callable[[int, int], None]
"""Called with how many rows are done, of how many."""


def no_progress(_done: int, _total: int) -> None:
    """Nobody watches."""


@frozen
class Head:
    """What a backup says of itself."""

    made_s: float
    schema: str
    """The step that its tables are at."""
    database: str
    """What it was made from: sqlite or postgresql."""
    generation: int
    rows: dict[str, int]
    """By table."""

    @property
    def total(self) -> int:
        return sum(self.rows.values())


def write_backup(connection: Connection, file: BinaryIO, *, made_s: float, progress: Progress = no_progress) -> Head:
    """Write everything that a connection sees; it must see one moment."""
    head = Head(
        made_s=made_s,
        schema=HEAD,
        database=connection.dialect.name,
        generation=int(connection.scalar(select(META.c.value).where(META.c.key == "generation")) or 0),
        rows={table.name: int(connection.scalar(select(func.count()).select_from(table)) or 0) for table in TABLES},
    )
    digest = hashlib.sha256()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_QUICK, mtime=0) as packed:

        def put(line: object) -> None:
            data = dumps(line).encode() + b"\n"
            digest.update(data)
            packed.write(data)

        put({"format": FORMAT, "v": VERSION, **_head_fields(head)})
        done = 0
        for table in TABLES:
            put({"table": table.name, "columns": list(table.columns.keys())})
            for rows in _rows(connection, table):
                for row in rows:
                    put(row)
                done += len(rows)
                progress(done, head.total)
        packed.write(dumps({"end": done, "sha256": digest.hexdigest()}).encode() + b"\n")
    return head


class Backup:
    """A backup that is read again. Its rows count only once all of them were read: the digest stands at the end."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._name = name
        self._digest = hashlib.sha256()
        if file.read(len(_MAGIC)) != _MAGIC:
            raise self._something_else()
        file.seek(0)
        self._packed = gzip.GzipFile(fileobj=file, mode="rb")
        self.head = self._read_head()

    def tables(self) -> Iterator[tuple[Table, Iterator[list[dict[str, Any]]]]]:
        """Give each table with its rows, some at a time; ends with an error if anything is not as it was written."""
        known = {table.name: table for table in TABLES}
        line = self._line()
        done = 0
        while isinstance(line, dict) and "table" in line:
            table = known.get(line["table"])
            if table is None or not set(line["columns"]) <= set(table.columns.keys()):
                raise self._damaged(f"a table that is not ours: {line['table']!r}")
            rest = _Rows(self, line["columns"])
            yield table, iter(rest)
            for _ in rest:
                pass
            done += rest.count
            line = rest.after
        if not isinstance(line, dict) or line.get("end") != done or done != self.head.total:
            raise self._damaged("it has no end, or not all of its rows")
        if line["sha256"] != self._before_end:
            raise self._damaged("its digest is another one than when it was written")

    def _line(self) -> Any:
        """Read the next line; what was hashed before it is what the end vouches for."""
        self._before_end = self._digest.hexdigest()
        try:
            data = self._packed.readline()
            if not data.endswith(b"\n"):
                raise self._damaged("it breaks off")
            self._digest.update(data)
            return loads(data)
        except (EOFError, OSError, zlib.error, ValueError) as error:
            raise self._damaged(str(error) or type(error).__name__) from error

    def _read_head(self) -> Head:
        line = self._line()
        if not isinstance(line, dict) or line.get("format") != FORMAT:
            raise self._something_else()
        if line["v"] != VERSION or line["schema"] > HEAD:
            raise VersionSkew(
                f"{self._name} was made by a newer Stoker (its tables are at {line['schema']})", hint="use that program"
            )
        return Head(**{name: line[name] for name in _head_fields(None)})

    def _something_else(self) -> LocalFile:
        return LocalFile(f"{self._name} is no backup of a queue", hint="`stoker admin db backup` makes one")

    def _damaged(self, why: str) -> Damaged:
        return Damaged(f"{self._name} is damaged: {why}", hint="take another backup; nothing was changed")


class _Rows:
    """The rows of one table, some at a time; `after` is the line that follows them."""

    def __init__(self, backup: Backup, columns: list[str]) -> None:
        self._backup = backup
        self._columns = columns
        self.count = 0
        self.after: Any = None
        self._rest = self._read()

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        return self._rest

    def _read(self) -> Iterator[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        while isinstance(line := self._backup._line(), list):  # noqa: SLF001 - a part of the same reader
            if len(line) != len(self._columns):
                raise self._backup._damaged("a row of another length")  # noqa: SLF001
            rows.append(dict(zip(self._columns, line, strict=True)))
            self.count += 1
            if len(rows) == _TOGETHER:
                yield rows
                rows = []
        self.after = line
        if rows:
            yield rows


def table_digests(connection: Connection) -> dict[str, tuple[int, str]]:
    """Give how many rows each table has and a digest of them, the same for the same rows in every sort of database."""
    digests: dict[str, tuple[int, str]] = {}
    for table in TABLES:
        digest, count = hashlib.sha256(), 0
        for rows in _rows(connection, table):
            count += len(rows)
            for row in rows:
                digest.update(dumps(row).encode() + b"\n")
        digests[table.name] = (count, digest.hexdigest())
    return digests


def _rows(connection: Connection, table: Table) -> Iterator[list[list[Any]]]:
    """Give a table's rows in the order of its key, some at a time, never all at once."""
    found = connection.execution_options(yield_per=_TOGETHER).execute(_in_order(connection, table))
    for rows in found.partitions():
        yield [list(row) for row in rows]


def _in_order(connection: Connection, table: Table) -> Select[Any]:
    keys: list[Any] = list(table.primary_key.columns)
    if connection.dialect.name == "postgresql":
        # By bytes, as SQLite orders: not by the rules of some language.
        keys = [collate(key, "C") if isinstance(key.type, String) else key for key in keys]
    return select(table).order_by(*keys)


def _head_fields(head: Head | None) -> dict[str, Any]:
    names = ("made_s", "schema", "database", "generation", "rows")
    return {name: getattr(head, name, None) for name in names}
