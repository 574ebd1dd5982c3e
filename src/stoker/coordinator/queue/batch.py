"""Writes that wait to be made together: rows by statement, events, counts. One transaction takes them all.

A job moves at most once in a batch: whoever moves it again lets the batch be written first, so that statements may run
in any order among jobs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from stoker.coordinator.database.prepared import Prepared
from stoker.coordinator.database.writer_connection import WriterConnection
from stoker.coordinator.queue.statements import Statements


class RowChanged(Exception):
    """A row is not the one that was decided about: somebody else has written it."""


class Batch:
    """One group's writes, in the order of their tables."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._rows: defaultdict[Prepared, list[dict[str, Any]]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self.moved: set[int] = set()
        """Jobs that these rows move."""

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._counts

    def add(self, statement: Prepared, row: dict[str, Any]) -> None:
        """Take a row for a statement."""
        self._rows[statement].append(row)

    def add_all(self, statement: Prepared, rows: list[dict[str, Any]]) -> None:
        """Take many rows for a statement."""
        if rows:
            self._rows[statement] += rows

    def count(self, key: str, more: int) -> None:
        """Let a counter grow."""
        self._counts[key] += more

    def write(self, connection: WriterConnection) -> None:
        """Run everything. Raises `RowChanged` if a guarded statement did not find its row; roll back then."""
        for key, more in self._counts.items():
            if more:
                self._rows[self._statements.add_count].append({"key": key, "value": more})
        guarded, found = self._statements.guarded, self._rows
        work = [(statement, found[statement]) for statement in self._statements.in_order if statement in found]
        for (statement, rows), count in zip(work, connection.run_all(work), strict=True):
            if count != len(rows) and statement in guarded:
                raise RowChanged(statement.text)
        self.clear()

    def clear(self) -> None:
        """Forget what was taken."""
        self._rows.clear()
        self._counts.clear()
        self.moved.clear()
