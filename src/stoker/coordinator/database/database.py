"""Open the queue's database: SQLite in a file (the default) or PostgreSQL; one coordinator at a time.

    sqlite:///PATH            write-ahead log, full synchronisation: what was answered survives a power cut
    postgresql://…            through psycopg

An empty database is made, an old one migrated, one of a newer program refused. Writing needs the only
`WriterConnection`, which holds the lock; reading goes through a pool of its own and never waits for the writer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import count
from operator import itemgetter
from typing import Any

import sqlalchemy
from sqlalchemy import (
    ARRAY,
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    PoolProxiedConnection,
    String,
    any_,
    bindparam,
    create_engine,
    event,
    exc,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.elements import ClauseElement

from stoker.coordinator.database.migrate import HEAD, migrate, version_of
from stoker.core import jsontext
from stoker.core.clock import Clock
from stoker.core.errors import AlreadyServing, BadInput, DatabaseTrouble, LockHeld, MissingExtra, NotFound, VersionSkew
from stoker.core.text import one_line
from stoker.host.install import pip_install
from stoker.host.locks import FileLock

# What databases' own exceptions become, once and here: `DatabaseTrouble`, with what to do about it.
#
# A value that no column can hold is no trouble of the database: whoever asked for it has to change it.

_LONGEST_CHARS = 300
_HINTS = (
    ("locked", "another program writes to it; try again"),
    ("busy", "another program writes to it; try again"),
    ("full", "make room on its disk"),
    ("no space", "make room on its disk"),
    ("readonly", "the coordinator must be allowed to write it"),
    ("not a database", "this file is something else; name another one"),
    ("malformed", "restore a backup: `stoker admin db restore`"),
    ("password", "look at the user and password in its address"),
    ("does not exist", "make the database first: `createdb`"),
    ("refused", "start the database, or look at its address"),
    ("unable to open", "look at its folder: it must exist and be writable"),
)


def trouble(shown: str, error: BaseException) -> DatabaseTrouble:
    """Return what a database's exception means; `shown` names the database, without secrets."""
    cause = getattr(error, "orig", None) or error
    text = one_line(str(cause) or type(cause).__name__, _LONGEST_CHARS)
    lowered = text.lower()
    hint = next((hint for word, hint in _HINTS if word in lowered), "look at the database; this is tried again")
    return DatabaseTrouble(f"{shown}: {text}", hint=hint, database=shown)


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Let what SQLAlchemy raises in the block come out as `DatabaseTrouble`, or `BadInput` for an impossible value."""
    try:
        yield
    except (exc.DataError, OverflowError, UnicodeEncodeError) as error:
        cause = getattr(error, "orig", None) or error
        raise BadInput(f"the database does not take this: {one_line(str(cause), _LONGEST_CHARS)}") from error
    except (exc.DBAPIError, exc.TimeoutError, UnicodeDecodeError) as error:
        raise trouble(shown, error) from error


# Statements, compiled once for one database; their rows then go to the driver as they are.


class PreparedStatement:
    """A statement in one database's own words. Rows are maps from its parameters' names.

    `columns` are those that an insert or update sets from parameters of the same names. PostgreSQL takes many rows at
    once by `copy_text` (rows follow; for very many) or `many_text` (all of them as one JSON text, `many`), where a
    statement has one of them. An upsert has one only if its rows never name a key twice (`is_distinct`).
    """

    def __init__(
        self, statement: ClauseElement, dialect: Dialect, columns: Sequence[str] = (), *, is_distinct: bool = False
    ) -> None:
        # Positional for both drivers: SQLite counts `?`, psycopg counts `%s`.
        style = "qmark" if dialect.name == "sqlite" else "format"
        sort: Any = type(dialect)
        compiled: Any = statement.compile(dialect=sort(paramstyle=style), column_keys=list(columns) or None)
        self.text = str(compiled)
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        said = {name: value for name, value in compiled.params.items() if value is not None}
        self._said = {name: said[name] for name in self.names if name in said}
        self._pick: Any = itemgetter(*self.names) if len(self.names) > 1 else None
        self.copy_text, self.many_text = "", ""
        self._keys = tuple(f"p{at}" for at in range(len(self.names)))
        is_upsert = "ON CONFLICT" in self.text
        if dialect.name == "postgresql" and (is_distinct or not is_upsert):
            self._make_many(dialect, [compiled.binds[name].type for name in self.names])

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put a row's values in the statement's order, with what the statement itself says (`LIMIT 1`)."""
        if self._said:
            row = {**self._said, **row}
        if self._pick is not None:
            values: tuple[Any, ...] = self._pick(row)
            return values
        return tuple(row[name] for name in self.names)

    def many(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Return rows as `many_text` takes them. Made in C, it costs less than half of a list per parameter."""
        keys, values = self._keys, self.values
        return json.dumps([dict(zip(keys, values(row), strict=True)) for row in rows], separators=(",", ":"))

    def _make_many(self, dialect: Dialect, types: list[Any]) -> None:
        """Find a way to send many rows as one message: a fifth of the time of one message per row."""
        verb = self.text.partition(" ")[0]
        if verb not in ("INSERT", "UPDATE", "DELETE") or not self.names:
            return
        # A cast to VARCHAR(12) would cut a longer text in silence.
        sorts = ["TEXT" if isinstance(one, String) else one.compile(dialect) for one in types]
        many = ", ".join(f"{key} {sort}" for key, sort in zip(self._keys, sorts, strict=True))
        source = f"json_to_recordset(%s::json) AS many({many})"
        if verb == "INSERT":
            into = self.text.removeprefix("INSERT INTO ").partition(" VALUES ")[0]
            _, conflict, what_then = self.text.partition(" ON CONFLICT ")
            self.copy_text = "" if conflict else f"COPY {into} FROM STDIN"
            self.many_text = f"INSERT INTO {into} SELECT * FROM {source}{conflict}{what_then}"  # noqa: S608 - all ours
        else:
            numbers = count()
            body = _PARAMETER.sub(lambda _: f"many.p{next(numbers)}", self.text)
            before, _, condition = body.rpartition("WHERE ")
            join = "FROM" if verb == "UPDATE" else "USING"
            self.many_text = f"{before} {join} {source} WHERE {condition}"


_PARAMETER = re.compile(r"%s(::\w+)?")


def one_of(column: ColumnElement[Any], name: str, dialect: Dialect) -> ColumnElement[bool]:
    """Return the condition that a column has one of many values: one parameter, `WriterConnection.many`."""
    if dialect.name == "sqlite":
        return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))
    kind = BigInteger() if isinstance(column.type, BigInteger) else String()
    return column == any_(bindparam(name, type_=ARRAY(kind)))


# The one connection that writes: prepared statements, many rows at a time, on the driver itself.
#
# Statements are written with SQLAlchemy and compiled once per database; rows then go to the driver as they are. What
# the driver raises comes out as `DatabaseTrouble`, or as `RowRefused` where a row and not the database is at fault.

Rows = Sequence[Mapping[str, Any]]
# As many rows at least are worth a COPY of their own, which no pipeline takes.
_FEW = 500


class RowRefused(Exception):
    """The database is well; it does not take this row: a constraint, a number out of range."""


class WriterConnection:
    """A transaction at a time. Not for several threads."""

    def __init__(self, connection: PoolProxiedConnection, dialect: Dialect, shown: str) -> None:
        self._connection = connection
        self._is_sqlite = dialect.name == "sqlite"
        driver = dialect.loaded_dbapi
        self._error: type[Exception] = driver.Error
        of_driver = (driver.DataError, driver.IntegrityError, driver.ProgrammingError)
        # The last two are SQLite's driver's, about a number of more than 64 bits and about text that is none.
        self._of_rows: tuple[type[Exception], ...] = (*of_driver, OverflowError, UnicodeEncodeError)
        self._cursor: Any = connection.cursor()
        self.shown = shown

    def begin(self) -> None:
        """Begin to write. SQLite takes its lock at once, so that no read in the transaction can turn out to be old."""
        if self._is_sqlite:
            with self._translated():
                self._cursor.execute("BEGIN IMMEDIATE")

    def run(self, statement: PreparedStatement, rows: Rows) -> int:
        """Run a statement for every row, and say how many rows of the table changed."""
        with self._translated():
            if statement.copy_text and len(rows) > _FEW:
                with self._cursor.copy(statement.copy_text) as copy:
                    for row in rows:
                        copy.write_row(statement.values(row))
            else:
                _send(self._cursor, statement, rows)
            return int(self._cursor.rowcount)

    def run_all(self, work: Sequence[tuple[PreparedStatement, Rows]]) -> list[int]:
        """Do the same for several statements, in order. PostgreSQL gets them all before it is asked for any answer."""
        if self._is_sqlite or any(len(rows) > _FEW for _, rows in work):
            return [self.run(statement, rows) for statement, rows in work]
        driver: Any = self._connection.driver_connection
        with self._translated():
            with driver.pipeline():
                cursors = [_send(driver.cursor(), statement, rows) for statement, rows in work]
            return [int(cursor.rowcount) for cursor in cursors]

    def read(self, statement: PreparedStatement, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        return self.rows_of(statement.text, statement.values(parameters))

    def rows_of(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds, in the driver's own words."""
        with self._translated():
            return list(self._cursor.execute(text, parameters).fetchall())

    def many(self, values: Sequence[Any]) -> Any:
        """Return a list as a parameter of `one_of`."""
        return jsontext.dumps(list(values)) if self._is_sqlite else list(values)

    def commit(self) -> None:
        """Make it durable."""
        with self._translated():
            if self._is_sqlite:
                self._cursor.execute("COMMIT")
            else:
                self._connection.commit()

    def roll_back(self) -> None:
        """Undo what was not committed."""
        with self._translated():
            if not self._is_sqlite:
                self._connection.rollback()
            elif self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")

    def close(self) -> None:
        """Drop the connection; what was not committed is undone by the database."""
        driver: Any = self._connection.driver_connection
        if not self._is_sqlite and driver is not None and not driver.closed:
            # The server ends a session when it comes to it: whoever opens the database next need not wait for that.
            with suppress(self._error):
                self._connection.rollback()
                self._cursor.execute("SELECT pg_advisory_unlock_all()")
        # An open cursor keeps SQLite's files open, and whoever holds an error of ours holds this cursor.
        with suppress(self._error):
            self._cursor.close()
        self._connection.invalidate()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._of_rows as error:
            raise RowRefused(str(error)) from error
        except self._error as error:
            raise trouble(self.shown, error) from error


def _send(cursor: Any, statement: PreparedStatement, rows: Rows) -> Any:
    values = statement.values
    if len(rows) == 1:
        cursor.execute(statement.text, values(rows[0]))
    elif statement.many_text:
        cursor.execute(statement.many_text, (statement.many(rows),))
    else:
        cursor.executemany(statement.text, [values(row) for row in rows])
    return cursor


BUSY_S = 5.0
READERS = 8
_ADVISORY_KEY = 0x53544F4B4552
"""Advisory locks are per database, so a fixed number will do."""
_CONNECT_S = 10
_HANDOVER_S = 3.0
"""A session whose process was killed may hold its lock for a moment longer: the server ends it when it comes to it."""
_LOOK_AGAIN_S = 0.02
# A peer that vanished without a word is noticed within half a minute, not after the kernel's two hours.
_POSTGRES_CONNECT = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c synchronous_commit=on -c lock_timeout=10s -c statement_timeout=120s",
}
# Its few statements are planned once, and each finds its rows by a key: tables are empty, or full of dead rows, when a
# plan is made, and going through all of one looks cheap then.
_WRITES_BY_KEY = (
    "-c plan_cache_mode=force_generic_plan -c jit=off"
    " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)


class DatabaseKind(StrEnum):
    """Sorts of databases."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Database:
    """An open database of the queue. `open_database` makes it; `close` lets another coordinator have it."""

    def __init__(self, url: URL, kind: DatabaseKind, clock: Clock) -> None:
        self.kind = kind
        self.shown = (
            f"sqlite {url.database}" if kind is DatabaseKind.SQLITE else url.render_as_string(hide_password=True)
        )
        """Its sort and place, without secrets."""
        self.path = url.database if kind is DatabaseKind.SQLITE else None
        """Of SQLite: the file."""
        self.readers: Engine = _engine(url, kind, is_writer=False)
        """For reading only: every connection refuses to write."""
        self._writers = _engine(url, kind, is_writer=True)
        self._clock = clock
        self._lock: FileLock | None = None
        if kind is DatabaseKind.SQLITE:
            self._lock = FileLock(f"{url.database}.serving", "serve the queue", wait_s=0.0, clock=clock)

    @property
    def dialect(self) -> sqlalchemy.Dialect:
        return self._writers.dialect

    def connect_writer(self) -> WriterConnection:
        """Open the one connection that writes, holding the lock; raises `AlreadyServing` where another holds it."""
        self._take_lock()
        try:
            raw = self._writers.raw_connection()
        except self.dialect.loaded_dbapi.Error as error:
            # The driver's own: nobody has wrapped it at this point.
            raise trouble(self.shown, error) from error
        connection = WriterConnection(raw, self.dialect, self.shown)
        if self.kind is DatabaseKind.POSTGRESQL:
            # The lock is the session's: whoever loses the connection loses the right to write with it.
            try:
                self._take_session_lock(lambda: _asked_for_lock(connection))
            except BaseException:
                connection.close()
                raise
        return connection

    def close(self) -> None:
        """Close all connections and give the lock back."""
        self.readers.dispose()
        self._writers.dispose()
        if self._lock is not None:
            self._lock.release()

    def make_ready(self) -> None:
        """Make or migrate the tables, under the lock."""
        self._take_lock()
        if self.path is not None:
            # It holds what opens the fleet to others; the files that SQLite puts beside it get the same mode.
            with suppress(OSError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with translated(self.shown), self._writers.connect() as connection:
            if self.kind is not DatabaseKind.POSTGRESQL:
                migrate(connection, shown=self.shown)
                return
            key = {"key": _ADVISORY_KEY}
            self._take_session_lock(
                lambda: bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), key).scalar())
            )
            connection.commit()
            migrate(connection, shown=self.shown)
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)
            connection.commit()

    def _take_session_lock(self, ask: Callable[[], bool]) -> None:
        deadline_s = self._clock.monotonic_s() + _HANDOVER_S
        while not ask():
            if self._clock.monotonic_s() >= deadline_s:
                raise self._already_serving()
            self._clock.sleep(_LOOK_AGAIN_S)

    def _take_lock(self) -> None:
        if self._lock is None or self._lock.is_held:
            return
        try:
            self._lock.acquire()
        except LockHeld as held:
            raise self._already_serving(**held.data) from held

    def _already_serving(self, **data: object) -> AlreadyServing:
        return AlreadyServing(
            f"a coordinator serves {self.shown} already",
            hint="stop it first, or name another database with --db",
            **data,
        )


def open_database(url: str, *, clock: Clock) -> Database:
    """Open a database by its address, made or migrated where needed.

    Raises `BadInput` for an address that can't be, `AlreadyServing` while another coordinator has it, `VersionSkew`
    if a newer program made it, `DatabaseTrouble` if it can't be reached.
    """
    parsed, kind = _read(url)
    database = Database(parsed, kind, clock)
    try:
        database.make_ready()
    except BaseException:
        database.close()
        raise
    return database


def look_into(url: str, *, clock: Clock) -> Database:
    """Open a database only to read it, beside whoever serves it: nothing is made, migrated or locked.

    Raises `NotFound` where there is none of ours, `VersionSkew` for tables of another version than this program's.
    """
    parsed, kind = _read(url)
    database = Database(parsed, kind, clock)
    if kind is DatabaseKind.SQLITE and not os.path.exists(parsed.database or ""):
        # To look for it would make it.
        raise NotFound(f"there is no database at {database.shown}", hint="name another one with --db")
    try:
        with translated(database.shown), database.readers.connect() as connection:
            found = version_of(connection)
        if not found:
            raise NotFound(f"{database.shown} holds no queue of ours", hint="name another one with --db")
        if found != HEAD:
            raise VersionSkew(
                f"the tables of {database.shown} are at {found}, this program's at {HEAD}",
                hint="`stoker admin db migrate` brings old ones up to date; newer ones need a newer program",
                found=found,
                known=HEAD,
            )
    except BaseException:
        database.close()
        raise
    return database


def _asked_for_lock(connection: WriterConnection) -> bool:
    (is_ours,) = connection.rows_of("SELECT pg_try_advisory_lock(%s)", (_ADVISORY_KEY,))[0]
    connection.roll_back()
    return bool(is_ours)


def _read(url: str) -> tuple[URL, DatabaseKind]:
    try:
        parsed = make_url(url)
    except sqlalchemy.exc.ArgumentError:
        raise _bad_address(url, "is no address of a database") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise _bad_address(url, "names no file")
        return parsed.set(drivername="sqlite", database=os.path.abspath(parsed.database)), DatabaseKind.SQLITE
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg"), DatabaseKind.POSTGRESQL
    raise _bad_address(parsed.render_as_string(hide_password=True), "is of a sort that is not supported")


def _bad_address(url: str, why: str) -> BadInput:
    return BadInput(f"{url} {why}", hint="sqlite:///PATH or postgresql://USER@HOST/NAME", url=url)


def _engine(url: URL, kind: DatabaseKind, *, is_writer: bool) -> Engine:
    if kind is DatabaseKind.SQLITE:
        pool: dict[str, Any] = {"poolclass": NullPool} if is_writer else {"pool_size": READERS, "max_overflow": READERS}
        arguments: dict[str, Any] = {"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None}
        engine = create_engine(url, connect_args=arguments, **pool)
        event.listen(engine, "connect", _prepare_writer if is_writer else _prepare_reader)
        if is_writer:
            event.listen(engine, "begin", _begin_immediate)
        return engine
    pool = {"poolclass": NullPool} if is_writer else {"pool_size": READERS, "max_overflow": READERS}
    options = _POSTGRES_CONNECT["options"]
    options = f"{options} {_WRITES_BY_KEY if is_writer else '-c default_transaction_read_only=on'}"
    try:
        return create_engine(
            url, connect_args={**_POSTGRES_CONNECT, "options": options}, pool_pre_ping=not is_writer, **pool
        )
    except ModuleNotFoundError:
        raise MissingExtra("PostgreSQL needs psycopg", hint=pip_install("stoker[postgres]"), extra="postgres") from None


def _prepare_writer(connection: Any, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-32768"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_reader(connection: Any, _record: object) -> None:
    for pragma in ("query_only=ON", "cache_size=-2048"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sqlalchemy.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


# One moment of a database to read from, beside the writer and never in its way.


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """Return a connection that sees what was committed when it first read, for as long as the block lasts."""
    with translated(database.shown), database.readers.connect() as connection:
        if database.kind is DatabaseKind.SQLITE:
            connection.exec_driver_sql("BEGIN")
            yield connection
        else:
            yield connection.execution_options(isolation_level="REPEATABLE READ")


# How SQLite's text is read where it may be damaged: as its bytes, or with a mark for what is no text.
#
# Usually what is no text is an error that says nothing of its row. PostgreSQL never gives such.


def marked(data: bytes) -> str:
    """Return text, with a mark in place of each byte that is none."""
    return data.decode(errors="replace")


@contextmanager
def read_text_as(connection: Connection, kind: Callable[[bytes], Any]) -> Iterator[None]:
    """Let text be given so while the block lasts."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        yield
        return
    before = driver.text_factory
    driver.text_factory = kind
    try:
        yield
    finally:
        driver.text_factory = before
