"""Leases whose worker went away: charged to the worker, not to the job, until it has happened too often."""

from __future__ import annotations

from stoker.coordinator.queue.book import Live
from stoker.coordinator.queue.moves import Ending, close_job, return_to_line
from stoker.coordinator.queue.turn import Turn
from stoker.model.budgets import Failed, Spent, Stopped, after_failure
from stoker.model.fleet_events import FleetKinds
from stoker.model.lifecycle import JobState
from stoker.model.retry import Cause

_UNCONFIRMED = Ending(
    ending="expired",
    kind=FleetKinds.JOB_CANCELLED,
    cause=Cause.CANCELLED.value,
    message="unconfirmed: its worker went away before it said that it stopped",
)


def lose(turn: Turn, live: Live, why: str) -> None:
    """End a lease that is over, like any writer: only if it is still the one that was looked at."""
    live.lost += 1
    spent = Spent(user_failures=live.user_failures, lost=live.lost, workers_lost=_workers_lost(turn, live))
    then = after_failure(
        Cause.LOST,
        spent,
        turn.setting.budgets,
        attempts=live.attempts,
        is_cancelling=live.is_cancelling,
        randomness=turn.setting.randomness(),
    )
    if isinstance(then, Stopped):
        close_job(turn, live, JobState.CANCELLED, _UNCONFIRMED, why=why)
    elif isinstance(then, Failed):
        ending = Ending(
            ending="expired",
            kind=FleetKinds.JOB_FAILED,
            cause=Cause.LOST.value,
            job_cause=then.cause,
            message=f"{why}; {then.why}",
            hint="look at the machines' logs, then `stoker jobs requeue`",
        )
        close_job(turn, live, JobState.FAILED, ending)
    else:
        ending = Ending(ending="expired", kind=FleetKinds.JOB_EXPIRED, cause=Cause.LOST.value, message=why)
        return_to_line(turn, live, ending, pause_s=then.pause_s, why=then.why)
        if machine := turn.book.machines.get(live.machine):
            machine.late_until_tick_s = float("inf")


def forgive(turn: Turn, live: Live, why: str) -> None:
    """End a lease that nobody is to blame for: the coordinator's own past was restored from a backup."""
    if live.is_cancelling:
        close_job(turn, live, JobState.CANCELLED, _UNCONFIRMED, why=why)
    else:
        return_to_line(turn, live, Ending(ending="expired", kind=FleetKinds.JOB_EXPIRED, message=why))


def _workers_lost(turn: Turn, live: Live) -> int:
    """Count the different workers that went away while they ran this job, since it was last submitted or requeued."""
    if live.started_s is None or live.lost < turn.setting.budgets.poisoned:
        return 1 if live.started_s is not None else 0
    rows = turn.read(turn.queries.lost_attempts, of_seq=live.seq, most=live.lost - 1)
    machines = {machine for machine, started_s, ending in rows if ending == "expired" and started_s is not None}
    return len(machines | {live.machine})
