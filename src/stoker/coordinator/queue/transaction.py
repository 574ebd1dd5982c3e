"""One transaction of the writer: the state, the time, and the writes of one commit; and the moves of live jobs.

Each command is a function of a transaction and the command. It reads, decides, changes the state in memory and adds
rows; if the commit fails, the state is discarded and read again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy.engine import Dialect

from stoker.coordinator.database.database import PreparedStatement, WriterConnection
from stoker.coordinator.queue.queue_state import LiveLease, QueueContext, QueueState
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow, Queries, Statements
from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.jsontext import dumps
from stoker.core.leases import LeaseTiming
from stoker.core.retry import BudgetUsage, FailureCause, JobCancellation, JobFailure, after_failure


class RowChanged(Exception):
    """A row was modified by another process since it was read."""


class WriteBatch:
    """The writes of one group of commands, in the order of their tables.

    A job moves at most once in a batch: before a second move the batch is written, so that the order of statements
    among jobs does not matter.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._rows: defaultdict[PreparedStatement, list[dict[str, Any]]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self.moved: set[int] = set()
        """Jobs moved by these rows."""

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._counts

    def add(self, statement: PreparedStatement, row: dict[str, Any]) -> None:
        """Add a row for a statement."""
        self._rows[statement].append(row)

    def add_all(self, statement: PreparedStatement, rows: list[dict[str, Any]]) -> None:
        """Add many rows for a statement."""
        if rows:
            self._rows[statement] += rows

    def count(self, key: str, more: int) -> None:
        """Increase a counter."""
        self._counts[key] += more

    def write(self, connection: WriterConnection) -> None:
        """Run all statements. Raises `RowChanged` if a guarded one did not find its row; the caller rolls back."""
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
        """Discard all writes."""
        self._rows.clear()
        self._counts.clear()
        self.moved.clear()


class SqlStatements:
    """All statements of one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        self.queries = Queries(dialect)
        self.statements = Statements(dialect)


_words: dict[str, SqlStatements] = {}


def words_of(dialect: Dialect) -> SqlStatements:
    """Return the statements for a kind of database. Each is compiled once per process, when it is first used."""
    known = _words.get(dialect.name)
    if known is None:
        known = _words[dialect.name] = SqlStatements(dialect)
    return known


class WriterTransaction:
    """The transaction of one group of commands."""

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
        """By which leases expire."""
        self.called: dict[str, None] = {}
        """Machines that should send a claim again, in this order: for an instruction or a job."""
        self.pace = pace
        self.completed: list[int] = []
        """Jobs that completed in this transaction: jobs that depend on them may be ready."""
        self.reopened: list[int] = []
        """Jobs that are no longer completed."""
        self._connection = connection
        self._batch = WriteBatch(words.statements)
        self._is_open = False
        self._is_written = False
        book.waiting.fetch = self._read_ready

    def read(self, query: PreparedStatement, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with all writes of this transaction."""
        self._open()
        if not self._batch.is_empty:
            self._batch.write(self._connection)
            self._is_written = True
        return self._connection.read(query, **parameters)

    def many(self, values: Any) -> Any:
        """Return a list as one parameter."""
        return self._connection.many(list(values))

    def write(self, statement: PreparedStatement, **row: Any) -> None:
        """Add a row."""
        self._batch.add(statement, row)

    def write_all(self, statement: PreparedStatement, rows: list[dict[str, Any]]) -> None:
        """Add many rows."""
        self._batch.add_all(statement, rows)

    def move(self, seq: int) -> None:
        """Announce rows of a job; rows of it by an earlier command of this transaction are written first."""
        moved = self._batch.moved
        if seq in moved:
            self._open()
            self._batch.write(self._connection)
            self._is_written = True
        moved.add(seq)

    def tell(self, kind: str, **row: Any) -> None:
        """Add an event: one for every move, in the same commit."""
        book = self.book
        book.event_id += 1
        event = {**_NO_EVENT, "id": book.event_id, "at_s": self.now_s, "kind": kind, "generation": book.generation}
        event.update(row)
        fields = event["fields"]
        event["fields"] = dumps(fields) if fields else ""
        self._batch.add(self.statements.add_event, event)

    def tell_all(self, kind: str, seqs: Iterable[int], **row: Any) -> None:
        """Add the same event for each of these jobs."""
        book = self.book
        event = {**_NO_EVENT, "at_s": self.now_s, "kind": kind, "generation": book.generation, **row}
        event["fields"] = dumps(event["fields"]) if event["fields"] else ""
        first = book.event_id + 1
        rows = [{**event, "id": id, "seq": seq} for id, seq in enumerate(seqs, first)]
        book.event_id += len(rows)
        self._batch.add_all(self.statements.add_event, rows)

    def tell_live(self, kind: str, live: LiveLease, fields: dict[str, Any], *, to_state: str = "") -> None:
        """Add an event of a live job; with `to_state`, that of its move there, which is counted."""
        job = live.job
        self.tell(
            kind,
            seq=job.seq,
            machine=live.machine,
            attempt=job.attempt,
            epoch=job.epoch,
            from_state=live.state if to_state else "",
            to_state=to_state,
            fields=fields,
        )
        if to_state:
            self.count_move(live.state, to_state)
            live.state = to_state

    def count_move(self, before: str, after: str) -> None:
        """Update the counters of a job's states."""
        if before:
            self._batch.count(f"state:{before}", -1)
        self._batch.count(f"state:{after}", 1)

    def count(self, key: str, more: int) -> None:
        """Increase a counter."""
        self._batch.count(key, more)

    @property
    def is_dirty(self) -> bool:
        """True if there is anything to commit."""
        return self._is_written or not self._batch.is_empty

    def settle(self) -> None:
        """Send all pending writes, without the commit."""
        if not self._batch.is_empty:
            self._open()
            self._batch.write(self._connection)
            self._is_written = True

    def finish(self) -> None:
        """Commit, or roll back a transaction that only read."""
        if self._is_written:
            self._connection.commit()
        elif self._is_open:
            self._connection.roll_back()

    def call_machines(self) -> None:
        """Update the heads of ready jobs, and call the machines that should send a claim again."""
        self.book.waiting.freshen()
        self.called.update(dict.fromkeys(self.book.scheduler.calls(self.now_s)))

    def call(self, machine: str) -> None:
        """Request that a machine sends a claim again."""
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


# Moves of live jobs in rows: lease, attempt, job, one event; and the copy in memory likewise.

COMPLETED = "completed"
_NOTHING: tuple[object, ...] = ("", None, [])


@frozen
class AttemptEndRecord:
    """The recorded end of an attempt."""

    ending: str
    """completed, failed, released, declined, expired, cancelled."""
    kind: str
    """Of the event."""
    cause: str = ""
    job_cause: str = ""
    """Of the job, if it differs: poison."""
    message: str = ""
    hint: str = ""
    error: str = ""
    """JSON."""
    exit_code: int | None = None
    tree: str = ""
    facts: str = ""
    """JSON."""


def return_to_line(
    transaction: WriterTransaction, live: LiveLease, ending: AttemptEndRecord, *, pause_s: float = 0.0, **fields: Any
) -> None:
    """Return a live job to the queue, with the budgets of `live`."""
    is_ready = not live.blockers and pause_s <= 0
    not_before_s = transaction.now_s + pause_s if pause_s > 0 else 0.0
    _end_attempt(transaction, live, ending)
    transaction.write(
        transaction.statements.return_job,
        at_seq=live.job.seq,
        was_epoch=live.job.epoch,
        was_state=live.state,
        is_ready=is_ready,
        not_before_s=not_before_s,
        since_s=transaction.now_s,
        changed_s=transaction.now_s,
        user_failures=live.job.user_failures,
        lost=live.job.lost,
        declined=live.job.declined,
        cause=ending.cause,
        message=ending.message,
    )
    _tell(transaction, live, ending, JobState.PENDING, fields)
    if is_ready:
        live.job.since_s = transaction.now_s
        enter_line(transaction, live.job)
    elif not live.blockers:
        transaction.book.next_delay_s = min(transaction.book.next_delay_s, not_before_s)


def close_job(
    transaction: WriterTransaction, live: LiveLease, state: JobState, ending: AttemptEndRecord, **fields: Any
) -> None:
    """End a live job as failed or cancelled."""
    _end_attempt(transaction, live, ending)
    transaction.write(
        transaction.statements.end_job,
        at_seq=live.job.seq,
        was_epoch=live.job.epoch,
        was_state=live.state,
        state=state.value,
        ended_s=transaction.now_s,
        changed_s=transaction.now_s,
        cause=ending.job_cause or ending.cause,
        message=ending.message,
        hint=ending.hint,
        error=ending.error,
        exit_code=ending.exit_code,
        user_failures=live.job.user_failures,
        lost=live.job.lost,
    )
    _tell(transaction, live, ending, state, fields)


def complete_job(
    transaction: WriterTransaction, live: LiveLease, ending: AttemptEndRecord, row: dict[str, Any], **fields: Any
) -> None:
    """End a live job as completed; `row` is its result. If its start was not reported, it started now."""
    was_state = live.state
    if live.started_s is None:
        live.started_s = transaction.now_s
        tell_start(transaction, live)
    _end_attempt(transaction, live, ending)
    transaction.write(
        transaction.statements.finish_job,
        at_seq=live.job.seq,
        was_epoch=live.job.epoch,
        was_state=was_state,
        started_s=live.started_s,
        ended_s=transaction.now_s,
        changed_s=transaction.now_s,
        **row,
    )
    _tell(transaction, live, ending, JobState.COMPLETED, fields)
    transaction.completed.append(live.job.seq)


def tell_start(transaction: WriterTransaction, live: LiveLease, **fields: Any) -> None:
    """Record that a claimed job runs."""
    transaction.tell_live(FleetKinds.JOB_STARTED, live, fields, to_state=JobState.RUNNING.value)
    transaction.book.scheduler.leases.started(live.allocation, transaction.now_s)


def enter_line(transaction: WriterTransaction, job: ReadyJobEntry) -> None:
    """Add a ready job to the queue."""
    transaction.book.waiting.add(job)
    transaction.count(f"class:{job.class_id}", 1)


def leave_line(transaction: WriterTransaction, class_id: int, priority: int, seq: int) -> None:
    """Remove a ready job from the queue."""
    transaction.book.waiting.drop(class_id, priority, seq)
    transaction.count(f"class:{class_id}", -1)


def telling(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an event's fields without empty ones."""
    return {name: value for name, value in fields.items() if value not in _NOTHING}


def plain(text: str) -> str:
    """Return text that every database can store: PostgreSQL stores no NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def json_or_empty(value: dict[str, Any]) -> str:
    """Return an object as stored in a column."""
    return dumps(value) if value else ""


def _end_attempt(transaction: WriterTransaction, live: LiveLease, ending: AttemptEndRecord) -> None:
    transaction.move(live.job.seq)
    transaction.write(transaction.statements.end_lease, at_seq=live.job.seq, was_epoch=live.job.epoch)
    transaction.write(
        transaction.statements.end_attempt,
        at_seq=live.job.seq,
        was_epoch=live.job.epoch,
        at_attempt=live.job.attempt,
        started_s=live.started_s,
        ended_s=transaction.now_s,
        ending=ending.ending,
        cause=ending.cause,
        message=ending.message,
        hint=ending.hint,
        exit_code=ending.exit_code,
        tree=ending.tree,
        facts=ending.facts,
    )
    transaction.book.drop_live(live, transaction.now_s, is_completed=ending.ending == COMPLETED)


def _tell(
    transaction: WriterTransaction, live: LiveLease, ending: AttemptEndRecord, state: JobState, fields: dict[str, Any]
) -> None:
    event_fields = {"cause": ending.job_cause or ending.cause, "message": ending.message, **fields}
    transaction.tell_live(ending.kind, live, telling(event_fields), to_state=state.value)


# Leases of lost workers: charged to the worker, not to the job, until it has happened too often.

_UNCONFIRMED = AttemptEndRecord(
    ending="expired",
    kind=FleetKinds.JOB_CANCELLED,
    cause=FailureCause.CANCELLED.value,
    message="unconfirmed: the worker was lost before it confirmed the stop",
)


def lose(transaction: WriterTransaction, live: LiveLease, why: str) -> None:
    """End an expired lease, guarded like every write: only if its row is unchanged."""
    job = live.job
    job.lost += 1
    job.lost, workers_lost = _losses(transaction, live)
    spent = BudgetUsage(user_failures=job.user_failures, lost=job.lost, workers_lost=workers_lost)
    then = after_failure(
        FailureCause.LOST,
        spent,
        transaction.setting.budgets,
        attempts=live.attempts,
        is_cancelling=live.is_cancelling,
        randomness=transaction.setting.randomness(),
    )
    if isinstance(then, JobCancellation):
        close_job(transaction, live, JobState.CANCELLED, _UNCONFIRMED, why=why)
    elif isinstance(then, JobFailure):
        ending = AttemptEndRecord(
            ending="expired",
            kind=FleetKinds.JOB_FAILED,
            cause=FailureCause.LOST.value,
            job_cause=then.cause,
            message=f"{why}; {then.why}",
            hint="check the machines' logs, then run `stoker jobs requeue`",
        )
        close_job(transaction, live, JobState.FAILED, ending)
    else:
        ending = AttemptEndRecord(
            ending="expired", kind=FleetKinds.JOB_EXPIRED, cause=FailureCause.LOST.value, message=why
        )
        return_to_line(transaction, live, ending, pause_s=then.pause_s, why=then.why)
        if machine := transaction.book.machines.get(live.machine):
            machine.late_until_tick_s = float("inf")


def forgive(transaction: WriterTransaction, live: LiveLease, why: str, *, cause: str = "") -> None:
    """End a lease without a charge: the coordinator was restored from a backup, or its machine was preempted."""
    if live.is_cancelling:
        close_job(transaction, live, JobState.CANCELLED, _UNCONFIRMED, why=why)
    else:
        ending = AttemptEndRecord(ending="expired", kind=FleetKinds.JOB_EXPIRED, cause=cause, message=why)
        return_to_line(transaction, live, ending)


FORGIVEN_S = 600.0
"""A machine whose backend ended it within this time after a lease expired was lost by the backend's doing."""


def forgive_machine(transaction: WriterTransaction, machine: str) -> None:
    """Count leases of a machine that expired before its preemption was known as preempted, not as lost."""
    transaction.write(
        transaction.statements.forgive_attempts,
        at_machine=machine,
        after_s=transaction.now_s - FORGIVEN_S,
        was_cause=FailureCause.LOST.value,
        cause=FailureCause.PREEMPTED.value,
    )


def _losses(transaction: WriterTransaction, live: LiveLease) -> tuple[int, int]:
    """Return how often this job was lost, and with how many different workers, since it was submitted or requeued.

    Attempts that were forgiven since do not count.
    """
    is_started = live.started_s is not None
    if live.job.lost < transaction.setting.budgets.poisoned:
        return live.job.lost, int(is_started)
    rows = transaction.read(transaction.queries.lost_attempts, of_seq=live.job.seq, most=live.job.lost - 1)
    machines = {machine for machine, started_s, ending in rows if ending == "expired" and started_s is not None}
    return len(rows) + 1, len(machines | {live.machine}) if is_started else 0


# Jobs that depend on others: the number of unfinished dependencies, counted again whenever one completes or reopens.


def update_followers(transaction: WriterTransaction) -> None:
    """Count the blockers of jobs that depend on one that completed or reopened in this transaction."""
    done = [*transaction.completed, *transaction.reopened]
    if not done or not transaction.book.has_after:
        return
    followers = {seq for (seq,) in transaction.read(transaction.queries.followers, seqs=transaction.many(done))}
    if followers:
        recount(transaction, followers)


def recount(transaction: WriterTransaction, seqs: Iterable[int]) -> None:
    """Count the blockers of these jobs again."""
    some = transaction.many(sorted(seqs))
    blockers = Counter(
        seq
        for seq, _, state in transaction.read(transaction.queries.before, seqs=some)
        if state != JobState.COMPLETED.value
    )
    for row in (JobRow(*row) for row in transaction.read(transaction.queries.jobs_by_seq, seqs=some)):
        if blockers[row.seq] != row.blockers:
            _set_blockers(transaction, row, blockers[row.seq])


def _set_blockers(transaction: WriterTransaction, row: JobRow, blockers: int) -> None:
    is_pending = row.state == JobState.PENDING.value
    is_ready = is_pending and not blockers and row.not_before_s <= transaction.now_s
    since_s = transaction.now_s if is_ready else row.since_s
    transaction.move(row.seq)
    transaction.write(
        transaction.statements.block_job,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        blockers=blockers,
        is_ready=is_ready,
        since_s=since_s,
        changed_s=transaction.now_s,
    )
    live = transaction.book.live_by_seq.get(row.seq)
    if live is not None:
        live.blockers = blockers
    if row.is_ready and not is_ready:
        leave_line(transaction, row.class_id, row.priority, row.seq)
    elif is_ready and not row.is_ready:
        enter_line(transaction, ReadyJobEntry.of(row._replace(since_s=since_s)))
        transaction.tell(FleetKinds.JOB_READY, seq=row.seq, epoch=row.epoch)
    elif is_pending and not blockers:
        transaction.book.next_delay_s = min(transaction.book.next_delay_s, row.not_before_s)
