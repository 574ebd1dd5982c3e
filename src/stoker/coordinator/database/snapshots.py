"""One moment of a database to read from, beside the writer and never in its way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from stoker.coordinator.database.opening import Database, Kind
from stoker.coordinator.database.trouble import translated


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """Give a connection that sees what was committed when it first read, for as long as the block lasts."""
    with translated(database.shown), database.readers.connect() as connection:
        if database.kind is Kind.SQLITE:
            connection.exec_driver_sql("BEGIN")
            yield connection
        else:
            yield connection.execution_options(isolation_level="REPEATABLE READ")
