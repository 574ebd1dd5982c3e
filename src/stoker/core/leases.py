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
"""The latest end that a machine may announce, in seconds from now."""


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
        """Return the token as one word for environments and logs: `7f3a…:2:5:1`."""
        return f"{self.job}:{self.attempt}:{self.epoch}:{self.generation}"

    def fence(self) -> dict[str, Any]:
        """Return the fields of the token that a message about the job carries."""
        return {"attempt": self.attempt, "epoch": self.epoch, "generation": self.generation}


class Partition(StrEnum):
    """What an attempt does when its lease ends and the coordinator can't be reached."""

    STOP = "stop"
    KEEP = "keep"
    """Continue, and offer the result on return. It is accepted only if the job was not granted to another worker."""


@frozen
class FleetTimes:
    """Every time limit of the fleet. Readers take their clock as a parameter; tests use small values."""

    heartbeat_s: float = 30.0
    lease_s: float = 90.0
    grace_s: float = 3.0
    """How much longer than a worker the coordinator waits before a lease expires."""
    start_s: float = 90.0
    """A granted job that has not started by then returns to the queue."""
    claim_wait_s: float = 20.0
    """How long a worker's claim is held open."""
    flush_s: float = 1.0
    """Renewals are kept in memory and written together, this often."""
    events_kept_s: float = 90 * 24 * 3600.0
    """Older events are deleted, except those of jobs that have not ended."""


@frozen
class Budgets:
    """How many attempts may end for each cause before a job fails. Each counts the first."""

    user: int = 1
    """The job's own failures: its code, its input, its time limit, its memory."""
    lost: int = 3
    """Its worker, or the connection to it, was lost."""
    poisoned: int = 2
    """The job fails as poison once it has taken down this many *different* workers."""
    declined: int = 20
    """Declines are free. A job that every worker declines waits between tries."""


BEATS_PER_S = 100.0
"""Heartbeats per second that a coordinator accepts before it asks for fewer: 3,000 machines at 30 s."""


@frozen
class LeaseTiming:
    """Heartbeat interval and lease duration in effect. Both grow with the fleet, which bounds the requests.

    They are shown, because with a longer lease a lost worker is noticed later.
    """

    heartbeat_s: float
    lease_s: float
    settling_s: float = 0.0
    """How much longer no lease expires after a start."""


def pace_of(times: FleetTimes, machines: int, *, settling_s: float = 0.0) -> LeaseTiming:
    """Lengthen heartbeat and lease alike once that many machines would exceed `BEATS_PER_S`."""
    factor = max(1.0, machines / BEATS_PER_S / times.heartbeat_s)
    return LeaseTiming(heartbeat_s=times.heartbeat_s * factor, lease_s=times.lease_s * factor, settling_s=settling_s)


# Principals: people with roles, and machines under their own name.


class Role(StrEnum):
    """What a principal may do. A role of people includes lower ones (`Principal.may`); a worker has its own."""

    READ = "read"
    """Read everything, change nothing."""
    SUBMIT = "submit"
    """Submit jobs and change one's own. This role runs code on the fleet's machines."""
    LAUNCH = "launch"
    """Start workers: read, write allocations, make their tickets. Submitting jobs is not included."""
    OPERATE = "operate"
    """Change other people's jobs, drain, invite machines, exec into running jobs."""
    ADMIN = "admin"
    """Tokens, invitations of people, webhooks, the database."""
    WORKER = "worker"
    """A machine: claims work in its own name, and reports on that work alone."""


_INCLUDED = {
    Role.READ: frozenset({Role.READ}),
    Role.SUBMIT: frozenset({Role.READ, Role.SUBMIT}),
    Role.LAUNCH: frozenset({Role.READ, Role.LAUNCH}),
    Role.OPERATE: frozenset({Role.READ, Role.SUBMIT, Role.LAUNCH, Role.OPERATE}),
    Role.ADMIN: frozenset({Role.READ, Role.SUBMIT, Role.LAUNCH, Role.OPERATE, Role.ADMIN}),
    Role.WORKER: frozenset({Role.WORKER}),
}


@frozen
class Principal:
    """The sender of a request."""

    name: str
    """The name of a machine or of a token, or the user at the coordinator's own machine."""
    role: Role
    is_known: bool = True
    """False if neither a credential nor the kernel identifies it."""

    def may(self, required: Role) -> bool:
        """Return True if the role includes the required one."""
        return required in _INCLUDED[self.role]


def verified_name(recorded: str) -> str:
    """Return the verified name in a recorded requester (`ann (ann@laptop)`).

    Empty if no name was verified: the operator of the coordinator's own machine.
    """
    name = recorded.partition(" (")[0]
    return name if is_node_name(name) else ""


def may_change(only_of: str | None, submitter: str) -> bool:
    """Return True if a job of this submitter may be changed by a principal that may change `only_of`'s (None: all)."""
    return only_of is None or (bool(only_of) and only_of == verified_name(submitter))


# Symptoms: what may be wrong with a machine or one of its devices, with the reason and what helps.

SYSTEM_A = "system A"
"""The version field of a machine whose worker is one of system A."""


def is_skewed(version: str, of_coordinator: str) -> bool:
    """Return True if a worker's version is not the coordinator's. Workers of system A have no version to compare."""
    return version not in (of_coordinator, SYSTEM_A)


class SymptomKind(StrEnum):
    """The names are those in events and lists."""

    SILENT = "silent"
    """Its last heartbeat is late, but less than a day old."""
    FLAPPING = "flapping"
    """It disconnects and reconnects."""
    SLOW = "slow"
    """Much slower than other machines at the same work."""
    FATAL_ONLY = "fatal-only"
    """Jobs that complete elsewhere fail there."""
    SKEWED = "skewed"
    """Its version is not the coordinator's, or unknown."""
    DISK = "disk"
    """Its disk is nearly full."""
    FAILING = "failing"
    """Different jobs fail on this device as they do on broken hardware."""
    HOT = "hot"
    """A device is close to the temperature at which it slows down."""
    MEMORY = "memory"
    """A device's memory is nearly full, beyond what jobs reserved."""
    POWER = "power"
    """A device draws all the power that it may, and is slowed down."""
    IDLE = "idle"
    """A job holds a device and does not use it."""


@frozen
class Symptom:
    """One thing that is wrong now."""

    machine: str
    device: str = ""
    """A UUID; empty if it is about the whole machine."""
    ailment: SymptomKind
    message: str
    """What was measured, with numbers."""
    hint: str
    """The command that helps."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.machine, self.device, self.ailment.value)
