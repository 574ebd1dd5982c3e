"""What the scheduler decides, as values: a job that starts on a machine and why, or why none does."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from stoker.core.frozen import fresh, frozen
from stoker.scheduler.fit import Placement
from stoker.scheduler.job_types import JobType
from stoker.scheduler.machine import LeaseAllocation
from stoker.scheduler.ready_queue import ReadyHead, UserQueue


class StartReason(StrEnum):
    """What decided that a job starts on a machine."""

    OLDEST = "oldest"
    WIDE = "much_room_at_once"
    RESIDENT = "base_is_here"
    LONGEST = "longest_first"
    KEPT = "kept_for_it"


class HoldReason(StrEnum):
    """Why a job does not start on a machine where it fits now."""

    FASTER = "faster_machine"
    """It would end earlier on a faster machine that it waits for."""
    PREFERRED = "preferred_machine"
    """It would end no later on a machine that it prefers."""
    BETTER_FREE = "better_machine_free"
    """A better machine is free and about to ask."""
    SCARCE = "left_to_others"
    """The machine is left to jobs that need it."""
    KEPT = "kept"
    """The machine is kept for another job."""
    LIMIT = "user_limit"
    """Its user has as many jobs or devices as allowed."""
    ENDS = "machine_ends"
    """The machine goes away before the job would end."""
    DECLINED = "declined"
    """The machine declined it a moment ago."""
    ORDER = "order"
    """Another job goes first."""


class BackfillHold(NamedTuple):
    """What a machine is kept for: the next job of a type. What is over by then may still start there."""

    queue: UserQueue
    type: JobType
    until_s: float


class Pick(NamedTuple):
    """The first job of a type, and as what it is placed."""

    queue: UserQueue
    type: JobType
    number: int
    why: StartReason


class StartableJob(NamedTuple):
    """The first job that may start on a machine, and how much work waits."""

    queue: UserQueue
    rank: int
    """Of that job."""
    good: int
    """What may start here, of that queue."""
    fits: int
    """What fits here, of any queue of this priority."""
    worth: int
    """What of that is worth starting here, whoever's it is."""
    ahead_s: float
    rest_s: float


class StartDecision(NamedTuple):
    """A job for a machine, and where on it."""

    head: ReadyHead
    allocation: LeaseAllocation
    why: StartReason
    placement: Placement
    type: JobType
    queue: UserQueue


@frozen
class HoldDecision:
    """Nothing for this machine now, and why."""

    waiting: Mapping[str, int] = fresh(factory=dict)
    """How many ready jobs can't start here for which reason: an `UnfitReason`, or a `HoldReason`."""
    closed: str = ""
