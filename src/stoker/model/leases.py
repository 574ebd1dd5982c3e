"""Leases: one worker's right to try a job, until a deadline, under a fencing epoch; and the times that rule them.

Only nouns. A job may *execute* more than once; at most one attempt's result is ever *accepted*: every write carries the
token of its lease, and only the newest token of a job counts.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen

MOST_LEFT_S = 10 * 366 * 86400.0
"""The latest end that a machine may announce, from now."""


@frozen
class Token:
    """What every write of an attempt carries. All four must be the job's own now, or the write is stale."""

    job: str
    """The job's id."""
    attempt: int
    """From 1; counts every grant, also those that were declined or released."""
    epoch: int
    """Lives on the job, only ever grows, and is raised with every grant and every requeue."""
    generation: int
    """The coordinator's: rises when its database is restored from a backup, so that no old epoch returns."""

    def to_text(self) -> str:
        """Give it as a word for environments and logs: `7f3a…:2:5:1`."""
        return f"{self.job}:{self.attempt}:{self.epoch}:{self.generation}"


class Partition(StrEnum):
    """What an attempt does when its lease ends and the coordinator can't be reached."""

    STOP = "stop"
    KEEP = "keep"
    """Go on, and offer the result on return: accepted only if nobody else was given the job meanwhile."""


@frozen
class FleetTimes:
    """How long things may take, in one place. Tests make them small; every reader takes its clock from outside."""

    heartbeat_s: float = 30.0
    lease_s: float = 90.0
    grace_s: float = 3.0
    """How much longer than a worker the coordinator waits before it judges a lease to be over."""
    start_s: float = 90.0
    """A job that was granted and has not started by then goes back."""
    claim_wait_s: float = 20.0
    """How long a worker's question for work is held open."""
    flush_s: float = 1.0
    """Renewals live in memory and are written down together, this often."""
    events_kept_s: float = 90 * 24 * 3600.0
    """Events that are older are dropped, but for those of jobs that have not ended."""


@frozen
class Budgets:
    """How many attempts may end for each cause before a job is given up. Each counts the first."""

    user: int = 1
    """The job's own failures: its code, its input, its time limit, its memory."""
    lost: int = 3
    """Its worker, or the way to it, went away."""
    poisoned: int = 2
    """As many *different* workers went away under it, and it is given up as poison."""
    declined: int = 20
    """Declines are free, but a job that everybody declines waits a while between tries."""
