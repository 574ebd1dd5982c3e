"""Leases: one worker's right to try a job, until a deadline, under a fencing epoch; and the times that rule them.

Only nouns. A job may *execute* more than once; at most one attempt's result is ever *accepted*: every write carries the
token of its lease, and only the newest token of a job counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from stoker.core.frozen import frozen
from stoker.core.text import is_node_name

MOST_LEFT_S = 10 * 366 * 86400.0
"""The latest end that a machine may announce, from now."""


@frozen
class AttemptToken:
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
        """Return it as a word for environments and logs: `7f3a…:2:5:1`."""
        return f"{self.job}:{self.attempt}:{self.epoch}:{self.generation}"

    def fence(self) -> dict[str, Any]:
        """Return what a message about the job carries of it, as fields."""
        return {"attempt": self.attempt, "epoch": self.epoch, "generation": self.generation}


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


# How often workers speak, and how long a lease lasts without a word: longer in a large fleet, to bound the talk.

BEATS_PER_S = 100.0
"""A coordinator hears this many heartbeats a second before it asks for fewer: 3,000 machines at 30 s."""


@frozen
class LeaseTiming:
    """What holds now. The price of longer leases is that a lost worker is noticed later, so it is shown."""

    heartbeat_s: float
    lease_s: float
    settling_s: float = 0.0
    """How much longer nothing expires, after a start."""


def pace_of(times: FleetTimes, machines: int, *, settling_s: float = 0.0) -> LeaseTiming:
    """Lengthen heartbeat and lease alike once that many machines would speak too often."""
    factor = max(1.0, machines / BEATS_PER_S / times.heartbeat_s)
    return LeaseTiming(heartbeat_s=times.heartbeat_s * factor, lease_s=times.lease_s * factor, settling_s=settling_s)


# Who asks, and what they may: roles of people, and machines under their own name.


class Role(StrEnum):
    """What somebody may do. Of people's roles each includes those before it; a worker has its own."""

    READ = "read"
    """See everything, change nothing."""
    SUBMIT = "submit"
    """Hand in jobs, and change one's own: whoever may, runs code on the fleet's machines."""
    OPERATE = "operate"
    """Change other people's jobs, drain, invite machines, look inside running jobs."""
    ADMIN = "admin"
    """Tokens, people's invitations, notifications, the database."""
    WORKER = "worker"
    """A machine: claims work in its own name, and reports on that alone."""


_PEOPLE = (Role.READ, Role.SUBMIT, Role.OPERATE, Role.ADMIN)


@frozen
class Principal:
    """Who asks."""

    name: str
    """A machine's name, a token's, or who sits at the coordinator's own machine."""
    role: Role
    is_known: bool = True
    """False: neither a credential nor the kernel says who it is."""

    def may(self, wanted: Role) -> bool:
        """Return whether the role includes another one."""
        if self.role is Role.WORKER or wanted is Role.WORKER:
            return self.role is wanted
        return _PEOPLE.index(self.role) >= _PEOPLE.index(wanted)


def verified_name(recorded: str) -> str:
    """Return the verified name in the record of who did something (`ann (ann@laptop)`).

    Empty where nobody's name was verified: the operator of the coordinator's own machine.
    """
    name = recorded.partition(" (")[0]
    return name if is_node_name(name) else ""


def may_change(only_of: str | None, submitter: str) -> bool:
    """Return True if a job of this submitter may be changed by a principal that may change `only_of`'s (None: all)."""
    return only_of is None or (bool(only_of) and only_of == verified_name(submitter))


# What may be wrong with a machine or one of its devices, in a word, with the reason and what helps.

SYSTEM_A = "system A"
"""What a machine whose worker is one of system A has in the place of a version."""


def is_skewed(version: str, of_coordinator: str) -> bool:
    """Return True if a worker's version is not the coordinator's. Those of system A have none of ours to compare."""
    return version not in (of_coordinator, SYSTEM_A)


class SymptomKind(StrEnum):
    """By the word that stands in events and lists."""

    SILENT = "silent"
    """Heard of within a day, but not lately."""
    FLAPPING = "flapping"
    """It comes and goes."""
    SLOW = "slow"
    """Much slower than others with the same work."""
    FATAL_ONLY = "fatal-only"
    """Nothing ends well there that ends well elsewhere."""
    SKEWED = "skewed"
    """Its program is another version than the coordinator's, or says none."""
    DISK = "disk"
    """Its disk is nearly full."""
    FAILING = "failing"
    """A device on which different jobs fail as they do on broken hardware."""


@frozen
class Symptom:
    """One thing that is wrong now."""

    machine: str
    device: str = ""
    """A UUID; empty: it is about the whole machine."""
    ailment: SymptomKind
    message: str
    """What was seen, with numbers."""
    hint: str
    """The command that helps."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.machine, self.device, self.ailment.value)
