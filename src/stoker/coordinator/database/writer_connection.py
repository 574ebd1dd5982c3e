"""The one connection that writes: prepared statements, many rows at a time, on the driver itself.

Statements are written with SQLAlchemy and compiled once per database; rows then go to the driver as they are. What the
driver raises comes out as `DatabaseTrouble`, or as `RowRefused` where a row and not the database is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import PoolProxiedConnection
from sqlalchemy.engine import Dialect

from stoker.coordinator.database.prepared import Prepared
from stoker.coordinator.database.trouble import trouble
from stoker.model import json_text

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

    def run(self, statement: Prepared, rows: Rows) -> int:
        """Run a statement for every row, and say how many rows of the table changed."""
        with self._translated():
            if statement.copy_text and len(rows) > _FEW:
                with self._cursor.copy(statement.copy_text) as copy:
                    for row in rows:
                        copy.write_row(statement.values(row))
            else:
                _send(self._cursor, statement, rows)
            return int(self._cursor.rowcount)

    def run_all(self, work: Sequence[tuple[Prepared, Rows]]) -> list[int]:
        """Do the same for several statements, in order. PostgreSQL gets them all before it is asked for any answer."""
        if self._is_sqlite or any(len(rows) > _FEW for _, rows in work):
            return [self.run(statement, rows) for statement, rows in work]
        driver: Any = self._connection.driver_connection
        with self._translated():
            with driver.pipeline():
                cursors = [_send(driver.cursor(), statement, rows) for statement, rows in work]
            return [int(cursor.rowcount) for cursor in cursors]

    def read(self, statement: Prepared, **parameters: Any) -> list[tuple[Any, ...]]:
        """Give the rows that a query finds."""
        return self.rows_of(statement.text, statement.values(parameters))

    def rows_of(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Give the rows that a query finds, in the driver's own words."""
        with self._translated():
            return list(self._cursor.execute(text, parameters).fetchall())

    def many(self, values: Sequence[Any]) -> Any:
        """Give a list as a parameter of `one_of`."""
        return json_text.dumps(list(values)) if self._is_sqlite else list(values)

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


def _send(cursor: Any, statement: Prepared, rows: Rows) -> Any:
    values = statement.values
    if len(rows) == 1:
        cursor.execute(statement.text, values(rows[0]))
    elif statement.many_text:
        cursor.execute(statement.many_text, (statement.many(rows),))
    else:
        cursor.executemany(statement.text, [values(row) for row in rows])
    return cursor
