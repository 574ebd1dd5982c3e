"""How a live attempt ends, in rows: its lease, its attempt, its job, one event; and the copy in memory alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from stoker.coordinator.queue.queue_state import LiveLease
from stoker.coordinator.queue.ready import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction
from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.jsontext import dumps
from stoker.core.retry import BudgetUsage, FailureCause, JobCancellation, JobFailure, after_failure

COMPLETED = "completed"
_NOTHING: tuple[object, ...] = ("", None, [])


@frozen
class AttemptEndRecord:
    """What is recorded of an attempt's end."""

    ending: str
    """completed, failed, released, declined, expired, cancelled."""
    kind: str
    """The event's."""
    cause: str = ""
    job_cause: str = ""
    """The job's, where it is another one: poison."""
    message: str = ""
    hint: str = ""
    error: str = ""
    """JSON."""
    exit_code: int | None = None
    tree: str = ""
    facts: str = ""
    """JSON."""


def return_to_line(
    turn: WriterTransaction, live: LiveLease, ending: AttemptEndRecord, *, pause_s: float = 0.0, **fields: Any
) -> None:
    """Put a live job back among the pending, with what `live` now says about its budgets."""
    is_ready = not live.blockers and pause_s <= 0
    not_before_s = turn.now_s + pause_s if pause_s > 0 else 0.0
    _end_attempt(turn, live, ending)
    turn.write(
        turn.statements.return_job,
        at_seq=live.seq,
        was_epoch=live.epoch,
        was_state=live.state,
        is_ready=is_ready,
        not_before_s=not_before_s,
        since_s=turn.now_s,
        changed_s=turn.now_s,
        user_failures=live.user_failures,
        lost=live.lost,
        declined=live.declined,
        cause=ending.cause,
        message=ending.message,
    )
    _tell(turn, live, ending, JobState.PENDING, fields)
    if is_ready:
        enter_line(turn, ready_again(live, turn.now_s))
    elif not live.blockers:
        turn.book.next_delay_s = min(turn.book.next_delay_s, not_before_s)


def close_job(
    turn: WriterTransaction, live: LiveLease, state: JobState, ending: AttemptEndRecord, **fields: Any
) -> None:
    """End a live job as failed or cancelled."""
    _end_attempt(turn, live, ending)
    turn.write(
        turn.statements.end_job,
        at_seq=live.seq,
        was_epoch=live.epoch,
        was_state=live.state,
        state=state.value,
        ended_s=turn.now_s,
        changed_s=turn.now_s,
        cause=ending.job_cause or ending.cause,
        message=ending.message,
        hint=ending.hint,
        error=ending.error,
        exit_code=ending.exit_code,
        user_failures=live.user_failures,
        lost=live.lost,
    )
    _tell(turn, live, ending, state, fields)


def complete_job(
    turn: WriterTransaction, live: LiveLease, ending: AttemptEndRecord, row: dict[str, Any], **fields: Any
) -> None:
    """End a live job as completed; `row` is its result. One that never said that it started has started now."""
    was_state = live.state
    if live.started_s is None:
        live.started_s = turn.now_s
        tell_start(turn, live)
    _end_attempt(turn, live, ending)
    turn.write(
        turn.statements.finish_job,
        at_seq=live.seq,
        was_epoch=live.epoch,
        was_state=was_state,
        started_s=live.started_s,
        ended_s=turn.now_s,
        changed_s=turn.now_s,
        **row,
    )
    _tell(turn, live, ending, JobState.COMPLETED, fields)
    turn.completed.append(live.seq)


def tell_start(turn: WriterTransaction, live: LiveLease, **fields: Any) -> None:
    """Tell that a claimed job runs."""
    turn.tell(
        FleetKinds.JOB_STARTED,
        seq=live.seq,
        machine=live.machine,
        attempt=live.attempt,
        epoch=live.epoch,
        from_state=live.state,
        to_state=JobState.RUNNING.value,
        fields=fields,
    )
    turn.count_move(live.state, JobState.RUNNING.value)
    live.state = JobState.RUNNING.value
    turn.book.scheduler.leases.started(live.allocation, turn.now_s)


def enter_line(turn: WriterTransaction, job: ReadyJobEntry) -> None:
    """Let a job be offered."""
    turn.book.waiting.add(job)
    turn.count(f"class:{job.class_id}", 1)


def leave_line(turn: WriterTransaction, class_id: int, priority: int, seq: int) -> None:
    """Let a ready job be offered no more."""
    turn.book.waiting.drop(class_id, priority, seq)
    turn.count(f"class:{class_id}", -1)


def ready_again(live: LiveLease, now_s: float) -> ReadyJobEntry:
    """Return a live job as it stands in the line; its spec is read when it is granted."""
    return ReadyJobEntry(
        seq=live.seq,
        id=live.id,
        class_id=live.class_id,
        priority=live.priority,
        since_s=now_s,
        epoch=live.epoch,
        attempt=live.attempt,
        user_failures=live.user_failures,
        lost=live.lost,
        declined=live.declined,
        spec="",
        checkpoint="",
    )


def telling(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an event's fields without those that say nothing."""
    return {name: value for name, value in fields.items() if value not in _NOTHING}


def plain(text: str) -> str:
    """Return free text as every database takes it: PostgreSQL stores no NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def json_or_empty(value: dict[str, Any]) -> str:
    """Return an object as a column holds it."""
    return dumps(value) if value else ""


def _end_attempt(turn: WriterTransaction, live: LiveLease, ending: AttemptEndRecord) -> None:
    turn.move(live.seq)
    turn.write(turn.statements.end_lease, at_seq=live.seq, was_epoch=live.epoch)
    turn.write(
        turn.statements.end_attempt,
        at_seq=live.seq,
        was_epoch=live.epoch,
        at_attempt=live.attempt,
        started_s=live.started_s,
        ended_s=turn.now_s,
        ending=ending.ending,
        cause=ending.cause,
        message=ending.message,
        hint=ending.hint,
        exit_code=ending.exit_code,
        tree=ending.tree,
        facts=ending.facts,
    )
    turn.book.drop_live(live, turn.now_s, is_completed=ending.ending == COMPLETED)


def _tell(
    turn: WriterTransaction, live: LiveLease, ending: AttemptEndRecord, state: JobState, fields: dict[str, Any]
) -> None:
    told = {"cause": ending.job_cause or ending.cause, "message": ending.message, **fields}
    turn.tell(
        ending.kind,
        seq=live.seq,
        machine=live.machine,
        attempt=live.attempt,
        epoch=live.epoch,
        from_state=live.state,
        to_state=state.value,
        fields=telling(told),
    )
    turn.count_move(live.state, state.value)
    live.state = state.value


# Leases whose worker went away: charged to the worker, not to the job, until it has happened too often.

_UNCONFIRMED = AttemptEndRecord(
    ending="expired",
    kind=FleetKinds.JOB_CANCELLED,
    cause=FailureCause.CANCELLED.value,
    message="unconfirmed: its worker went away before it said that it stopped",
)


def lose(turn: WriterTransaction, live: LiveLease, why: str) -> None:
    """End a lease that is over, like any writer: only if it is still the one that was looked at."""
    live.lost += 1
    spent = BudgetUsage(user_failures=live.user_failures, lost=live.lost, workers_lost=_workers_lost(turn, live))
    then = after_failure(
        FailureCause.LOST,
        spent,
        turn.setting.budgets,
        attempts=live.attempts,
        is_cancelling=live.is_cancelling,
        randomness=turn.setting.randomness(),
    )
    if isinstance(then, JobCancellation):
        close_job(turn, live, JobState.CANCELLED, _UNCONFIRMED, why=why)
    elif isinstance(then, JobFailure):
        ending = AttemptEndRecord(
            ending="expired",
            kind=FleetKinds.JOB_FAILED,
            cause=FailureCause.LOST.value,
            job_cause=then.cause,
            message=f"{why}; {then.why}",
            hint="look at the machines' logs, then `stoker jobs requeue`",
        )
        close_job(turn, live, JobState.FAILED, ending)
    else:
        ending = AttemptEndRecord(
            ending="expired", kind=FleetKinds.JOB_EXPIRED, cause=FailureCause.LOST.value, message=why
        )
        return_to_line(turn, live, ending, pause_s=then.pause_s, why=then.why)
        if machine := turn.book.machines.get(live.machine):
            machine.late_until_tick_s = float("inf")


def forgive(turn: WriterTransaction, live: LiveLease, why: str) -> None:
    """End a lease that nobody is to blame for: the coordinator's own past was restored from a backup."""
    if live.is_cancelling:
        close_job(turn, live, JobState.CANCELLED, _UNCONFIRMED, why=why)
    else:
        return_to_line(turn, live, AttemptEndRecord(ending="expired", kind=FleetKinds.JOB_EXPIRED, message=why))


def _workers_lost(turn: WriterTransaction, live: LiveLease) -> int:
    """Count the different workers that went away while they ran this job, since it was last submitted or requeued."""
    if live.started_s is None or live.lost < turn.setting.budgets.poisoned:
        return 1 if live.started_s is not None else 0
    rows = turn.read(turn.queries.lost_attempts, of_seq=live.seq, most=live.lost - 1)
    machines = {machine for machine, started_s, ending in rows if ending == "expired" and started_s is not None}
    return len(machines | {live.machine})


# Jobs that come after others: how many they still wait for, counted anew whenever one of those is done or undone.


def update_followers(turn: WriterTransaction) -> None:
    """Count again for everybody who comes after a job that completed, or completed no more, in this turn."""
    done = [*turn.completed, *turn.reopened]
    if not done or not turn.book.has_after:
        return
    followers = {seq for (seq,) in turn.read(turn.queries.followers, seqs=turn.many(done))}
    if followers:
        recount(turn, followers)


def recount(turn: WriterTransaction, seqs: Iterable[int]) -> None:
    """Count again what these jobs wait for."""
    asked = turn.many(sorted(seqs))
    blockers = Counter(
        seq for seq, _, state in turn.read(turn.queries.before, seqs=asked) if state != JobState.COMPLETED.value
    )
    for row in (JobRow(*row) for row in turn.read(turn.queries.jobs_by_seq, seqs=asked)):
        if blockers[row.seq] != row.blockers:
            _set_blockers(turn, row, blockers[row.seq])


def _set_blockers(turn: WriterTransaction, row: JobRow, blockers: int) -> None:
    is_pending = row.state == JobState.PENDING.value
    is_ready = is_pending and not blockers and row.not_before_s <= turn.now_s
    since_s = turn.now_s if is_ready else row.since_s
    turn.move(row.seq)
    turn.write(
        turn.statements.block_job,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        blockers=blockers,
        is_ready=is_ready,
        since_s=since_s,
        changed_s=turn.now_s,
    )
    live = turn.book.live_by_seq.get(row.seq)
    if live is not None:
        live.blockers = blockers
    if row.is_ready and not is_ready:
        leave_line(turn, row.class_id, row.priority, row.seq)
    elif is_ready and not row.is_ready:
        enter_line(turn, ReadyJobEntry.of(row._replace(since_s=since_s)))
        turn.tell(FleetKinds.JOB_READY, seq=row.seq, epoch=row.epoch)
    elif is_pending and not blockers:
        turn.book.next_delay_s = min(turn.book.next_delay_s, row.not_before_s)
