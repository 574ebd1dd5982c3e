"""What people ask of jobs that are there: cancel, requeue, another priority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.queue.classes import class_of
from stoker.coordinator.queue.commands import CancelJobs, Done, RequeueJobs, SetPriority
from stoker.coordinator.queue.moves import enter_line, leave_line, plain
from stoker.coordinator.queue.results import is_checkpoint_here
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.model.errors import IllegalMove, NotFound
from stoker.model.fleet_errors import NotAllowed
from stoker.model.fleet_events import FleetKinds
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.principals import may_change
from stoker.model.retry import Cause


def cancel(turn: Turn, asked: CancelJobs) -> Done:
    """Note for good that nobody wants these jobs: what waits ends now, what runs is told to stop."""
    rows = rows_of(turn, asked.jobs, asked.only_of)
    return _for_each(rows, lambda row: _cancel_one(turn, row, plain(asked.by)))


def requeue(turn: Turn, asked: RequeueJobs) -> Done:
    """Start terminal jobs again. All of them or, if one is live, none."""
    rows = rows_of(turn, asked.jobs, asked.only_of)
    for row in rows:
        if row.state in (JobState.CLAIMED.value, JobState.RUNNING.value):
            raise IllegalMove(
                f"{row.shown} is {row.state} on {row.machine} (attempt {row.attempt}); it can't be requeued",
                hint=f"cancel it first: `stoker cancel {row.shown}`",
                state=row.state,
                move="requeue",
            )
    return _for_each(rows, lambda row: _requeue_one(turn, row, plain(asked.by)))


def set_priority(turn: Turn, asked: SetPriority) -> Done:
    """Put jobs elsewhere in the line; of those that do not wait, it counts should they wait again."""
    rows = rows_of(turn, asked.jobs, asked.only_of)
    return _for_each(rows, lambda row: _set_priority_one(turn, row, asked.priority, plain(asked.by)))


def requeue_row(turn: Turn, row: JobRow, *, spec: str, code: str, **fields: Any) -> None:
    """Put a terminal job back into the line under a higher epoch, its budgets whole again; its history stays."""
    class_id = class_of(turn, loads(spec), row.submitter)
    is_ready = not row.blockers
    # What has completed has nothing to go on from: it is wanted anew, often with other code.
    goes_on = row.checkpoint and row.state != JobState.COMPLETED.value and is_checkpoint_here(turn, row.checkpoint)
    checkpoint = row.checkpoint if goes_on else ""
    turn.book.unbar(row.seq)
    turn.move(row.seq)
    turn.write(
        turn.statements.requeue_job,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        epoch=row.epoch + 1,
        class_id=class_id,
        is_ready=is_ready,
        since_s=turn.now_s,
        changed_s=turn.now_s,
        blockers=row.blockers,
        spec=spec,
        code=code,
        checkpoint=checkpoint,
    )
    turn.tell(
        FleetKinds.JOB_REQUEUED,
        seq=row.seq,
        epoch=row.epoch + 1,
        from_state=row.state,
        to_state="pending",
        fields={name: value for name, value in fields.items() if value},
    )
    turn.count_move(row.state, "pending")
    if is_ready:
        fresh = row._replace(
            class_id=class_id,
            since_s=turn.now_s,
            epoch=row.epoch + 1,
            user_failures=0,
            lost=0,
            declined=0,
            spec=spec,
            checkpoint=checkpoint,
        )
        enter_line(turn, Ready.of(fresh))
    if row.state == JobState.COMPLETED.value:
        turn.reopened.append(row.seq)


def _cancel_one(turn: Turn, row: JobRow, by: str) -> str:
    if JobState(row.state).is_terminal:
        return f"{row.shown} is {row.state} already"
    if row.is_cancelling:
        return f"{row.shown} is being cancelled already"
    live = turn.book.live_by_seq.get(row.seq)
    at = {"at_seq": row.seq, "was_epoch": row.epoch, "was_state": row.state}
    why = f"cancelled by {by}" if by else "cancelled"
    turn.move(row.seq)
    told = {"seq": row.seq, "epoch": row.epoch, "attempt": row.attempt, "fields": {"by": by} if by else None}
    if live is not None:
        turn.write(turn.statements.mark_cancelling, **at, changed_s=turn.now_s, message=why)
        live.is_cancelling, live.cancel_why = True, why
        turn.call(live.machine)
        turn.tell(FleetKinds.JOB_CANCELLING, machine=live.machine, **told)
        return ""
    turn.write(
        turn.statements.end_job,
        **at,
        state=JobState.CANCELLED.value,
        ended_s=turn.now_s,
        changed_s=turn.now_s,
        cause=Cause.CANCELLED.value,
        message=why,
        hint="",
        error="",
        exit_code=None,
        user_failures=row.user_failures,
        lost=row.lost,
    )
    turn.tell(FleetKinds.JOB_CANCELLED, from_state=row.state, to_state="cancelled", **told)
    turn.count_move(row.state, "cancelled")
    if row.is_ready:
        leave_line(turn, row.class_id, row.priority, row.seq)
    return ""


def _requeue_one(turn: Turn, row: JobRow, by: str) -> str:
    if row.state == JobState.PENDING.value:
        return f"{row.shown} waits already"
    requeue_row(turn, row, spec=row.spec, code=row.code, by=by)
    return ""


def _set_priority_one(turn: Turn, row: JobRow, priority: int, by: str) -> str:
    if row.priority == priority:
        return f"{row.shown} has priority {priority} already"
    turn.move(row.seq)
    turn.write(
        turn.statements.set_priority,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        priority=priority,
        changed_s=turn.now_s,
    )
    fields = {"priority": priority, "was": row.priority, **({"by": by} if by else {})}
    turn.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields=fields)
    live = turn.book.live_by_seq.get(row.seq)
    if live is not None:
        live.priority = priority
    elif row.is_ready:
        leave_line(turn, row.class_id, row.priority, row.seq)
        enter_line(turn, Ready.of(row._replace(priority=priority)))
    return ""


def _for_each(rows: list[JobRow], do: Callable[[JobRow], str]) -> Done:
    changed, notes = [], []
    for row in rows:
        note = do(row)
        if note:
            notes.append(note)
        else:
            changed.append(row.id)
    return Done(changed=tuple(changed), notes=tuple(notes))


def rows_of(turn: Turn, jobs: tuple[str, ...], only_of: str | None = None) -> list[JobRow]:
    """Read jobs by their ids, in the order asked; all of them or none. `NotAllowed` if one is not `only_of`'s."""
    ids = list(dict.fromkeys(jobs))
    found = {row[1]: JobRow(*row) for row in turn.read(turn.queries.jobs_by_id, ids=turn.many(ids))}
    missing = [id for id in ids if id not in found]
    if missing:
        raise NotFound(f"there is no job {missing[0][:12]}", hint="`stoker jobs` lists them", jobs=missing)
    rows = [found[id] for id in ids]
    others = next((row for row in rows if not may_change(only_of, row.submitter)), None)
    if others is not None:
        submitter = others.submitter or "the coordinator's operator"
        raise NotAllowed(
            f"{others.shown} was submitted by {submitter}: changing it needs the role operate",
            hint="ask its submitter, or somebody with the role operate",
        )
    return rows
