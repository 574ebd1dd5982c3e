"""Why work failed, and whether to try again: a decision with its reason, taken purely.

A retry policy speaks about causes, never about exception classes: only the room that saw the failure knows its
class, and turns it into a cause once.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen

LONGEST_BACKOFF_S = 300.0
_MOST_DOUBLINGS = 64


class Cause(StrEnum):
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
    """Its process went away without a word."""
    CANCELLED = "cancelled"
    UPSTREAM = "upstream"
    """Something it needs did not succeed."""


class RetryOn(StrEnum):
    """Which causes a policy tries again."""

    TRANSIENT = "transient"
    ALL = "all"
    OUT_OF_MEMORY = "out_of_memory"
    INTERRUPTED = "interrupted"
    """What has nothing to do with the work itself: it goes on from its checkpoint. A loss that diverged would again."""


_OUT_OF_MEMORY = frozenset({Cause.OOM_HOST, Cause.OOM_DEVICE})
_TRANSIENT = _OUT_OF_MEMORY | {Cause.IO, Cause.TIMEOUT, Cause.DIVERGED, Cause.PREEMPTED, Cause.LOST}
_INTERRUPTED = _OUT_OF_MEMORY | {Cause.IO, Cause.PREEMPTED, Cause.LOST}
_COVERED = {
    RetryOn.TRANSIENT: _TRANSIENT,
    RetryOn.OUT_OF_MEMORY: _OUT_OF_MEMORY,
    RetryOn.INTERRUPTED: _INTERRUPTED,
}
_NEVER = frozenset({Cause.INPUT, Cause.VALIDATION, Cause.CANCELLED, Cause.UPSTREAM})


@frozen
class RetryPolicy:
    """How often and after which causes. `attempts` includes the first."""

    attempts: int = 1
    backoff_s: float = 1.0
    on: RetryOn = RetryOn.TRANSIENT


@frozen
class Again:
    """Try again after a pause."""

    delay_s: float
    why: str


@frozen
class GiveUp:
    """Leave it failed."""

    why: str
    is_timeout: bool = False
    """Whether the time for it is over, and not the number of attempts."""


def pause_s(failures: int, chance: float, *, first_s: float, longest_s: float) -> float:
    """Give how long to wait after so many failures before this one: doubling, bounded, spread over its second half.

    `chance` from 0 to 1 spreads it, so that what failed together does not come back together.
    """
    return min(longest_s, first_s * 2.0 ** min(failures, _MOST_DOUBLINGS)) * (0.5 + chance / 2)


def decide_retry(policy: RetryPolicy, cause: Cause, attempt: int) -> Again | GiveUp:
    """Decide what follows the failure of attempt number `attempt` (the first is 1)."""
    if cause in _NEVER:
        return GiveUp(why=f"{cause} is never retried")
    covered = policy.on is RetryOn.ALL or cause in _COVERED[policy.on]
    if not covered:
        return GiveUp(why=f"the policy retries {policy.on}, and this was {cause}")
    if attempt >= policy.attempts:
        return GiveUp(why=f"attempt {attempt} of {policy.attempts}")
    # A float ends at 2 ** 1024; the cap is long reached before.
    delay_s = min(LONGEST_BACKOFF_S, policy.backoff_s * 2.0 ** min(attempt - 1, 1000))
    return Again(delay_s=delay_s, why=f"{cause}, attempt {attempt} of {policy.attempts}")
