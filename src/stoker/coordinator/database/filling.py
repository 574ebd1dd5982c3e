"""Fill a database from a backup's rows, in one transaction: everything, or nothing at all."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select, text

from stoker.coordinator.database.opening import Database, Kind
from stoker.coordinator.database.portable import TABLES, Backup, Progress
from stoker.coordinator.database.prepared import Prepared
from stoker.coordinator.database.tables import ATTEMPTS, BUNDLES, JOBS, META, SUBMISSIONS
from stoker.coordinator.database.writer_connection import WriterConnection
from stoker.model.fleet_errors import Conflict

_MEANT = (JOBS, ATTEMPTS, BUNDLES, SUBMISSIONS)
"""Who has rows here holds somebody's work; the others a coordinator fills by itself."""


def refuse_if_used(database: Database, connection: WriterConnection) -> None:
    """Refuse a database that holds work."""
    for table in _MEANT:
        counted = Prepared(select(func.count()).select_from(table), database.dialect)
        count = connection.read(counted)[0][0]
        if count:
            raise Conflict(
                f"{database.shown} is not empty: {count} rows in {table.name}",
                hint="back it up first, then say --replace; or name an empty database",
                table=table.name,
                rows=count,
            )


def generation_of(database: Database, connection: WriterConnection) -> int:
    """Give the generation that a database is at."""
    asked = Prepared(select(META.c.value).where(META.c.key == "generation"), database.dialect)
    rows = connection.read(asked)
    return int(rows[0][0]) if rows else 0


def fill(database: Database, connection: WriterConnection, backup: Backup, *, progress: Progress) -> None:
    """Put a backup's rows in the place of what is there, short of the commit."""
    _empty(database, connection)
    done = 0
    for table, rest in backup.tables():
        statement: Prepared | None = None
        for rows in rest:
            statement = statement or Prepared(insert(table), database.dialect, tuple(rows[0]))
            connection.run(statement, rows)
            done += len(rows)
            progress(done, backup.head.total)


def _empty(database: Database, connection: WriterConnection) -> None:
    if database.kind is Kind.POSTGRESQL:
        names = ", ".join(f'"{table.name}"' for table in TABLES)
        connection.run(Prepared(text(f"TRUNCATE {names}"), database.dialect), [{}])
        return
    for table in reversed(TABLES):
        connection.run(Prepared(delete(table), database.dialect), [{}])
