"""What attempts say of their jobs: start, decline, release, finish, fail, cancelled, checkpoint.

Every word carries the attempt's token. It counts only while the token is its job's own; said again, it is answered
again and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.queue.book import Live
from stoker.coordinator.queue.commands import Write
from stoker.coordinator.queue.late import answer_late, not_theirs
from stoker.coordinator.queue.moves import (
    COMPLETED,
    Ending,
    close_job,
    complete_job,
    json_or_empty,
    plain,
    return_to_line,
    tell_start,
)
from stoker.coordinator.queue.results import facts_text, result_row, see_archive
from stoker.coordinator.queue.turn import Turn
from stoker.model.budgets import (
    DECLINE_PAUSE_S,
    LASTING_DECLINE_S,
    Charge,
    Failed,
    Spent,
    Stopped,
    TryAgain,
    after_failure,
    charge_of,
    pause_after_decline,
)
from stoker.model.errors import IllegalMove
from stoker.model.fleet_events import FleetKinds
from stoker.model.lifecycle import JobState
from stoker.model.retry import Cause
from stoker.wire.leasing import (
    CancelConfirmed,
    Decline,
    Fail,
    Finish,
    PointCheckpoint,
    Release,
    Settled,
    Start,
)


def write(turn: Turn, asked: Write) -> Settled:
    """Do what an attempt says, if it may still speak for its job."""
    said = asked.said
    live = turn.book.live.get(asked.job)
    if live is None or not live.is_token(said.token(asked.job)):
        return answer_late(turn, asked.job, said, machine=asked.machine)
    if asked.machine not in ("", live.machine):
        raise not_theirs(asked.job, asked.machine)
    do: Callable[[Turn, Live, Any], Settled] = _VERBS[type(said)]
    return do(turn, live, said)


def _start(turn: Turn, live: Live, said: Start) -> Settled:
    if live.state == JobState.RUNNING.value:
        return Settled(job=live.id, state=live.state, is_repeat=True)
    turn.move(live.seq)
    at = {"at_seq": live.seq, "was_epoch": live.epoch}
    turn.write(turn.statements.start_job, **at, was_state=live.state, started_s=turn.now_s, changed_s=turn.now_s)
    turn.write(turn.statements.start_attempt, **at, at_attempt=live.attempt, started_s=turn.now_s)
    tell_start(turn, live, **({"run": plain(said.run)} if said.run else {}))
    live.started_s = turn.now_s
    # What it said while it was prepared is no longer so.
    live.progress = ""
    live.until_tick_s = turn.tick_s + turn.pace.lease_s + turn.setting.times.grace_s
    live.is_changed = True
    return _settled(live)


def _finish(turn: Turn, live: Live, said: Finish) -> Settled:
    see_archive(turn, said.archive_sha256, said.size_bytes)
    ending = Ending(ending=COMPLETED, kind=FleetKinds.JOB_FINISHED, exit_code=0, tree=said.tree, facts=facts_text(said))
    complete_job(
        turn, live, ending, result_row(turn, live.seq, live.attempt, said), tree=said.tree, seconds=said.seconds
    )
    return _settled(live)


def _fail(turn: Turn, live: Live, said: Fail) -> Settled:
    cause = plain(said.cause)
    charge = charge_of(cause)
    live.user_failures += charge is Charge.USER
    live.lost += charge is Charge.LOST
    then = after_failure(
        cause,
        Spent(user_failures=live.user_failures, lost=live.lost),
        turn.setting.budgets,
        attempts=live.attempts,
        is_cancelling=live.is_cancelling,
        randomness=turn.setting.randomness(),
    )
    said_so: dict[str, Any] = {
        "cause": cause,
        "message": plain(said.message),
        "hint": plain(said.hint),
        "error": json_or_empty(said.error),
        "exit_code": said.exit_code,
    }
    _follow(turn, live, then, said_so, said.seconds)
    return _settled(live)


def _follow(turn: Turn, live: Live, then: TryAgain | Failed | Stopped, said: dict[str, Any], seconds: float) -> None:
    if isinstance(then, TryAgain):
        ending = Ending(ending="failed", kind=FleetKinds.JOB_RETRYING, **said)
        return_to_line(turn, live, ending, pause_s=then.pause_s, why=then.why, seconds=seconds)
    elif isinstance(then, Stopped):
        close_job(turn, live, JobState.CANCELLED, Ending(ending="cancelled", kind=FleetKinds.JOB_CANCELLED, **said))
    else:
        ending = Ending(ending="failed", kind=FleetKinds.JOB_FAILED, **said)
        close_job(turn, live, JobState.FAILED, ending, why=then.why, seconds=seconds)


def _release(turn: Turn, live: Live, said: Release) -> Settled:
    if live.is_cancelling:
        return _cancelled(turn, live, plain(said.why))
    ending = Ending(ending="released", kind=FleetKinds.JOB_RELEASED, message=plain(said.why))
    return_to_line(turn, live, ending)
    return _settled(live)


def _decline(turn: Turn, live: Live, said: Decline) -> Settled:
    if live.state != JobState.CLAIMED.value:
        raise IllegalMove(f"a {live.state} job can't be declined", hint="release it", state=live.state, move="decline")
    if live.is_cancelling:
        return _cancelled(turn, live, plain(said.reason))
    live.declined += 1
    pause_s = LASTING_DECLINE_S if said.lasts else DECLINE_PAUSE_S
    turn.book.barred.setdefault(live.machine, {})[live.seq] = turn.tick_s + pause_s
    turn.book.scheduler.doubt(live.machine, is_doubted=True)
    ending = Ending(
        ending="declined", kind=FleetKinds.JOB_DECLINED, cause=plain(said.reason)[:40], message=plain(said.message)
    )
    pause_s = pause_after_decline(live.declined, turn.setting.budgets)
    return_to_line(turn, live, ending, pause_s=pause_s, reason=plain(said.reason))
    return _settled(live)


def _confirm_cancel(turn: Turn, live: Live, said: CancelConfirmed) -> Settled:
    if not live.is_cancelling:
        raise IllegalMove(
            "nobody asked to cancel this job", hint="release it, or say how it failed", state=live.state, move="cancel"
        )
    return _cancelled(turn, live, live.cancel_why or plain(said.why))


def _cancelled(turn: Turn, live: Live, why: str) -> Settled:
    ending = Ending(
        ending="cancelled", kind=FleetKinds.JOB_CANCELLED, cause=Cause.CANCELLED.value, message=why or "cancelled"
    )
    close_job(turn, live, JobState.CANCELLED, ending)
    return _settled(live)


def _point_checkpoint(turn: Turn, live: Live, said: PointCheckpoint) -> Settled:
    body = said.checkpoint
    see_archive(turn, body.archive_sha256, body.size_bytes)
    turn.move(live.seq)
    turn.write(
        turn.statements.point_checkpoint,
        at_seq=live.seq,
        was_epoch=live.epoch,
        was_state=live.state,
        checkpoint=json_or_empty(body.model_dump(mode="json")),
        changed_s=turn.now_s,
    )
    turn.tell(
        FleetKinds.JOB_CHECKPOINT,
        seq=live.seq,
        machine=live.machine,
        attempt=live.attempt,
        epoch=live.epoch,
        fields={"step": body.step, "tree": body.tree},
    )
    return _settled(live)


def _settled(live: Live) -> Settled:
    return Settled(job=live.id, state=live.state)


_VERBS: dict[type, Any] = {
    Start: _start,
    Finish: _finish,
    Fail: _fail,
    Release: _release,
    Decline: _decline,
    CancelConfirmed: _confirm_cancel,
    PointCheckpoint: _point_checkpoint,
}
