"""Backups: all rows of a queue in one file that any database of ours can be filled from.

Lines of JSON, compressed: a head, then for each table its columns and its rows, then an end with the number of rows and
the SHA-256 of everything before it. A file without its end, or with another digest, is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sqlalchemy import (
    Connection,
    Select,
    String,
    Table,
    collate,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)

from stoker.coordinator.database.database import Database, DatabaseKind, PreparedStatement, WriterConnection, snapshot
from stoker.coordinator.database.migrate import HEAD
from stoker.coordinator.database.tables import (
    ATTEMPTS,
    BUNDLES,
    CLAIMS,
    EVENTS,
    INVITES,
    JOBS,
    LEASES,
    MACHINES,
    META,
    METADATA,
    POOLS,
    SUBMISSIONS,
)
from stoker.core.clock import Clock
from stoker.core.errors import Conflict, Damaged, LocalFile, VersionSkew
from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import writing

FORMAT = "stoker-backup"
VERSION = 1
TABLES: tuple[Table, ...] = tuple(METADATA.sorted_tables)
"""Referenced tables come first."""
_TOGETHER = 2000
_QUICK = 1
_MAGIC = b"\x1f\x8b"

Progress = Callable[[int, int], None]
"""Called with how many rows are done, of how many."""


def no_progress(_done: int, _total: int) -> None:
    """Report no progress."""


@frozen
class BackupHeader:
    """The header of a backup."""

    made_s: float
    schema: str
    """Version of its tables."""
    database: str
    """Its source: sqlite or postgresql."""
    generation: int
    rows: dict[str, int]
    """By table."""

    @property
    def total(self) -> int:
        return sum(self.rows.values())


def write_backup(
    connection: Connection, file: BinaryIO, *, made_s: float, progress: Progress = no_progress
) -> BackupHeader:
    """Write all rows of a connection, which must have a snapshot."""
    head = BackupHeader(
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
    """A backup file. Its rows are valid only once all of them were read: the digest is at the end."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._name = name
        self._digest = hashlib.sha256()
        if file.read(len(_MAGIC)) != _MAGIC:
            raise self._something_else()
        file.seek(0)
        self._packed = gzip.GzipFile(fileobj=file, mode="rb")
        self.head = self._read_head()

    def tables(self) -> Iterator[tuple[Table, Iterator[list[dict[str, Any]]]]]:
        """Yield each table with its rows, some at a time. Raises `Damaged` at the end if anything differs."""
        known = {table.name: table for table in TABLES}
        line = self._line()
        done = 0
        while isinstance(line, dict) and "table" in line:
            table = known.get(line["table"])
            if table is None or not set(line["columns"]) <= set(table.columns.keys()):
                raise self._damaged(f"unknown table {line['table']!r}")
            rest = _Rows(self, line["columns"])
            yield table, iter(rest)
            for _ in rest:
                pass
            done += rest.count
            line = rest.after
        if not isinstance(line, dict) or line.get("end") != done or done != self.head.total:
            raise self._damaged("the end or some rows are missing")
        if line["sha256"] != self._before_end:
            raise self._damaged("its digest does not match")

    def _line(self) -> Any:
        """Return the next line; the digest before it is the one in the last line."""
        self._before_end = self._digest.hexdigest()
        try:
            data = self._packed.readline()
            if not data.endswith(b"\n"):
                raise self._damaged("truncated")
            self._digest.update(data)
            return loads(data)
        except (EOFError, OSError, zlib.error, ValueError) as error:
            raise self._damaged(str(error) or type(error).__name__) from error

    def _read_head(self) -> BackupHeader:
        line = self._line()
        if not isinstance(line, dict) or line.get("format") != FORMAT:
            raise self._something_else()
        if line["v"] != VERSION or line["schema"] > HEAD:
            raise VersionSkew(
                f"{self._name} was made by a newer Stoker (its tables are at {line['schema']})", hint="use that program"
            )
        return BackupHeader(**{name: line[name] for name in _head_fields(None)})

    def _something_else(self) -> LocalFile:
        return LocalFile(f"{self._name} is not a backup of a queue", hint="make one: `stoker admin db backup`")

    def _damaged(self, why: str) -> Damaged:
        return Damaged(f"{self._name} is damaged: {why}", hint="use another backup; nothing was changed")


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
                raise self._backup._damaged("a row of wrong length")  # noqa: SLF001
            rows.append(dict(zip(self._columns, line, strict=True)))
            self.count += 1
            if len(rows) == _TOGETHER:
                yield rows
                rows = []
        self.after = line
        if rows:
            yield rows


def table_digests(connection: Connection) -> dict[str, tuple[int, str]]:
    """Return the number of rows of each table and their digest, equal for equal rows in every kind of database."""
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
    """Return a table's rows in the order of its key, some at a time, never all at once."""
    found = connection.execution_options(yield_per=_TOGETHER).execute(_in_order(connection, table))
    for rows in found.partitions():
        yield [list(row) for row in rows]


def _in_order(connection: Connection, table: Table) -> Select[Any]:
    keys: list[Any] = list(table.primary_key.columns)
    if connection.dialect.name == "postgresql":
        # By bytes, like SQLite, not by a locale.
        keys = [collate(key, "C") if isinstance(key.type, String) else key for key in keys]
    return select(table).order_by(*keys)


def _head_fields(head: BackupHeader | None) -> dict[str, Any]:
    names = ("made_s", "schema", "database", "generation", "rows")
    return {name: getattr(head, name, None) for name in names}


# Back up a queue while it is served: a snapshot, in one file, durably.


def back_up(database: Database, path: str, *, clock: Clock, progress: Progress = no_progress) -> BackupHeader:
    """Write a backup. The file is replaced atomically, and durable on return.

    It has no bytes of results: these are in the object store, under their digests.
    """
    with writing(path, mode=0o600) as file, snapshot(database) as connection:
        return write_backup(connection, file, made_s=clock.wall_s(), progress=progress)


# Fill a database from a backup's rows, in one transaction.

_MEANT = (JOBS, ATTEMPTS, BUNDLES, SUBMISSIONS)
"""Tables with users' work; a coordinator fills the others by itself."""


def refuse_if_used(database: Database, connection: WriterConnection) -> None:
    """Raise `Conflict` if a database has jobs or results."""
    for table in _MEANT:
        counted = PreparedStatement(select(func.count()).select_from(table), database.dialect)
        count = connection.read(counted)[0][0]
        if count:
            raise Conflict(
                f"{database.shown} is not empty: {count} rows in {table.name}",
                hint="back it up first, then use --replace; or name an empty database",
                table=table.name,
                rows=count,
            )


def generation_of(database: Database, connection: WriterConnection) -> int:
    """Return the generation of a database."""
    asked = PreparedStatement(select(META.c.value).where(META.c.key == "generation"), database.dialect)
    rows = connection.read(asked)
    return int(rows[0][0]) if rows else 0


def fill(database: Database, connection: WriterConnection, backup: Backup, *, progress: Progress) -> None:
    """Replace all rows by those of a backup, without the commit."""
    _empty(database, connection)
    done = 0
    for table, rest in backup.tables():
        statement: PreparedStatement | None = None
        for rows in rest:
            statement = statement or PreparedStatement(insert(table), database.dialect, tuple(rows[0]))
            connection.run(statement, rows)
            done += len(rows)
            progress(done, backup.head.total)


def _empty(database: Database, connection: WriterConnection) -> None:
    if database.kind is DatabaseKind.POSTGRESQL:
        names = ", ".join(f'"{table.name}"' for table in TABLES)
        connection.run(PreparedStatement(text(f"TRUNCATE {names}"), database.dialect), [{}])
        return
    for table in reversed(TABLES):
        connection.run(PreparedStatement(delete(table), database.dialect), [{}])


# Restore a backup under a new generation: leases granted after the backup are stale.

_UNWATCHED = {"watcher": "", "watched_until_s": 0.0}
_BEGAN_S = 1_577_836_800
"""2020-01-01: generations count seconds from there, and fit into 31 bits until 2088."""


@frozen
class RestoreResult:
    """What a restore did."""

    head: BackupHeader
    generation: int
    live: int
    """Jobs with a lease in the backup. The coordinator requeues them when it starts."""


def restore(
    database: Database,
    file: BinaryIO,
    name: str,
    *,
    clock: Clock,
    may_replace: bool = False,
    progress: Progress = no_progress,
) -> RestoreResult:
    """Fill a database from a backup, in one transaction.

    Raises `Conflict` if it has jobs and may not be replaced, `Damaged` for a damaged backup (nothing was changed then),
    `AlreadyServing` while a coordinator serves it.
    """
    backup = Backup(file, name)
    connection = database.connect_writer()
    try:
        connection.begin()
        if not may_replace:
            refuse_if_used(database, connection)
        was = generation_of(database, connection)
        fill(database, connection, backup, progress=progress)
        now_s = clock.wall_s()
        generation = next_generation(max(was, backup.head.generation), now_s)
        live = _renew(database, connection, backup.head, generation, now_s)
        connection.commit()
    finally:
        connection.close()
    return RestoreResult(head=backup.head, generation=generation, live=live)


def next_generation(highest: int, now_s: float) -> int:
    """Return a generation that no restore has used before, also not an earlier restore of the same backup.

    Counting alone is not enough: a backup restored twice would get the same generation twice.
    """
    return max(highest + 1, int(now_s) - _BEGAN_S)


def _renew(database: Database, connection: WriterConnection, head: BackupHeader, generation: int, now_s: float) -> int:
    dialect = database.dialect
    put = PreparedStatement(update(META).where(text("key = 'generation'")), dialect, ("value",))
    if not connection.run(put, [{"value": str(generation)}]):
        connection.run(PreparedStatement(insert(META), dialect), [{"key": "generation", "value": str(generation)}])
    connection.run(PreparedStatement(CLAIMS.delete(), dialect), [{}])
    # Invitations may have been used or withdrawn since.
    connection.run(PreparedStatement(update(INVITES), dialect, ("key",)), [{"key": ""}])
    # Workers may have restarted since: an incarnation that the backup does not have is not an old one.
    connection.run(PreparedStatement(update(MACHINES), dialect, ("incarnation",)), [{"incarnation": ""}])
    # A launcher may have watched a pool since: no epoch that it had is used again.
    epoch = POOLS.c.epoch + literal_column(str(generation))
    watched = update(POOLS).values({POOLS.c.epoch: epoch})
    connection.run(PreparedStatement(watched, dialect, ("watcher", "watched_until_s")), [_UNWATCHED])
    live = connection.read(PreparedStatement(select(func.count()).select_from(LEASES), dialect))[0][0]
    newest = connection.read(PreparedStatement(select(func.max(EVENTS.c.id), func.max(EVENTS.c.at_s)), dialect))[0]
    event = {
        "id": (newest[0] or 0) + 1,
        "at_s": max(now_s, newest[1] or 0.0),
        "kind": FleetKinds.DATABASE_RESTORED,
        "generation": generation,
        "fields": dumps({"made_s": head.made_s, "rows": head.total, "was_generation": head.generation, "live": live}),
    }
    connection.run(PreparedStatement(insert(EVENTS), dialect, tuple(event)), [event])
    return int(live)


def move(
    source: Database, target: Database, *, clock: Clock, may_replace: bool = False, progress: Progress = no_progress
) -> BackupHeader:
    """Copy all rows to another database, SQLite or PostgreSQL, and compare them; neither may be served.

    Raises `Conflict` if the target has jobs. Generation, epochs and leases stay, so running jobs continue once the
    coordinator serves the new database. The old one is not changed, and must not be served again.
    """
    with tempfile.TemporaryFile() as file:
        with snapshot(source) as connection:
            head = write_backup(connection, file, made_s=clock.wall_s(), progress=progress)
        file.seek(0)
        writer = target.connect_writer()
        try:
            writer.begin()
            if not may_replace:
                refuse_if_used(target, writer)
            fill(target, writer, Backup(file, "the temporary copy"), progress=progress)
            writer.commit()
        finally:
            writer.close()
    with snapshot(source) as before, snapshot(target) as after:
        there, here = table_digests(before), table_digests(after)
    wrong = sorted(name for name in there if there[name] != here[name])
    if wrong:
        raise Damaged(
            f"{target.shown} differs from {source.shown}: {', '.join(wrong)}",
            hint="keep the old one; move again with --replace",
            tables=wrong,
        )
    return head
