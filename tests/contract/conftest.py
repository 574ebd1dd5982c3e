"""A queue on a database of each sort; whatever a test does to it, no promise may be broken afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, Engine

from tests.contract.queue_driving import Driven
from tests.contract.queue_words import SHA
from tests.servers.postgres import PostgresServer


class ClearedPostgres:
    """One database for all tests, which clear it: that takes a tenth of the time of a copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def clear(self) -> None:
        """Clear every table; a test may have ended the connections of all."""
        try:
            self._connection.execute(_clearing())
        except psycopg.OperationalError:
            self.close()
            self._connection = psycopg.connect(self.url, autocommit=True)
            self._connection.execute(_clearing())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="session")
def cleared_postgres(postgres: PostgresServer, postgres_template: str) -> Iterator[ClearedPostgres]:
    with closing(ClearedPostgres(postgres.create(postgres_template))) as cleared:
        yield cleared


@pytest.fixture(scope="session")
def kept_engines() -> Iterator[None]:
    """Let all tests of one address use one engine: it compiles statements for half of the time of a short test.

    Engines of PostgreSQL keep the connections of readers as well: the server starts a process for each, which reads the
    catalogue again.
    """
    from stoker.coordinator.database import database

    make, kept = database._engine, []

    @cache
    def engine(url: URL, kind: database.DatabaseKind, *, is_writer: bool) -> Engine:
        made = make(url, kind, is_writer=is_writer)
        if kind is database.DatabaseKind.POSTGRESQL:
            kept.append(made.dispose)
            setattr(made, "dispose", lambda: None)  # noqa: B010 - mypy refuses to assign to a method
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_engine", engine)
        yield
    for dispose in kept:
        dispose()


@pytest.fixture(scope="session")
def replaced_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One address for all tests, each of which finds an empty database there."""
    return tmp_path_factory.mktemp("queue") / "queue.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def queue_url(request: pytest.FixtureRequest, replaced_sqlite: Path, kept_engines: None) -> str:
    """A database with the queue's tables, and nothing in them, once of each sort."""
    if request.param == "sqlite":
        for ending in ("", "-wal", "-shm"):
            Path(f"{replaced_sqlite}{ending}").unlink(missing_ok=True)
        shutil.copyfile(request.getfixturevalue("sqlite_template"), replaced_sqlite)
        return f"sqlite:///{replaced_sqlite}"
    cleared: ClearedPostgres = request.getfixturevalue("cleared_postgres")
    cleared.clear()
    return cleared.url


@cache
def _clearing() -> sql.Composed:
    """Return the statements that clear every table, as one message."""
    from stoker.coordinator.database.tables import METADATA

    names = [sql.Identifier(table.name) for table in reversed(METADATA.sorted_tables)]
    deletions = [sql.SQL("DELETE FROM {}").format(name) for name in names]
    return sql.SQL("; ").join([*deletions, sql.SQL("INSERT INTO meta VALUES ('generation', '1')")])


@pytest.fixture
def fleet(queue_url: str) -> Iterator[Driven]:
    """A queue of which no promise may be broken, whatever a test does to it."""
    from stoker.coordinator.database.database_check import check_database

    driven = Driven(queue_url)
    driven.objects[SHA] = 10
    yield driven
    broken = list(check_database(driven.database, has_object=driven.objects.get))
    driven.close()
    assert broken == []
