"""Empty databases with the queue's tables, for hundreds of tests: one address of each kind, cleared for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, Engine

from stoker.coordinator.database import database
from stoker.coordinator.database.tables import METADATA


class FreshDatabases:
    """One database of each kind. Whoever asks for one finds it empty, and nobody else may use it any more."""

    def __init__(self, folder: Path, template: Path, make_postgres: Callable[[], str]) -> None:
        self._path = folder / "queue.db"
        self._template = template
        self._make_postgres = make_postgres
        self._cleared: ClearedPostgres | None = None

    def sqlite(self) -> str:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)
        shutil.copyfile(self._template, self._path)
        return f"sqlite:///{self._path}"

    def postgres(self) -> str:
        if self._cleared is None:
            self._cleared = ClearedPostgres(self._make_postgres())
        self._cleared.clear()
        return self._cleared.url

    def close(self) -> None:
        if self._cleared is not None:
            self._cleared.close()


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


@cache
def _clearing() -> sql.Composed:
    """Return the statements that clear every table, as one message."""
    names = [sql.Identifier(table.name) for table in reversed(METADATA.sorted_tables)]
    deletions = [sql.SQL("DELETE FROM {}").format(name) for name in names]
    return sql.SQL("; ").join([*deletions, sql.SQL("INSERT INTO meta VALUES ('generation', '1')")])


@contextmanager
def kept_engines() -> Iterator[None]:
    """Let all tests of one address use one engine: it compiles statements for half of the time of a short test.

    Engines of PostgreSQL keep the connections of readers as well: the server starts a process for each, which reads the
    catalogue again.
    """
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
