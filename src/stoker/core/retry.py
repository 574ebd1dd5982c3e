"""Why work failed, and whether to try again: a decision with its reason, taken purely.

A retry policy speaks about causes, never about exception classes: only the room that saw the failure knows its
class, and turns it into a cause once.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.core.frozen import frozen
from stoker.core.leases import Budgets

LONGEST_BACKOFF_S = 300.0
_MOST_DOUBLINGS = 64


class FailureCause(StrEnum):
    """Why an attempt did not succeed."""

    USER = "user"
    """The stage's own code raised."""
    INPUT = "input"
    """What it was given can't be worked on."""
    VALIDATION = "validation"
    """What it made is not of the kind it promised."""
    IO = "io"
    OOM_HOST = "oom_host"
    OOM_DEVICE = "oom_device"
    TIMEOUT = "timeout"
    DIVERGED = "diverged"
    PREEMPTED = "preempted"
    LOST = "lost"
    """Its process exited without writing its result."""
    CANCELLED = "cancelled"
    UPSTREAM = "upstream"
    """Something it needs did not succeed."""


class RetryOn(StrEnum):
    """Which causes a policy tries again."""

    TRANSIENT = "transient"
    ALL = "all"
    OUT_OF_MEMORY = "out_of_memory"
    INTERRUPTED = "interrupted"
    """Causes outside the work itself: it resumes from its checkpoint. A loss that diverged would diverge again."""


_OUT_OF_MEMORY = frozenset({FailureCause.OOM_HOST, FailureCause.OOM_DEVICE})
_TRANSIENT = _OUT_OF_MEMORY | {
    FailureCause.IO,
    FailureCause.TIMEOUT,
    FailureCause.DIVERGED,
    FailureCause.PREEMPTED,
    FailureCause.LOST,
}
_INTERRUPTED = _OUT_OF_MEMORY | {FailureCause.IO, FailureCause.PREEMPTED, FailureCause.LOST}
_COVERED = {
    RetryOn.TRANSIENT: _TRANSIENT,
    RetryOn.OUT_OF_MEMORY: _OUT_OF_MEMORY,
    RetryOn.INTERRUPTED: _INTERRUPTED,
}
_NEVER = frozenset({FailureCause.INPUT, FailureCause.VALIDATION, FailureCause.CANCELLED, FailureCause.UPSTREAM})


@frozen
class RetryPolicy:
    """How often and after which causes. `attempts` includes the first."""

    attempts: int = 1
    backoff_s: float = 1.0
    on: RetryOn = RetryOn.TRANSIENT


@frozen
class RetryAfterDelay:
    """Try again after a pause."""

    delay_s: float
    why: str


@frozen
class NoRetry:
    """Leave it failed."""

    why: str
    is_timeout: bool = False
    """Whether the time for it is over, and not the number of attempts."""


def pause_s(failures: int, chance: float, *, first_s: float, longest_s: float) -> float:
    """Return how long to wait after so many failures before this one: doubling, bounded, spread over its second half.

    `chance` from 0 to 1 spreads it, so that what failed together does not come back together.
    """
    return min(longest_s, first_s * 2.0 ** min(failures, _MOST_DOUBLINGS)) * (0.5 + chance / 2)


def decide_retry(policy: RetryPolicy, cause: FailureCause, attempt: int) -> RetryAfterDelay | NoRetry:
    """Decide what follows the failure of attempt number `attempt` (the first is 1)."""
    if cause in _NEVER:
        return NoRetry(why=f"{cause} is never retried")
    covered = policy.on is RetryOn.ALL or cause in _COVERED[policy.on]
    if not covered:
        return NoRetry(why=f"the policy retries {policy.on}, and this was {cause}")
    if attempt >= policy.attempts:
        return NoRetry(why=f"attempt {attempt} of {policy.attempts}")
    # A float ends at 2 ** 1024; the cap is long reached before.
    delay_s = min(LONGEST_BACKOFF_S, policy.backoff_s * 2.0 ** min(attempt - 1, 1000))
    return RetryAfterDelay(delay_s=delay_s, why=f"{cause}, attempt {attempt} of {policy.attempts}")


POISON = "poison"
"""The cause of a job that was given up because workers went away under it."""
FIRST_PAUSE_S = 5.0
DECLINE_PAUSE_S = 60.0
"""How long a machine is not offered a job again that it declined."""
LASTING_DECLINE_S = 900.0
"""The same, where it said that it would decline it again."""


class BudgetCharge(StrEnum):
    """Which budget pays."""

    USER = "user"
    LOST = "lost"
    NONE = "none"


_NEVER_AGAIN = frozenset({FailureCause.INPUT, FailureCause.VALIDATION, FailureCause.UPSTREAM, FailureCause.CANCELLED})
_FREE = frozenset({FailureCause.PREEMPTED})


@frozen
class BudgetUsage:
    """What a job has used up, this ending included."""

    user_failures: int = 0
    lost: int = 0
    workers_lost: int = 0
    """Different workers that went away while they ran it."""


@frozen
class JobRetry:
    """Back into the line, after a pause."""

    pause_s: float
    why: str


@frozen
class JobFailure:
    """Given up."""

    cause: str
    why: str


@frozen
class JobCancellation:
    """The job is cancelled, as requested."""

    why: str


def charge_of(cause: str) -> BudgetCharge:
    """Return the budget that an ending is charged to. An unknown cause is charged to the job."""
    if cause == FailureCause.LOST:
        return BudgetCharge.LOST
    return BudgetCharge.NONE if cause in _FREE else BudgetCharge.USER


def after_failure(
    cause: str, spent: BudgetUsage, budgets: Budgets, *, attempts: int, is_cancelling: bool, randomness: float
) -> JobRetry | JobFailure | JobCancellation:
    """Decide what follows. `attempts` is how many failures of its own the job may have, the first included.

    `randomness` from 0 to 1 spreads the pauses, so that what failed together does not come back together.

    Each sort of cause has its own budget, so that a machine that died is not charged to the job's code. What was asked
    to be cancelled is not tried again, whatever happened.
    """
    if is_cancelling:
        return JobCancellation(why=f"cancelled; its attempt ended: {cause}")
    if cause in _NEVER_AGAIN:
        return JobFailure(cause=cause, why=f"{cause} is never tried again")
    charge = charge_of(cause)
    if charge is BudgetCharge.NONE:
        return JobRetry(pause_s=0.0, why=f"{cause} costs nothing")
    if charge is BudgetCharge.LOST:
        return _after_loss(spent, budgets, randomness)
    allowed = max(attempts, budgets.user)
    if spent.user_failures >= allowed:
        return JobFailure(cause=cause, why=f"failure {spent.user_failures} of {allowed}")
    again_s = pause_after(spent.user_failures, randomness)
    return JobRetry(pause_s=again_s, why=f"failure {spent.user_failures} of {allowed}: {cause}")


def pause_after(failures: int, randomness: float) -> float:
    """Return the pause before the next try: doubling, bounded, and spread over its second half."""
    return pause_s(max(failures, 1) - 1, randomness, first_s=FIRST_PAUSE_S, longest_s=LONGEST_BACKOFF_S)


def pause_after_decline(declined: int, budgets: Budgets) -> float:
    """Return how long a job waits that so many have declined: mostly not at all, now and then for a while."""
    return DECLINE_PAUSE_S if declined and declined % budgets.declined == 0 else 0.0


def _after_loss(spent: BudgetUsage, budgets: Budgets, randomness: float) -> JobRetry | JobFailure:
    if spent.workers_lost >= budgets.poisoned:
        return JobFailure(cause=POISON, why=f"{spent.workers_lost} different workers went away while they ran it")
    if spent.lost >= budgets.lost:
        return JobFailure(
            cause=FailureCause.LOST, why=f"its process or worker was lost {spent.lost} times of {budgets.lost}"
        )
    # The job is not at fault: the first retry is immediate.
    again_s = 0.0 if spent.lost <= 1 else pause_after(spent.lost - 1, randomness)
    return JobRetry(pause_s=again_s, why=f"its process or worker was lost, {spent.lost} of {budgets.lost}")
