"""Open the queue's database: SQLite in a file (the default) or PostgreSQL; one coordinator at a time.

    sqlite:///PATH            write-ahead log, full synchronisation: what was answered survives a power cut
    postgresql://…            through psycopg

An empty database is made, an old one migrated, one of a newer program refused. Writing needs the only
`WriterConnection`, which holds the lock; reading goes through a pool of its own and never waits for the writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.pool import NullPool

from stoker.coordinator.database.migrating import HEAD, migrate, version_of
from stoker.coordinator.database.trouble import translated, trouble
from stoker.coordinator.database.writer_connection import WriterConnection
from stoker.host.installing import pip_install
from stoker.host.lockfile import Lock
from stoker.model.clock import Clock
from stoker.model.errors import BadInput, LockHeld, MissingExtra, NotFound
from stoker.model.fleet_errors import AlreadyServing, VersionSkew

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


class Kind(StrEnum):
    """Sorts of databases."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class Database:
    """An open database of the queue. `open_database` makes it; `close` lets another coordinator have it."""

    def __init__(self, url: URL, kind: Kind, clock: Clock) -> None:
        self.kind = kind
        self.shown = f"sqlite {url.database}" if kind is Kind.SQLITE else url.render_as_string(hide_password=True)
        """Its sort and place, without secrets."""
        self.path = url.database if kind is Kind.SQLITE else None
        """Of SQLite: the file."""
        self.readers: Engine = _engine(url, kind, is_writer=False)
        """For reading only: every connection refuses to write."""
        self._writers = _engine(url, kind, is_writer=True)
        self._clock = clock
        self._lock: Lock | None = None
        if kind is Kind.SQLITE:
            self._lock = Lock(f"{url.database}.serving", "serve the queue", wait_s=0.0, clock=clock)

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
        if self.kind is Kind.POSTGRESQL:
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
            if self.kind is not Kind.POSTGRESQL:
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
    if kind is Kind.SQLITE and not os.path.exists(parsed.database or ""):
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


def _read(url: str) -> tuple[URL, Kind]:
    try:
        parsed = make_url(url)
    except sqlalchemy.exc.ArgumentError:
        raise _bad_address(url, "is no address of a database") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise _bad_address(url, "names no file")
        return parsed.set(drivername="sqlite", database=os.path.abspath(parsed.database)), Kind.SQLITE
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg"), Kind.POSTGRESQL
    raise _bad_address(parsed.render_as_string(hide_password=True), "is of a sort that is not supported")


def _bad_address(url: str, why: str) -> BadInput:
    return BadInput(f"{url} {why}", hint="sqlite:///PATH or postgresql://USER@HOST/NAME", url=url)


def _engine(url: URL, kind: Kind, *, is_writer: bool) -> Engine:
    if kind is Kind.SQLITE:
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
