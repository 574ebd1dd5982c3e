"""One turn of the writer: what is known, the time, and the writes that one commit will make durable.

Verbs take a turn and a command. They look things up, decide, change what is kept in memory and leave rows; if the
commit fails, memory is thrown away and read again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy.engine import Dialect

from stoker.coordinator.database.database import PreparedStatement, WriterConnection
from stoker.coordinator.queue.queue_state import QueueContext, QueueState
from stoker.coordinator.queue.ready import ReadyJobEntry
from stoker.coordinator.queue.sql import Queries, Statements
from stoker.core.jsontext import dumps
from stoker.core.leases import LeaseTiming

# Writes that wait to be made together: rows by statement, events, counts. One transaction takes them all.
#
# A job moves at most once in a batch: whoever moves it again lets the batch be written first, so that statements may
# run in any order among jobs.


class RowChanged(Exception):
    """A row is not the one that was decided about: somebody else has written it."""


class WriteBatch:
    """One group's writes, in the order of their tables."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._rows: defaultdict[PreparedStatement, list[dict[str, Any]]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self.moved: set[int] = set()
        """Jobs that these rows move."""

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._counts

    def add(self, statement: PreparedStatement, row: dict[str, Any]) -> None:
        """Take a row for a statement."""
        self._rows[statement].append(row)

    def add_all(self, statement: PreparedStatement, rows: list[dict[str, Any]]) -> None:
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


class SqlStatements:
    """All statements of one database."""

    def __init__(self, dialect: Dialect) -> None:
        self.queries = Queries(dialect)
        self.statements = Statements(dialect)


_words: dict[str, SqlStatements] = {}


def words_of(dialect: Dialect) -> SqlStatements:
    """Return the statements for a sort of database; compiling them takes some 40 ms, once per process."""
    known = _words.get(dialect.name)
    if known is None:
        known = _words[dialect.name] = SqlStatements(dialect)
    return known


class WriterTransaction:
    """Made anew for every group of commands."""

    def __init__(
        self,
        setting: QueueContext,
        book: QueueState,
        connection: WriterConnection,
        words: SqlStatements,
        pace: LeaseTiming,
    ) -> None:
        self.setting = setting
        self.book = book
        self.queries = words.queries
        self.statements = words.statements
        self.now_s = book.time.now_s()
        """To store."""
        jumped_s = book.time.take_jump_s()
        if jumped_s:
            book.scheduler.shift(-jumped_s)
        self.tick_s = book.time.tick_s()
        """To judge leases by."""
        self.called: dict[str, None] = {}
        """Machines that should ask again, in this order: for what to do with a lease of theirs, or for a job."""
        self.pace = pace
        self.completed: list[int] = []
        """Jobs that completed in this turn: whoever was to come after them may be ready."""
        self.reopened: list[int] = []
        """Jobs that are no longer completed."""
        self._connection = connection
        self._batch = WriteBatch(words.statements)
        self._is_open = False
        self._is_written = False
        book.waiting.fetch = self._read_ready

    def read(self, query: PreparedStatement, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds, as they are with all writes of this turn."""
        self._open()
        if not self._batch.is_empty:
            self._batch.write(self._connection)
            self._is_written = True
        return self._connection.read(query, **parameters)

    def many(self, values: Any) -> Any:
        """Return a list as one parameter."""
        return self._connection.many(list(values))

    def write(self, statement: PreparedStatement, **row: Any) -> None:
        """Leave a row."""
        self._batch.add(statement, row)

    def write_all(self, statement: PreparedStatement, rows: list[dict[str, Any]]) -> None:
        """Leave many rows."""
        self._batch.add_all(statement, rows)

    def move(self, seq: int) -> None:
        """Say that rows of this job follow; what an earlier command of this turn did to it is written first."""
        moved = self._batch.moved
        if seq in moved:
            self._open()
            self._batch.write(self._connection)
            self._is_written = True
        moved.add(seq)

    def tell(self, kind: str, **row: Any) -> None:
        """Leave an event: one for every move, in the same commit."""
        book = self.book
        book.event_id += 1
        told = {**_NO_EVENT, "id": book.event_id, "at_s": self.now_s, "kind": kind, "generation": book.generation}
        told.update(row)
        fields = told["fields"]
        told["fields"] = dumps(fields) if fields else ""
        self._batch.add(self.statements.add_event, told)

    def tell_all(self, kind: str, seqs: Iterable[int], **row: Any) -> None:
        """Leave the same event, but for the job, of each of these."""
        book = self.book
        told = {**_NO_EVENT, "at_s": self.now_s, "kind": kind, "generation": book.generation, **row}
        told["fields"] = dumps(told["fields"]) if told["fields"] else ""
        first = book.event_id + 1
        rows = [{**told, "id": id, "seq": seq} for id, seq in enumerate(seqs, first)]
        book.event_id += len(rows)
        self._batch.add_all(self.statements.add_event, rows)

    def count_move(self, before: str, after: str) -> None:
        """Count a job out of one state and into another."""
        if before:
            self._batch.count(f"state:{before}", -1)
        self._batch.count(f"state:{after}", 1)

    def count(self, key: str, more: int) -> None:
        """Let a counter grow."""
        self._batch.count(key, more)

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to commit."""
        return self._is_written or not self._batch.is_empty

    def settle(self) -> None:
        """Write everything that waits, short of the commit."""
        if not self._batch.is_empty:
            self._open()
            self._batch.write(self._connection)
            self._is_written = True

    def finish(self) -> None:
        """Commit, or end a transaction that only read."""
        if self._is_written:
            self._connection.commit()
        elif self._is_open:
            self._connection.roll_back()

    def call_machines(self) -> None:
        """Bring the heads of the ready jobs up to date, and call the machines that should ask again now."""
        self.book.waiting.freshen()
        self.called.update(dict.fromkeys(self.book.scheduler.calls(self.now_s)))

    def call(self, machine: str) -> None:
        """Let a machine ask again."""
        self.called[machine] = None

    def _read_ready(self, class_id: int, priority: int, after_seq: int, most: int) -> list[ReadyJobEntry]:
        """Read the next ready jobs of a level."""
        rows = self.read(self.queries.page, of_class=class_id, of_priority=priority, after_seq=after_seq, most=most)
        return [ReadyJobEntry(*row) for row in rows]

    def _open(self) -> None:
        if not self._is_open:
            self._connection.begin()
            self._is_open = True


_NO_EVENT: dict[str, Any] = {
    "seq": None,
    "machine": "",
    "attempt": None,
    "epoch": None,
    "from_state": "",
    "to_state": "",
    "fields": None,
}
