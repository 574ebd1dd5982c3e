"""A queue on a database of each sort; whatever a test does to it, no promise may be broken afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.contract.queue_driving import Driven
from tests.contract.queue_words import SHA
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def cleared_postgres(postgres: PostgresServer, postgres_template: str) -> str:
    """One database for all tests that clear it: that takes a tenth of the time of a copy."""
    return postgres.create(postgres_template)


@pytest.fixture(scope="session")
def kept_engines() -> Iterator[None]:
    """Let all tests of one address use one engine: it compiles statements for half of the time of a short test."""
    from stoker.coordinator.database import database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_engine", cache(database._engine))
        yield


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
    url: str = request.getfixturevalue("cleared_postgres")
    from stoker.coordinator.database.tables import METADATA

    with psycopg.connect(url) as connection:
        for table in reversed(METADATA.sorted_tables):
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
        connection.execute("INSERT INTO meta VALUES ('generation', '1')")
    return url


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
