"""Commands of users on existing jobs: cancel, requeue, priority, exec, pins, pruning, trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.queue.classes import class_of, with_checkpoint
from stoker.coordinator.queue.commands import (
    BeginExec,
    CancelJobs,
    DropTrees,
    EndExec,
    KeepTree,
    PinJobs,
    PruneBundles,
    QueueCommandResult,
    RequeueJobs,
    SetPriority,
    WantTree,
)
from stoker.coordinator.queue.endings import is_checkpoint_here
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import WriterTransaction, enter_line, leave_line, plain, telling
from stoker.core.errors import Forbidden, InvalidTransition, NotFound, Unavailable
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.leases import may_change
from stoker.core.retry import FailureCause


def cancel(transaction: WriterTransaction, asked: CancelJobs) -> QueueCommandResult:
    """Record a cancel request: pending jobs end now, workers get an instruction to stop live ones."""
    rows = rows_of(transaction, asked.jobs, asked.only_of)
    return _for_each(rows, lambda row: _cancel_one(transaction, row, plain(asked.by)))


def requeue(transaction: WriterTransaction, asked: RequeueJobs) -> QueueCommandResult:
    """Start terminal jobs again. All of them or, if one is live, none."""
    rows = rows_of(transaction, asked.jobs, asked.only_of)
    for row in rows:
        if row.state in (JobState.CLAIMED.value, JobState.RUNNING.value):
            raise InvalidTransition(
                f"{row.shown} is {row.state} on {row.machine} (attempt {row.attempt}); it can't be requeued",
                hint=f"cancel it first: `stoker cancel {row.shown}`",
                state=row.state,
                move="requeue",
            )
    return _for_each(rows, lambda row: _requeue_one(transaction, row, plain(asked.by)))


def set_priority(transaction: WriterTransaction, asked: SetPriority) -> QueueCommandResult:
    """Change the priority of jobs; for jobs that are not pending it applies when they are again."""
    rows = rows_of(transaction, asked.jobs, asked.only_of)
    return _for_each(rows, lambda row: _set_priority_one(transaction, row, asked.priority, plain(asked.by)))


def requeue_row(transaction: WriterTransaction, row: JobRow, *, spec: str, code: str, **fields: Any) -> None:
    """Requeue a terminal job under a higher epoch, with full retry budgets; its history stays."""
    class_id = class_of(transaction, loads(spec), row.submitter)
    is_ready = not row.blockers
    # A completed job restarts from step 0, often with other code.
    resumes = (
        row.checkpoint and row.state != JobState.COMPLETED.value and is_checkpoint_here(transaction, row.checkpoint)
    )
    checkpoint = row.checkpoint if resumes else ""
    if checkpoint:
        class_id = with_checkpoint(transaction, class_id)
    transaction.book.unbar(row.seq)
    transaction.move(row.seq)
    transaction.write(
        transaction.statements.requeue_job,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        epoch=row.epoch + 1,
        class_id=class_id,
        is_ready=is_ready,
        since_s=transaction.now_s,
        changed_s=transaction.now_s,
        blockers=row.blockers,
        spec=spec,
        code=code,
        checkpoint=checkpoint,
    )
    transaction.tell(
        FleetKinds.JOB_REQUEUED,
        seq=row.seq,
        epoch=row.epoch + 1,
        from_state=row.state,
        to_state="pending",
        fields={name: value for name, value in fields.items() if value},
    )
    transaction.count_move(row.state, "pending")
    if is_ready:
        fresh = row._replace(
            class_id=class_id,
            since_s=transaction.now_s,
            epoch=row.epoch + 1,
            user_failures=0,
            lost=0,
            declined=0,
            spec=spec,
            checkpoint=checkpoint,
        )
        enter_line(transaction, ReadyJobEntry.of(fresh))
    if row.state == JobState.COMPLETED.value:
        transaction.reopened.append(row.seq)


def _cancel_one(transaction: WriterTransaction, row: JobRow, by: str) -> str:
    if JobState(row.state).is_terminal:
        return f"{row.shown} is {row.state} already"
    if row.is_cancelling:
        return f"{row.shown} is being cancelled already"
    live = transaction.book.live_by_seq.get(row.seq)
    at = {"at_seq": row.seq, "was_epoch": row.epoch, "was_state": row.state}
    why = f"cancelled by {by}" if by else "cancelled"
    transaction.move(row.seq)
    event = {"seq": row.seq, "epoch": row.epoch, "attempt": row.attempt, "fields": {"by": by} if by else None}
    if live is not None:
        transaction.write(transaction.statements.mark_cancelling, **at, changed_s=transaction.now_s, message=why)
        live.is_cancelling, live.cancel_why = True, why
        transaction.call(live.machine)
        transaction.tell(FleetKinds.JOB_CANCELLING, machine=live.machine, **event)
        return ""
    transaction.write(
        transaction.statements.end_job,
        **at,
        state=JobState.CANCELLED.value,
        ended_s=transaction.now_s,
        changed_s=transaction.now_s,
        cause=FailureCause.CANCELLED.value,
        message=why,
        hint="",
        error="",
        exit_code=None,
        user_failures=row.user_failures,
        lost=row.lost,
    )
    transaction.tell(FleetKinds.JOB_CANCELLED, from_state=row.state, to_state="cancelled", **event)
    transaction.count_move(row.state, "cancelled")
    if row.is_ready:
        leave_line(transaction, row.class_id, row.priority, row.seq)
    return ""


def _requeue_one(transaction: WriterTransaction, row: JobRow, by: str) -> str:
    if row.state == JobState.PENDING.value:
        return f"{row.shown} is pending already"
    requeue_row(transaction, row, spec=row.spec, code=row.code, by=by)
    return ""


def _set_priority_one(transaction: WriterTransaction, row: JobRow, priority: int, by: str) -> str:
    if row.priority == priority:
        return f"{row.shown} has priority {priority} already"
    transaction.move(row.seq)
    transaction.write(
        transaction.statements.set_priority,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        priority=priority,
        changed_s=transaction.now_s,
    )
    fields = {"priority": priority, "was": row.priority, **({"by": by} if by else {})}
    transaction.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields=fields)
    live = transaction.book.live_by_seq.get(row.seq)
    if live is not None:
        live.job.priority = priority
    elif row.is_ready:
        leave_line(transaction, row.class_id, row.priority, row.seq)
        enter_line(transaction, ReadyJobEntry.of(row._replace(priority=priority)))
    return ""


def _for_each(rows: list[JobRow], do: Callable[[JobRow], str]) -> QueueCommandResult:
    changed, notes = [], []
    for row in rows:
        note = do(row)
        if note:
            notes.append(note)
        else:
            changed.append(row.id)
    return QueueCommandResult(changed=tuple(changed), notes=tuple(notes))


def rows_of(transaction: WriterTransaction, jobs: tuple[str, ...], only_of: str | None = None) -> list[JobRow]:
    """Return jobs by their ids, in this order; all or none. Raises `Forbidden` if one is not `only_of`'s."""
    ids = list(dict.fromkeys(jobs))
    found = {
        row[1]: JobRow(*row) for row in transaction.read(transaction.queries.jobs_by_id, ids=transaction.many(ids))
    }
    missing = [id for id in ids if id not in found]
    if missing:
        raise NotFound(f"there is no job {missing[0][:12]}", hint="`stoker jobs` lists them", jobs=missing)
    rows = [found[id] for id in ids]
    others = next((row for row in rows if not may_change(only_of, row.submitter)), None)
    if others is not None:
        submitter = others.submitter or "the coordinator's operator"
        raise Forbidden(
            f"{others.shown} was submitted by {submitter}: changing it needs the role operate",
            hint="contact its submitter, or a user with the role operate",
        )
    return rows


# Commands inside running jobs: where one runs, or why it can't; and an event with its user. Never its output, which
# only `http.exec_sessions` has.

_LONGEST_WORD = 200
_SHOWN_ID = 8
_MISSED_BEATS = 2
"""A machine with so many missed heartbeats counts as silent."""


def begin_exec(transaction: WriterTransaction, asked: BeginExec) -> QueueCommandResult:
    """Return where a job runs, and record who runs a command there. Refused, with its state, if it does not run."""
    row = rows_of(transaction, (asked.job,))[0]
    live = transaction.book.live.get(row.id)
    if live is None or live.state != JobState.RUNNING.value or live.is_cancelling:
        raise _not_running(row, live.machine if live is not None else "")
    machine = transaction.book.machines.get(live.machine)
    silent_s = float("inf") if machine is None else transaction.tick_s - machine.seen_tick_s
    if silent_s > _MISSED_BEATS * transaction.pace.heartbeat_s:
        since = f" for {silent_s:.0f} s" if machine is not None else ""
        hint = f"stoker machines show {live.machine}; if it stays away, its jobs are requeued"
        raise Unavailable(f"{live.machine}, where {row.shown} runs, has been silent{since}", hint=hint)
    fields = {
        "session": asked.session[:_SHOWN_ID],
        "program": plain(asked.program[:_LONGEST_WORD]),
        "by": plain(asked.by),
    }
    transaction.tell_live(FleetKinds.EXEC_BEGUN, live, telling(fields))
    where = {
        "name": row.shown,
        "machine": live.machine,
        "attempt": live.job.attempt,
        "epoch": live.job.epoch,
        "generation": live.generation,
    }
    return QueueCommandResult(changed=(row.id,), data=where)


def end_exec(transaction: WriterTransaction, asked: EndExec) -> QueueCommandResult:
    """Record that a command has ended."""
    row = rows_of(transaction, (asked.token.job,))[0]
    fields = {
        "session": asked.session[:_SHOWN_ID],
        "program": plain(asked.program[:_LONGEST_WORD]),
        "exit_code": asked.exit_code,
        "why": plain(asked.why),
        "by": plain(asked.by),
    }
    transaction.tell(
        FleetKinds.EXEC_ENDED,
        seq=row.seq,
        machine=asked.machine,
        attempt=asked.token.attempt,
        epoch=asked.token.epoch,
        fields=telling(fields),
    )
    return QueueCommandResult(changed=(row.id,))


EXEC_VERBS: dict[type, Callable[[WriterTransaction, Any], QueueCommandResult]] = {
    BeginExec: begin_exec,
    EndExec: end_exec,
}


def _not_running(row: JobRow, machine: str) -> InvalidTransition:
    name = row.shown
    if row.is_cancelling:
        what, hint = f"{name} is being cancelled on {machine}", f"stoker jobs show {name}"
    elif row.state == JobState.PENDING.value:
        what, hint = f"{name} is pending: no process of it runs", f"stoker explain {name} shows why"
    elif row.state == JobState.CLAIMED.value:
        hint = f"stoker logs -f {name} shows its progress"
        what = f"{name} is being prepared on {machine}: no process of it runs yet"
    else:
        where = f" on {row.machine}" if row.machine else ""
        what, hint = f"{name} has ended ({row.state}{where})", f"stoker get {name}, or stoker logs {name}"
    return InvalidTransition(what, hint=hint, state=row.state, move="exec", machine=machine or row.machine or "")


# Retention of results: pins, and marks of a prune before bytes are deleted.


def pin(transaction: WriterTransaction, asked: PinJobs) -> QueueCommandResult:
    """Pin or unpin the results of jobs; jobs without a result are in the notes."""
    rows = rows_of(transaction, asked.jobs)
    seqs = transaction.many(row.seq for row in rows)
    found = {
        seq for _, seq, _, pruned_s in transaction.read(transaction.queries.results_of, seqs=seqs) if pruned_s is None
    }
    changed, notes = [], []
    for row in rows:
        if row.seq not in found:
            notes.append(f"{row.shown} has no result to keep")
            continue
        transaction.write(transaction.statements.pin_results, at_seq=row.seq, is_pinned=asked.is_pinned)
        fields = {"pinned": asked.is_pinned, **({"by": plain(asked.by)} if asked.by else {})}
        transaction.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields=fields)
        changed.append(row.id)
    return QueueCommandResult(changed=tuple(changed), notes=tuple(notes))


def prune(transaction: WriterTransaction, asked: PruneBundles) -> QueueCommandResult:
    """Mark results as pruned, except pinned and already marked ones."""
    changed = []
    for id_, seq, is_pinned, pruned_s in transaction.read(
        transaction.queries.results, ids=transaction.many(asked.bundles)
    ):
        if is_pinned or pruned_s is not None:
            continue
        transaction.write(transaction.statements.prune_result, at_id=id_, pruned_s=transaction.now_s)
        fields = {"pruned": True, **({"by": plain(asked.by)} if asked.by else {})}
        transaction.tell(FleetKinds.JOB_CHANGED, seq=seq, fields=fields)
        changed.append(str(id_))
    return QueueCommandResult(changed=tuple(changed))


# Trees of code and data stored by the coordinator, and when each was last requested.
#
# A tree is listed once all of its bytes are stored, and unlisted before any of them is deleted. A submitter requests
# its trees first, so a tree that was requested after a prune examined it stays.

WANTED_AGAIN_S = 3600.0
"""A request for a tree is stored at most this often, so that a second submission writes nothing."""


def keep_tree(transaction: WriterTransaction, asked: KeepTree) -> QueueCommandResult:
    """List a tree, or record that a listed one was requested."""
    found = transaction.read(transaction.queries.content, of_tree=asked.tree)
    at_s = found[0][0] if found else transaction.now_s
    transaction.write(
        transaction.statements.put_content,
        tree=asked.tree,
        listing=asked.listing,
        files=asked.files,
        size_bytes=asked.size_bytes,
        at_s=at_s,
        wanted_s=transaction.now_s,
        is_pinned=bool(found[0][2]) if found else False,
    )
    return QueueCommandResult(changed=() if found else (asked.tree,))


def want_tree(transaction: WriterTransaction, asked: WantTree) -> QueueCommandResult:
    """Record that a tree is requested; `changed` names it if it is stored."""
    found = transaction.read(transaction.queries.content, of_tree=asked.tree)
    if not found:
        return QueueCommandResult()
    if transaction.now_s - found[0][1] > WANTED_AGAIN_S:
        transaction.write(transaction.statements.want_content, at_tree=asked.tree, wanted_s=transaction.now_s)
    return QueueCommandResult(changed=(asked.tree,))


def drop_trees(transaction: WriterTransaction, asked: DropTrees) -> QueueCommandResult:
    """Unlist trees that were not requested since they were examined; `changed` are those."""
    changed = []
    for tree, wanted_s in asked.trees:
        found = transaction.read(transaction.queries.content, of_tree=tree)
        if found and found[0][1] <= wanted_s and not found[0][2]:
            transaction.write(transaction.statements.drop_content, at_tree=tree)
            changed.append(tree)
    return QueueCommandResult(changed=tuple(changed))
