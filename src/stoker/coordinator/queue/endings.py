"""Reports of attempts: start, decline, release, finish, fail, cancelled, checkpoint.

Every report has the attempt's lease token, and is accepted only while the token is current. A repeat gets the same
answer and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.queue.classes import with_checkpoint
from stoker.coordinator.queue.commands import Write
from stoker.coordinator.queue.queue_state import LiveLease
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.transaction import (
    COMPLETED,
    AttemptEndRecord,
    WriterTransaction,
    close_job,
    complete_job,
    json_or_empty,
    leave_line,
    plain,
    return_to_line,
    tell_start,
)
from stoker.core.errors import Conflict, Forbidden, InvalidTransition, NotFound, StaleLease, StokerError
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.leases import AttemptToken, Partition
from stoker.core.retry import (
    DECLINE_PAUSE_S,
    LASTING_DECLINE_S,
    BudgetCharge,
    BudgetUsage,
    FailureCause,
    JobCancellation,
    JobFailure,
    JobRetry,
    after_failure,
    charge_of,
    pause_after_decline,
)
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    CheckpointBody,
    Decline,
    Fail,
    Finish,
    LeaseWrite,
    PointCheckpoint,
    Release,
    Start,
    WriteResponse,
)

# Results: a job's record never points at bytes that are not there.


def check_is_stored(transaction: WriterTransaction, sent: Finish | CheckpointBody) -> None:
    """Raise `Conflict` unless a result or a checkpoint is stored: its archive, or its tree, complete when listed."""
    shown = f"archive {sent.archive_sha256[:12]}" if sent.archive_sha256 else f"tree {sent.tree[:12]}"
    found_bytes = _stored_bytes(transaction, sent.tree, sent.archive_sha256)
    about = {"tree": sent.tree, "archive_sha256": sent.archive_sha256}
    if found_bytes is None:
        raise Conflict(f"{shown} is not stored", hint="upload it first", **about)
    if found_bytes != sent.size_bytes:
        raise Conflict(
            f"{shown} is stored with {found_bytes} bytes, not {sent.size_bytes}",
            hint="send its true size",
            **about,
            size_bytes=found_bytes,
        )


def is_checkpoint_here(transaction: WriterTransaction, checkpoint: str) -> bool:
    """Return True if the bytes of a job's checkpoint are stored: those of an ended job may have been pruned."""
    body = loads(checkpoint)
    return _stored_bytes(transaction, body["tree"], body["archive_sha256"]) is not None


def _stored_bytes(transaction: WriterTransaction, tree: str, archive_sha256: str) -> int | None:
    """Return the size of an archive, or of a tree whose listing is stored; None if it is not here."""
    if archive_sha256:
        return transaction.setting.has_object(archive_sha256)
    listed = transaction.read(transaction.queries.content_size, of_tree=tree)
    if not listed or transaction.setting.has_object(listed[0][0]) is None:
        return None
    return int(listed[0][1])


def facts_text(said: Finish) -> str:
    """Return the facts of a result, with its code, as an attempt's row stores them."""
    return json_or_empty({**said.facts, "code": said.code} if said.code else said.facts)


def result_row(transaction: WriterTransaction, seq: int, attempt: int, said: Finish) -> dict[str, Any]:
    """Add a result to the index, and return its columns in the job's row."""
    book = transaction.book
    book.bundle_id += 1
    bundle = {"tree": said.tree, "archive_sha256": said.archive_sha256, "size_bytes": said.size_bytes}
    transaction.write(
        transaction.statements.add_bundle, id=book.bundle_id, seq=seq, attempt=attempt, at_s=transaction.now_s, **bundle
    )
    return {**bundle, "metrics": json_or_empty(said.metrics), "seconds": said.seconds}


_ENDINGS: dict[type, tuple[str, ...]] = {
    Finish: ("completed",),
    Fail: ("failed", "cancelled"),
    Release: ("released", "cancelled"),
    Decline: ("declined", "cancelled"),
    CancelConfirmed: ("cancelled",),
}


def answer_late(transaction: WriterTransaction, job: str, said: LeaseWrite, *, machine: str = "") -> WriteResponse:
    """Answer a report whose lease is not live: a repeat gets the same answer, any other is stale.

    One late report may be accepted: the result of an attempt that continues through a network partition (`on_partition
    = keep`), if its lease expired and the job was not granted again.
    """
    rows = transaction.read(transaction.queries.jobs_by_id, ids=transaction.many([job]))
    if not rows:
        raise NotFound(f"there is no job {job[:12]}", hint="`stoker jobs` lists them", job=job)
    row = JobRow(*rows[0])
    attempts = transaction.read(transaction.queries.attempt, of_seq=row.seq, of_attempt=said.attempt)
    if not attempts or attempts[0][:2] != (said.epoch, said.generation):
        raise _stale(row, said.token(job))
    _, generation, ending, tree, holder = attempts[0]
    if machine not in ("", holder):
        raise not_theirs(job, machine)
    if isinstance(said, Finish):
        if ending == "completed":
            return _finished_again(transaction, row, said, tree)
        if generation == transaction.book.generation and ending == "expired" and is_kept(row, said.token(job)):
            return _finish_late(transaction, row, said)
    elif ending in _ENDINGS.get(type(said), ()):
        return WriteResponse(job=job, state=row.state, is_repeat=True)
    raise _stale(row, said.token(job))


def not_theirs(job: str, machine: str) -> Forbidden:
    """Return the error for a report about another machine's lease."""
    return Forbidden(
        f"{machine} does not hold this lease of job {job[:12]}",
        hint="a machine reports only about its own leases",
        job=job,
    )


def is_kept(row: JobRow, token: AttemptToken) -> bool:
    """Return True if an attempt with an expired lease may still send its result: it was to, and nothing was granted."""
    return (
        row.state == "pending"
        and row.epoch == token.epoch
        and row.attempt == token.attempt
        and loads(row.spec).get("on_partition") == Partition.KEEP.value
    )


def _finished_again(transaction: WriterTransaction, row: JobRow, said: Finish, tree: str) -> WriteResponse:
    if tree == said.tree:
        return WriteResponse(job=row.id, state=row.state, is_repeat=True)
    transaction.tell(
        FleetKinds.JOB_CHANGED,
        seq=row.seq,
        machine=row.machine,
        attempt=said.attempt,
        epoch=said.epoch,
        fields={"what": "refused another result", "tree": said.tree, "kept": tree},
    )
    raise Conflict(
        f"{row.shown} has completed with another result ({tree[:12]}, not {said.tree[:12]})",
        hint="the first result is kept; discard this one",
        tree=tree,
    )


def _finish_late(transaction: WriterTransaction, row: JobRow, said: Finish) -> WriteResponse:
    check_is_stored(transaction, said)
    transaction.move(row.seq)
    at = {"at_seq": row.seq, "was_epoch": row.epoch}
    started_s = row.started_s if row.started_s is not None else transaction.now_s
    transaction.write(
        transaction.statements.finish_job,
        **at,
        was_state=row.state,
        started_s=started_s,
        ended_s=transaction.now_s,
        changed_s=transaction.now_s,
        **result_row(transaction, row.seq, row.attempt, said),
    )
    transaction.write(
        transaction.statements.end_attempt,
        **at,
        at_attempt=row.attempt,
        started_s=started_s,
        ended_s=transaction.now_s,
        ending="completed",
        cause="",
        message="",
        hint="",
        exit_code=0,
        tree=said.tree,
        facts=facts_text(said),
    )
    transaction.tell(
        FleetKinds.JOB_FINISHED,
        seq=row.seq,
        machine=row.machine,
        attempt=row.attempt,
        epoch=row.epoch,
        from_state=row.state,
        to_state="completed",
        fields={"tree": said.tree, "seconds": said.seconds, "why": "its result came after its lease had expired"},
    )
    transaction.count_move(row.state, "completed")
    if row.is_ready:
        leave_line(transaction, row.class_id, row.priority, row.seq)
    transaction.completed.append(row.seq)
    return WriteResponse(job=row.id, state="completed")


def _stale(row: JobRow, token: AttemptToken) -> StokerError:
    return StaleLease(
        f"{row.shown} is no longer attempt {token.attempt}'s (epoch {token.epoch}): "
        f"it is {row.state}, attempt {row.attempt}, epoch {row.epoch}",
        hint="stop it and discard its result",
        job=row.id,
        state=row.state,
        epoch=row.epoch,
        attempt=row.attempt,
    )


def write(transaction: WriterTransaction, asked: Write) -> WriteResponse:
    """Apply a report of an attempt if its token is current."""
    said = asked.said
    live = transaction.book.live.get(asked.job)
    if live is None or not live.is_token(said.token(asked.job)):
        return answer_late(transaction, asked.job, said, machine=asked.machine)
    if asked.machine not in ("", live.machine):
        raise not_theirs(asked.job, asked.machine)
    do: Callable[[WriterTransaction, LiveLease, Any], WriteResponse] = _VERBS[type(said)]
    return do(transaction, live, said)


def _start(transaction: WriterTransaction, live: LiveLease, said: Start) -> WriteResponse:
    if live.state == JobState.RUNNING.value:
        return WriteResponse(job=live.job.id, state=live.state, is_repeat=True)
    transaction.move(live.job.seq)
    at = {"at_seq": live.job.seq, "was_epoch": live.job.epoch}
    transaction.write(
        transaction.statements.start_job,
        **at,
        was_state=live.state,
        started_s=transaction.now_s,
        changed_s=transaction.now_s,
    )
    transaction.write(
        transaction.statements.start_attempt, **at, at_attempt=live.job.attempt, started_s=transaction.now_s
    )
    tell_start(transaction, live, **({"run": plain(said.run)} if said.run else {}))
    live.started_s = transaction.now_s
    # The progress of its preparation is over.
    live.progress = ""
    live.until_tick_s = transaction.tick_s + transaction.pace.lease_s + transaction.setting.times.grace_s
    live.is_changed = True
    return _settled(live)


def _finish(transaction: WriterTransaction, live: LiveLease, said: Finish) -> WriteResponse:
    check_is_stored(transaction, said)
    ending = AttemptEndRecord(
        ending=COMPLETED, kind=FleetKinds.JOB_FINISHED, exit_code=0, tree=said.tree, facts=facts_text(said)
    )
    complete_job(
        transaction,
        live,
        ending,
        result_row(transaction, live.job.seq, live.job.attempt, said),
        tree=said.tree,
        seconds=said.seconds,
    )
    return _settled(live)


def _fail(transaction: WriterTransaction, live: LiveLease, said: Fail) -> WriteResponse:
    cause = plain(said.cause)
    charge = charge_of(cause)
    live.job.user_failures += charge is BudgetCharge.USER
    live.job.lost += charge is BudgetCharge.LOST
    then = after_failure(
        cause,
        BudgetUsage(user_failures=live.job.user_failures, lost=live.job.lost),
        transaction.setting.budgets,
        attempts=live.attempts,
        is_cancelling=live.is_cancelling,
        randomness=transaction.setting.randomness(),
    )
    fields: dict[str, Any] = {
        "cause": cause,
        "message": plain(said.message),
        "hint": plain(said.hint),
        "error": json_or_empty(said.error),
        "exit_code": said.exit_code,
    }
    _follow(transaction, live, then, fields, said.seconds)
    return _settled(live)


def _follow(
    transaction: WriterTransaction,
    live: LiveLease,
    then: JobRetry | JobFailure | JobCancellation,
    fields: dict[str, Any],
    seconds: float,
) -> None:
    if isinstance(then, JobRetry):
        ending = AttemptEndRecord(ending="failed", kind=FleetKinds.JOB_RETRYING, **fields)
        return_to_line(transaction, live, ending, pause_s=then.pause_s, why=then.why, seconds=seconds)
    elif isinstance(then, JobCancellation):
        close_job(
            transaction,
            live,
            JobState.CANCELLED,
            AttemptEndRecord(ending="cancelled", kind=FleetKinds.JOB_CANCELLED, **fields),
        )
    else:
        ending = AttemptEndRecord(ending="failed", kind=FleetKinds.JOB_FAILED, **fields)
        close_job(transaction, live, JobState.FAILED, ending, why=then.why, seconds=seconds)


def _release(transaction: WriterTransaction, live: LiveLease, said: Release) -> WriteResponse:
    if live.is_cancelling:
        return _cancelled(transaction, live, plain(said.why))
    ending = AttemptEndRecord(ending="released", kind=FleetKinds.JOB_RELEASED, message=plain(said.why))
    return_to_line(transaction, live, ending)
    return _settled(live)


def _decline(transaction: WriterTransaction, live: LiveLease, said: Decline) -> WriteResponse:
    if live.state != JobState.CLAIMED.value:
        raise InvalidTransition(
            f"a {live.state} job can't be declined", hint="release it", state=live.state, move="decline"
        )
    if live.is_cancelling:
        return _cancelled(transaction, live, plain(said.reason))
    live.job.declined += 1
    pause_s = LASTING_DECLINE_S if said.lasts else DECLINE_PAUSE_S
    transaction.book.barred.setdefault(live.machine, {})[live.job.seq] = transaction.tick_s + pause_s
    transaction.book.scheduler.doubt(live.machine, is_doubted=True)
    ending = AttemptEndRecord(
        ending="declined", kind=FleetKinds.JOB_DECLINED, cause=plain(said.reason)[:40], message=plain(said.message)
    )
    pause_s = pause_after_decline(live.job.declined, transaction.setting.budgets)
    return_to_line(transaction, live, ending, pause_s=pause_s, reason=plain(said.reason))
    return _settled(live)


def _confirm_cancel(transaction: WriterTransaction, live: LiveLease, said: CancelConfirmed) -> WriteResponse:
    if not live.is_cancelling:
        raise InvalidTransition(
            f"job {live.job.id[:12]} has no cancel request",
            hint="release it, or report its failure",
            state=live.state,
            move="cancel",
        )
    return _cancelled(transaction, live, live.cancel_why or plain(said.why))


def _cancelled(transaction: WriterTransaction, live: LiveLease, why: str) -> WriteResponse:
    ending = AttemptEndRecord(
        ending="cancelled",
        kind=FleetKinds.JOB_CANCELLED,
        cause=FailureCause.CANCELLED.value,
        message=why or "cancelled",
    )
    close_job(transaction, live, JobState.CANCELLED, ending)
    return _settled(live)


def _point_checkpoint(transaction: WriterTransaction, live: LiveLease, said: PointCheckpoint) -> WriteResponse:
    body = said.checkpoint
    check_is_stored(transaction, body)
    transaction.move(live.job.seq)
    class_id = with_checkpoint(transaction, live.job.class_id)
    if class_id != live.job.class_id:
        # Its first checkpoint: from now on it may start where it does not end.
        guard = {"at_seq": live.job.seq, "was_epoch": live.job.epoch, "was_state": live.state}
        transaction.write(transaction.statements.set_class, class_id=class_id, **guard)
        live.job.class_id = class_id
    transaction.write(
        transaction.statements.point_checkpoint,
        at_seq=live.job.seq,
        was_epoch=live.job.epoch,
        was_state=live.state,
        checkpoint=json_or_empty(body.model_dump(mode="json")),
        changed_s=transaction.now_s,
    )
    transaction.tell_live(FleetKinds.JOB_CHECKPOINT, live, {"step": body.step, "tree": body.tree})
    return _settled(live)


def _settled(live: LiveLease) -> WriteResponse:
    return WriteResponse(job=live.job.id, state=live.state)


_VERBS: dict[type, Any] = {
    Start: _start,
    Finish: _finish,
    Fail: _fail,
    Release: _release,
    Decline: _decline,
    CancelConfirmed: _confirm_cancel,
    PointCheckpoint: _point_checkpoint,
}
