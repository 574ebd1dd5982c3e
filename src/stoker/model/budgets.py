"""What follows the end of an attempt that did not succeed: a decision by cause and budgets, with its reason.

Each sort of cause has its own budget, so that a machine that died is not charged to the job's code. What was asked to
be cancelled is not tried again, whatever happened.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen
from stoker.model.leases import Budgets
from stoker.model.retry import LONGEST_BACKOFF_S, Cause, pause_s

POISON = "poison"
"""The cause of a job that was given up because workers went away under it."""
FIRST_PAUSE_S = 5.0
DECLINE_PAUSE_S = 60.0
"""How long a machine is not offered a job again that it declined."""
LASTING_DECLINE_S = 900.0
"""The same, where it said that it would decline it again."""


class Charge(StrEnum):
    """Which budget pays."""

    USER = "user"
    LOST = "lost"
    NONE = "none"


_NEVER_AGAIN = frozenset({Cause.INPUT, Cause.VALIDATION, Cause.UPSTREAM, Cause.CANCELLED})
_FREE = frozenset({Cause.PREEMPTED})


@frozen
class Spent:
    """What a job has used up, this ending included."""

    user_failures: int = 0
    lost: int = 0
    workers_lost: int = 0
    """Different workers that went away while they ran it."""


@frozen
class TryAgain:
    """Back into the line, after a pause."""

    pause_s: float
    why: str


@frozen
class Failed:
    """Given up."""

    cause: str
    why: str


@frozen
class Stopped:
    """Somebody wanted it cancelled, and now it is."""

    why: str


def charge_of(cause: str) -> Charge:
    """Say which budget an ending is charged to. A cause that nobody knows is the job's own."""
    if cause == Cause.LOST:
        return Charge.LOST
    return Charge.NONE if cause in _FREE else Charge.USER


def after_failure(
    cause: str, spent: Spent, budgets: Budgets, *, attempts: int, is_cancelling: bool, randomness: float
) -> TryAgain | Failed | Stopped:
    """Decide what follows. `attempts` is how many failures of its own the job may have, the first included.

    `randomness` from 0 to 1 spreads the pauses, so that what failed together does not come back together.
    """
    if is_cancelling:
        return Stopped(why=f"cancelled; its attempt ended: {cause}")
    if cause in _NEVER_AGAIN:
        return Failed(cause=cause, why=f"{cause} is never tried again")
    charge = charge_of(cause)
    if charge is Charge.NONE:
        return TryAgain(pause_s=0.0, why=f"{cause} costs nothing")
    if charge is Charge.LOST:
        return _after_loss(spent, budgets, randomness)
    allowed = max(attempts, budgets.user)
    if spent.user_failures >= allowed:
        return Failed(cause=cause, why=f"failure {spent.user_failures} of {allowed}")
    again_s = pause_after(spent.user_failures, randomness)
    return TryAgain(pause_s=again_s, why=f"failure {spent.user_failures} of {allowed}: {cause}")


def pause_after(failures: int, randomness: float) -> float:
    """Give the pause before the next try: doubling, bounded, and spread over its second half."""
    return pause_s(max(failures, 1) - 1, randomness, first_s=FIRST_PAUSE_S, longest_s=LONGEST_BACKOFF_S)


def pause_after_decline(declined: int, budgets: Budgets) -> float:
    """Give how long a job waits that so many have declined: mostly not at all, now and then for a while."""
    return DECLINE_PAUSE_S if declined and declined % budgets.declined == 0 else 0.0


def _after_loss(spent: Spent, budgets: Budgets, randomness: float) -> TryAgain | Failed:
    if spent.workers_lost >= budgets.poisoned:
        return Failed(cause=POISON, why=f"{spent.workers_lost} different workers went away while they ran it")
    if spent.lost >= budgets.lost:
        return Failed(cause=Cause.LOST, why=f"its worker was lost {spent.lost} times of {budgets.lost}")
    # The worker is gone, not the job at fault: the first time it goes on at once.
    again_s = 0.0 if spent.lost <= 1 else pause_after(spent.lost - 1, randomness)
    return TryAgain(pause_s=again_s, why=f"its worker was lost, {spent.lost} of {budgets.lost}")
