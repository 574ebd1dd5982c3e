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
from typing import TYPE_CHECKING, Any

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

# Exceptions of databases become `DatabaseTrouble` with a hint; a value out of range becomes `BadInput`.

_LONGEST_CHARS = 300
_HINTS = (
    ("locked", "another program writes to it; try again"),
    ("busy", "another program writes to it; try again"),
    ("full", "free some disk space"),
    ("no space", "free some disk space"),
    ("readonly", "make it writable for the coordinator"),
    ("not a database", "not a database file; name another one"),
    ("malformed", "restore a backup: `stoker admin db restore`"),
    ("password", "check the user and password in its address"),
    ("does not exist", "create the database first: `createdb`"),
    ("refused", "start the database, or check its address"),
    ("unable to open", "check its folder: it must exist and be writable"),
)


def trouble(shown: str, error: BaseException) -> DatabaseTrouble:
    """Return the error for a database's exception; `shown` names the database, without secrets."""
    cause = getattr(error, "orig", None) or error
    text = one_line(str(cause) or type(cause).__name__, _LONGEST_CHARS)
    lowered = text.lower()
    hint = next((hint for word, hint in _HINTS if word in lowered), "check the database; this is retried")
    return DatabaseTrouble(f"{shown}: {text}", hint=hint, database=shown)


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Raise SQLAlchemy's exceptions in the block as `DatabaseTrouble`, or `BadInput` for a value out of range."""
    try:
        yield
    except (exc.DataError, OverflowError, UnicodeEncodeError) as error:
        cause = getattr(error, "orig", None) or error
        raise BadInput(f"the database refused a value: {one_line(str(cause), _LONGEST_CHARS)}") from error
    except (exc.DBAPIError, exc.TimeoutError, UnicodeDecodeError) as error:
        raise trouble(shown, error) from error


# Statements, compiled once for one database; their rows then go to the driver as they are.


class PreparedStatement:
    """A statement for one database, compiled when it is first used. Rows are maps from its parameters' names.

    `columns` are set by an insert or update from parameters of the same names. For many rows PostgreSQL uses
    `copy_text` (COPY, for very many) or `many_text` (all as one JSON text, `many`), if the statement has one. An upsert
    has one only if its rows never have a key twice (`is_distinct`).
    """

    text: str
    names: tuple[str, ...]
    copy_text: str
    many_text: str
    _fixed: dict[str, Any]
    _pick: Any

    def __init__(
        self, statement: ClauseElement, dialect: Dialect, columns: Sequence[str] = (), *, is_distinct: bool = False
    ) -> None:
        self._statement = statement
        self._dialect = dialect
        self._columns = columns
        self._is_distinct = is_distinct

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in PreparedStatement.__annotations__:
                raise AttributeError(name)
            vars(self).update(self._compile())
            return vars(self)[name]

    def _compile(self) -> dict[str, Any]:
        # Positional for both drivers: SQLite counts `?`, psycopg counts `%s`.
        style = "qmark" if self._dialect.name == "sqlite" else "format"
        sort: Any = type(self._dialect)
        columns = list(self._columns) or None
        compiled: Any = self._statement.compile(dialect=sort(paramstyle=style), column_keys=columns)
        words = str(compiled)
        names = tuple(compiled.positiontup or ())
        copy_text = many_text = ""
        if self._dialect.name == "postgresql" and names and (self._is_distinct or "ON CONFLICT" not in words):
            copy_text, many_text = _many_texts(words, self._dialect, [compiled.binds[name].type for name in names])
        return {
            "text": words,
            "names": names,
            "copy_text": copy_text,
            "many_text": many_text,
            "_fixed": {name: compiled.params[name] for name in names if compiled.params.get(name) is not None},
            "_pick": itemgetter(*names) if len(names) > 1 else None,
        }

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a row's values in the statement's order, with the statement's own values (`LIMIT 1`)."""
        if self._fixed:
            row = {**self._fixed, **row}
        if self._pick is not None:
            values: tuple[Any, ...] = self._pick(row)
            return values
        return tuple(row[name] for name in self.names)

    def many(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Return rows as the parameter of `many_text`. JSON is made in C, at half the cost of a list per parameter."""
        keys, values = _keys_of(self.names), self.values
        return json.dumps([dict(zip(keys, values(row), strict=True)) for row in rows], separators=(",", ":"))


def _keys_of(values: Sequence[Any]) -> list[str]:
    return [f"p{at}" for at in range(len(values))]


def _many_texts(words: str, dialect: Dialect, types: Sequence[Any]) -> tuple[str, str]:
    """Return the texts that send many rows as one message: a fifth of the time of one message per row."""
    verb = words.partition(" ")[0]
    if verb not in ("INSERT", "UPDATE", "DELETE"):
        return "", ""
    # A cast to VARCHAR(12) would silently cut a longer text.
    sorts = ["TEXT" if isinstance(one, String) else one.compile(dialect) for one in types]
    many = ", ".join(f"{key} {sort}" for key, sort in zip(_keys_of(types), sorts, strict=True))
    source = f"json_to_recordset(%s::json) AS many({many})"
    if verb == "INSERT":
        into = words.removeprefix("INSERT INTO ").partition(" VALUES ")[0]
        _, conflict, what_then = words.partition(" ON CONFLICT ")
        copy_text = "" if conflict else f"COPY {into} FROM STDIN"
        return copy_text, f"INSERT INTO {into} SELECT * FROM {source}{conflict}{what_then}"  # noqa: S608 - all ours
    numbers = count()
    body = _PARAMETER.sub(lambda _: f"many.p{next(numbers)}", words)
    before, _, condition = body.rpartition("WHERE ")
    join = "FROM" if verb == "UPDATE" else "USING"
    return "", f"{before} {join} {source} WHERE {condition}"


_PARAMETER = re.compile(r"%s(::\w+)?")


def one_of(column: ColumnElement[Any], name: str, dialect: Dialect) -> ColumnElement[bool]:
    """Return the condition that a column has one of many values: one parameter, `WriterConnection.many`."""
    if dialect.name == "sqlite":
        return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))
    kind = BigInteger() if isinstance(column.type, BigInteger) else String()
    return column == any_(bindparam(name, type_=ARRAY(kind)))


Rows = Sequence[Mapping[str, Any]]
# As many rows at least are worth a COPY of their own, which no pipeline takes.
_FEW = 500


class RowRefused(Exception):
    """The database refused a row: a constraint, a number out of range."""


class WriterConnection:
    """The one connection that writes, one transaction at a time, many rows at a time. Not thread-safe.

    Statements are compiled by SQLAlchemy once per database; rows go to the driver directly. Exceptions of the driver
    become `DatabaseTrouble`, or `RowRefused` if a row is at fault.
    """

    def __init__(self, connection: PoolProxiedConnection, dialect: Dialect, shown: str) -> None:
        self._connection = connection
        self._is_sqlite = dialect.name == "sqlite"
        driver = dialect.loaded_dbapi
        self._error: type[Exception] = driver.Error
        of_driver = (driver.DataError, driver.IntegrityError, driver.ProgrammingError)
        # The last two are of SQLite's driver, for a number of more than 64 bits and for invalid text.
        self._of_rows: tuple[type[Exception], ...] = (*of_driver, OverflowError, UnicodeEncodeError)
        self._cursor: Any = connection.cursor()
        self.shown = shown

    def begin(self) -> None:
        """Begin a transaction. SQLite takes its lock at once, so that reads in the transaction stay valid."""
        if self._is_sqlite:
            with self._translated():
                self._cursor.execute("BEGIN IMMEDIATE")

    def run(self, statement: PreparedStatement, rows: Rows) -> int:
        """Run a statement for every row, and return how many rows of the table changed."""
        with self._translated():
            if statement.copy_text and len(rows) > _FEW:
                with self._cursor.copy(statement.copy_text) as copy:
                    for row in rows:
                        copy.write_row(statement.values(row))
            else:
                _send(self._cursor, statement, rows)
            return int(self._cursor.rowcount)

    def run_all(self, work: Sequence[tuple[PreparedStatement, Rows]]) -> list[int]:
        """Run several statements in order, and return the counts. PostgreSQL gets them in one pipeline."""
        if self._is_sqlite or any(len(rows) > _FEW for _, rows in work):
            return [self.run(statement, rows) for statement, rows in work]
        driver: Any = self._connection.driver_connection
        with self._translated():
            with driver.pipeline():
                cursors = [_send(driver.cursor(), statement, rows) for statement, rows in work]
            return [int(cursor.rowcount) for cursor in cursors]

    def read(self, statement: PreparedStatement, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.rows_of(statement.text, statement.values(parameters))

    def rows_of(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query in the driver's own SQL."""
        with self._translated():
            return list(self._cursor.execute(text, parameters).fetchall())

    def many(self, values: Sequence[Any]) -> Any:
        """Return a list as a parameter of `one_of`."""
        return jsontext.dumps(list(values)) if self._is_sqlite else list(values)

    def commit(self) -> None:
        """Commit the transaction, durably."""
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
        """Close the connection; the database rolls back what was not committed."""
        driver: Any = self._connection.driver_connection
        if not self._is_sqlite and driver is not None and not driver.closed:
            # The server ends a session some time later: the next coordinator need not wait for that.
            with suppress(self._error):
                self._connection.rollback()
                self._cursor.execute("SELECT pg_advisory_unlock_all()")
        # An open cursor keeps SQLite's files open, and an error object holds this cursor.
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
"""A session of a killed process may hold its lock for a moment, until the server ends it."""
_LOOK_AGAIN_S = 0.02
# A vanished peer is noticed within half a minute, not after the kernel's two hours.
_POSTGRES_CONNECT = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c synchronous_commit=on -c lock_timeout=10s -c statement_timeout=120s",
}
# The few statements are planned once, and each finds its rows by a key: while a table is empty, or full of dead rows,
# the planner would prefer to scan it.
_WRITES_BY_KEY = (
    "-c plan_cache_mode=force_generic_plan -c jit=off"
    " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)


class DatabaseKind(StrEnum):
    """Kinds of databases."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Database:
    """An open database of the queue, from `open_database`. `close` releases it for another coordinator."""

    def __init__(self, url: URL, kind: DatabaseKind, clock: Clock) -> None:
        self.kind = kind
        self.shown = (
            f"sqlite {url.database}" if kind is DatabaseKind.SQLITE else url.render_as_string(hide_password=True)
        )
        """Its kind and address, without secrets."""
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
        """Open the one connection that writes, with the lock. Raises `AlreadyServing` if it is held."""
        self._take_lock()
        try:
            raw = self._writers.raw_connection()
        except self.dialect.loaded_dbapi.Error as error:
            # The driver's own exception: SQLAlchemy does not wrap it here.
            raise trouble(self.shown, error) from error
        connection = WriterConnection(raw, self.dialect, self.shown)
        if self.kind is DatabaseKind.POSTGRESQL:
            # The lock belongs to the session: it is lost with the connection.
            try:
                self._take_session_lock(lambda: _asked_for_lock(connection))
            except BaseException:
                connection.close()
                raise
        return connection

    def close(self) -> None:
        """Close all connections and release the lock."""
        self.readers.dispose()
        self._writers.dispose()
        if self._lock is not None:
            self._lock.release()

    def make_ready(self) -> None:
        """Create or migrate the tables, under the lock."""
        self._take_lock()
        if self.path is not None:
            # It contains credentials of the fleet; the files that SQLite creates beside it get the same mode.
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
    """Open a database by its address, created or migrated if needed.

    Raises `BadInput` for an invalid address, `AlreadyServing` while another coordinator serves it, `VersionSkew` if a
    newer version created it, `DatabaseTrouble` if it can't be reached.
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
    """Open a database for reading, also while it is served: nothing is created, migrated or locked.

    Raises `NotFound` if it is not a queue, `VersionSkew` for tables of another version.
    """
    parsed, kind = _read(url)
    database = Database(parsed, kind, clock)
    if kind is DatabaseKind.SQLITE and not os.path.exists(parsed.database or ""):
        # Opening it would create it.
        raise NotFound(f"there is no database at {database.shown}", hint="name another one with --db")
    try:
        with translated(database.shown), database.readers.connect() as connection:
            found = version_of(connection)
        if not found:
            raise NotFound(f"{database.shown} is not a queue database", hint="name another one with --db")
        if found != HEAD:
            raise VersionSkew(
                f"the tables of {database.shown} are at {found}, this program's at {HEAD}",
                hint="migrate old tables: `stoker admin db migrate`; newer ones need a newer version of Stoker",
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
        raise _bad_address(url, "is not a database address") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise _bad_address(url, "has no file")
        return parsed.set(drivername="sqlite", database=os.path.abspath(parsed.database)), DatabaseKind.SQLITE
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg"), DatabaseKind.POSTGRESQL
    raise _bad_address(parsed.render_as_string(hide_password=True), "is a kind of database that is not supported")


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


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """Yield a connection with a snapshot of what was committed at its first read, independent of the writer."""
    with translated(database.shown), database.readers.connect() as connection:
        if database.kind is DatabaseKind.SQLITE:
            connection.exec_driver_sql("BEGIN")
            yield connection
        else:
            yield connection.execution_options(isolation_level="REPEATABLE READ")


# Reading of damaged text in SQLite: as bytes, or with replacement characters. By default it is an error without the
# row. PostgreSQL never returns invalid text.


def marked(data: bytes) -> str:
    """Return text, with a replacement character for each invalid byte."""
    return data.decode(errors="replace")


@contextmanager
def read_text_as(connection: Connection, kind: Callable[[bytes], Any]) -> Iterator[None]:
    """Read text by `kind` inside the block."""
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
