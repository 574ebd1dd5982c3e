"""How a live attempt ends, in rows: its lease, its attempt, its job, one event; and the copy in memory alike."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.queue.book import Live
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps
from stoker.model.lifecycle import JobState

COMPLETED = "completed"
_NOTHING: tuple[object, ...] = ("", None, [])


@frozen
class Ending:
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


def return_to_line(turn: Turn, live: Live, ending: Ending, *, pause_s: float = 0.0, **fields: Any) -> None:
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


def close_job(turn: Turn, live: Live, state: JobState, ending: Ending, **fields: Any) -> None:
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


def complete_job(turn: Turn, live: Live, ending: Ending, row: dict[str, Any], **fields: Any) -> None:
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


def tell_start(turn: Turn, live: Live, **fields: Any) -> None:
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


def enter_line(turn: Turn, job: Ready) -> None:
    """Let a job be offered."""
    turn.book.waiting.add(job)
    turn.count(f"class:{job.class_id}", 1)


def leave_line(turn: Turn, class_id: int, priority: int, seq: int) -> None:
    """Let a ready job be offered no more."""
    turn.book.waiting.drop(class_id, priority, seq)
    turn.count(f"class:{class_id}", -1)


def ready_again(live: Live, now_s: float) -> Ready:
    """Give a live job as it stands in the line; its spec is read when it is granted."""
    return Ready(
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
    """Give an event's fields without those that say nothing."""
    return {name: value for name, value in fields.items() if value not in _NOTHING}


def plain(text: str) -> str:
    """Give free text as every database takes it: PostgreSQL stores no NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def json_or_empty(value: dict[str, Any]) -> str:
    """Give an object as a column holds it."""
    return dumps(value) if value else ""


def _end_attempt(turn: Turn, live: Live, ending: Ending) -> None:
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


def _tell(turn: Turn, live: Live, ending: Ending, state: JobState, fields: dict[str, Any]) -> None:
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
