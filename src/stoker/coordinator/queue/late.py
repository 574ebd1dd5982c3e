"""Words that come too late, or twice: the same word again is answered again, any other is stale.

One late word may still count: the result of an attempt that was to go on through a partition, if its lease has ended
and nobody else was given the job meanwhile.
"""

from __future__ import annotations

from stoker.coordinator.queue.commands import Said
from stoker.coordinator.queue.moves import leave_line
from stoker.coordinator.queue.results import facts_text, result_row, see_archive
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import NotFound, StokerError
from stoker.model.fleet_errors import Conflict, NotAllowed, StaleLease
from stoker.model.fleet_events import FleetKinds
from stoker.model.json_text import loads
from stoker.model.leases import Partition, Token
from stoker.wire.leasing import CancelConfirmed, Decline, Fail, Finish, Release, Settled

_ENDINGS: dict[type, tuple[str, ...]] = {
    Finish: ("completed",),
    Fail: ("failed", "cancelled"),
    Release: ("released", "cancelled"),
    Decline: ("declined", "cancelled"),
    CancelConfirmed: ("cancelled",),
}


def answer_late(turn: Turn, job: str, said: Said, *, machine: str = "") -> Settled:
    """Answer somebody whose lease is not live."""
    rows = turn.read(turn.queries.jobs_by_id, ids=turn.many([job]))
    if not rows:
        raise NotFound(f"there is no job {job[:12]}", hint="`stoker jobs` lists them", job=job)
    row = JobRow(*rows[0])
    attempts = turn.read(turn.queries.attempt, of_seq=row.seq, of_attempt=said.attempt)
    if not attempts or attempts[0][:2] != (said.epoch, said.generation):
        raise _stale(row, said.token(job))
    _, generation, ending, tree, holder = attempts[0]
    if machine not in ("", holder):
        raise not_theirs(job, machine)
    if isinstance(said, Finish):
        if ending == "completed":
            return _finished_again(turn, row, said, tree)
        if generation == turn.book.generation and ending == "expired" and is_kept(row, said.token(job)):
            return _finish_late(turn, row, said)
    elif ending in _ENDINGS.get(type(said), ()):
        return Settled(job=job, state=row.state, is_repeat=True)
    raise _stale(row, said.token(job))


def not_theirs(job: str, machine: str) -> NotAllowed:
    """Refuse a machine that speaks for another one's lease."""
    return NotAllowed(f"{machine} holds no such lease of job {job[:12]}", hint="a machine speaks for itself", job=job)


def is_kept(row: JobRow, token: Token) -> bool:
    """Say whether an attempt whose lease has ended may still bring its result: it was to, and nobody else has it."""
    return (
        row.state == "pending"
        and row.epoch == token.epoch
        and row.attempt == token.attempt
        and loads(row.spec).get("on_partition") == Partition.KEEP.value
    )


def _finished_again(turn: Turn, row: JobRow, said: Finish, tree: str) -> Settled:
    if tree == said.tree:
        return Settled(job=row.id, state=row.state, is_repeat=True)
    turn.tell(
        FleetKinds.JOB_CHANGED,
        seq=row.seq,
        machine=row.machine,
        attempt=said.attempt,
        epoch=said.epoch,
        fields={"what": "refused another result", "tree": said.tree, "kept": tree},
    )
    raise Conflict(
        f"{row.shown} has completed with another result ({tree[:12]}, not {said.tree[:12]})",
        hint="the first one stays; drop this one",
        tree=tree,
    )


def _finish_late(turn: Turn, row: JobRow, said: Finish) -> Settled:
    see_archive(turn, said.archive_sha256, said.size_bytes)
    turn.move(row.seq)
    at = {"at_seq": row.seq, "was_epoch": row.epoch}
    started_s = row.started_s if row.started_s is not None else turn.now_s
    turn.write(
        turn.statements.finish_job,
        **at,
        was_state=row.state,
        started_s=started_s,
        ended_s=turn.now_s,
        changed_s=turn.now_s,
        **result_row(turn, row.seq, row.attempt, said),
    )
    turn.write(
        turn.statements.end_attempt,
        **at,
        at_attempt=row.attempt,
        started_s=started_s,
        ended_s=turn.now_s,
        ending="completed",
        cause="",
        message="",
        hint="",
        exit_code=0,
        tree=said.tree,
        facts=facts_text(said),
    )
    turn.tell(
        FleetKinds.JOB_FINISHED,
        seq=row.seq,
        machine=row.machine,
        attempt=row.attempt,
        epoch=row.epoch,
        from_state=row.state,
        to_state="completed",
        fields={"tree": said.tree, "seconds": said.seconds, "why": "its result came after its lease had ended"},
    )
    turn.count_move(row.state, "completed")
    if row.is_ready:
        leave_line(turn, row.class_id, row.priority, row.seq)
    turn.completed.append(row.seq)
    return Settled(job=row.id, state="completed")


def _stale(row: JobRow, token: Token) -> StokerError:
    return StaleLease(
        f"{row.shown} is no longer attempt {token.attempt}'s (epoch {token.epoch}): "
        f"it is {row.state}, attempt {row.attempt}, epoch {row.epoch}",
        hint="stop it and drop its result",
        job=row.id,
        state=row.state,
        epoch=row.epoch,
        attempt=row.attempt,
    )
