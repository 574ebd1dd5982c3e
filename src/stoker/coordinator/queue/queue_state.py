"""The writer's state in memory: live leases, machines, classes, claims, ready jobs, the next numbers.

It is a copy of rows, read when the coordinator starts and changed together with them. A guarded statement that does not
find its row shows that the copy is wrong; then it is discarded and read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stoker.coordinator.auth import Revocations, TrustState
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry, ReadyJobs
from stoker.core.clock import Clock
from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.job import EnvironmentChoice
from stoker.core.jsontext import loads
from stoker.core.leases import AttemptToken, Budgets, FleetTimes
from stoker.core.machine import Cluster, DevicePreference, SchedulableJob, environment_word
from stoker.core.pool import ID_CHARACTERS, Allocation, AllocationState, LaunchRequest, PoolState
from stoker.protocol.environment_messages import (
    EnvironmentStatus,
    environment_digest,
    has_python,
    outlook,
    reported_digest,
)
from stoker.protocol.job_checks import why_not_accepted
from stoker.protocol.job_messages import ENVIRONMENT_BODY, HostPolicy
from stoker.protocol.lease_messages import MachineInventory
from stoker.scheduler.machine_index import LeaseAllocation
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.scheduler import Scheduler
from stoker.scheduler.score import CPU_SPEED


@frozen
class QueueContext:
    """Parameters of the queue, constant during its life."""

    clock: Clock
    times: FleetTimes
    budgets: Budgets
    scheduler: Scheduler
    has_object: Callable[[str], int | None]
    """Returns the size of a stored object by its digest; None if it is not here, or is being removed."""
    randomness: Callable[[], float]
    """From 0 to 1."""
    version: str = ""
    """Of the program."""
    revocations: Revocations = fresh(factory=Revocations)


_JUMP_S = 1.0
"""Synchronised clocks are adjusted by less all the time."""


class CoordinatorTime:
    """The coordinator's own time, which never goes back, whatever happens to the wall clock.

    A timestamp is the larger of the wall clock and the last stored time plus the time since. Leases expire by the
    monotonic clock only, so that no jump of the wall clock ends one.
    """

    def __init__(self, clock: Clock, stored_s: float) -> None:
        self._clock = clock
        self._last_s = max(stored_s, clock.wall_s())
        self._last_tick_s = self.started_tick_s = clock.monotonic_s()
        self._last_boot_s = clock.boottime_s()
        self._jumped_s = 0.0
        self.started_s = self._last_s

    def now_s(self) -> float:
        """Return the time to store."""
        tick_s, boot_s = self._clock.monotonic_s(), self._clock.boottime_s()
        last_s = self._last_s
        self._last_s = max(self._clock.wall_s(), last_s + tick_s - self._last_tick_s)
        # The boot time counts suspend: time in which jobs of other machines continued.
        jumped_s = self._last_s - (last_s + boot_s - self._last_boot_s)
        self._jumped_s += jumped_s if jumped_s > _JUMP_S else 0.0
        self._last_tick_s, self._last_boot_s = tick_s, boot_s
        return self._last_s

    def take_jump_s(self) -> float:
        """Return by how much the time to store jumped forward since the last call."""
        jumped_s, self._jumped_s = self._jumped_s, 0.0
        return jumped_s

    def tick_s(self) -> float:
        """Return the monotonic time, by which leases expire."""
        return self._clock.monotonic_s()


ACCEPTS = "accepts"
"""Key in a machine's `declared`: the only code that it runs."""
ENDS = "ends_s"
"""Key in a machine's `declared`: when the machine leaves."""


@dataclass(slots=True, eq=False)
class LiveLease:
    """A live lease of a job."""

    job: ReadyJobEntry
    """Its class is the current one; the allocation may have an earlier one. Without spec and checkpoint."""
    generation: int
    machine: str
    incarnation: str
    state: str
    allocation: LeaseAllocation
    attempts: int
    """Maximum number of the job's own failures."""
    until_tick_s: float
    """When it expires, by the monotonic clock."""
    blockers: int = 0
    is_cancelling: bool = False
    cancel_why: str = ""
    """Who cancelled it."""
    started_s: float | None = None
    progress: str = ""
    prepared: int = 0
    """Before its start: progress of its preparation."""
    is_changed: bool = False
    """Renewed since it was last stored."""

    def is_token(self, token: AttemptToken) -> bool:
        """Return True if a token is of this lease."""
        job = self.job
        return (
            token.epoch == job.epoch
            and token.attempt == job.attempt
            and token.generation == self.generation
            and token.job == job.id
        )


LATE_S = 3600.0
"""How long a machine that lost a lease may send its result, after it returns or last reported the lease."""


@changeable
class RegisteredMachine:
    """A machine whose worker sent a hello."""

    row: dict[str, Any]
    """Its stored row."""
    closed_devices: dict[str, str]
    seen_tick_s: float
    holdings: MachineInventory | None = None
    """The last reported inventory; None: no report since this coordinator started."""
    disk_free_bytes: int | None = None
    """Of its last heartbeat."""
    leases: dict[int, LiveLease] = fresh(factory=dict)
    """By the job's number."""
    late_until_tick_s: float = float("-inf")
    """Until when it may send the result of an expired lease; infinite until its next request."""
    is_offered: bool = False
    """The scheduler uses it: it sent a request lately."""
    away: NodeOffer | None = None
    """What it would offer if it came back; None: not computed since it was last offered."""
    is_changed: bool = False
    """Seen since `last_seen_s` was last stored."""

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def incarnation(self) -> str:
        return str(self.row["incarnation"])

    @property
    def is_expected(self) -> bool:
        """True if it sent a request lately, as far as is known, and did not leave."""
        return self.seen_tick_s > float("-inf") and self.row["left_s"] is None

    @property
    def outdated(self) -> list[str]:
        """Earlier incarnations of its worker, the oldest first: their late requests are refused."""
        return loads(self.row["outdated"]) if self.row["outdated"] else []

    @property
    def accepts(self) -> tuple[str, ...]:
        """Trees and commits; it runs only their code (empty: any)."""
        declared = self.row["declared"]
        # Mostly absent: the text shows that without parsing.
        return tuple(loads(declared).get(ACCEPTS, ())) if f'"{ACCEPTS}"' in (declared or "") else ()

    @property
    def ends_s(self) -> float | None:
        """When it leaves; None: no end is known."""
        declared = self.row["declared"]
        return loads(declared).get(ENDS) if f'"{ENDS}"' in (declared or "") else None

    @property
    def closed(self) -> str:
        """Why it gets no jobs; empty: it is open."""
        if not self.row["closed"]:
            return ""
        why = self.row["why"]
        return f"{self.row['closed']}: {why}" if why else str(self.row["closed"])


class QueueClaimRecord(NamedTuple):
    """The grants of a claim."""

    incarnation: str
    at_s: float
    granted: tuple[tuple[int, int], ...]
    """Job's number and epoch."""


@changeable
class EventDropProgress:
    """Progress of the deletion of old events and unused classes."""

    next_tick_s: float = float("-inf")
    """When the next pass starts, by the monotonic clock."""
    looked_to: int = 0
    """Events up to this id were examined."""
    class_looked_to: int = 0
    dropped_to: int = 0
    """The newest deleted event."""


@changeable
class LaunchState:
    """Pools and allocations."""

    fleet: str = ""
    """The fleet's id at backends; empty: it never had a pool."""
    pools: dict[str, PoolState] = fresh(factory=dict)
    allocations: dict[str, Allocation] = fresh(factory=dict)
    """By id: all that have not ended, and some that have."""
    requests: dict[str, LaunchRequest] = fresh(factory=dict)
    """By id, the oldest first: open ones, and those closed lately."""
    next_tick_s: float = float("-inf")
    """When old ones are next dropped, by the monotonic clock."""
    idle_from_s: dict[str, float] = fresh(factory=dict)
    """By allocation, since when its worker has no job."""

    def idle_after_load(self, machines: Mapping[str, RegisteredMachine]) -> list[Allocation]:
        """Return the allocations whose workers serve and have no job, by the rows."""
        serving = [one for one in self.allocations.values() if one.state is AllocationState.SERVING]
        return [one for one in serving if (machine := machines.get(one.machine)) is None or not machine.leases]

    def begin_idling(self, idle: Iterable[Allocation], last: Mapping[str, tuple[int, float]], now_s: float) -> None:
        """Note since when workers have no job after a start.

        `last` has for a machine how many attempts of its jobs are known, and when the last of them ended. If others are
        missing there (their jobs ran again elsewhere, or were deleted), it is not known, and the time begins now.
        """
        for one in idle:
            count, ended_s = last.get(one.machine, (0, one.serving_s or now_s))
            self.idle_from_s[one.id] = ended_s if count == one.grants else now_s

    def idling_s(self, id: str, now_s: float) -> float:
        """Return how long the worker of an allocation has had no job by now."""
        return max(0.0, now_s - self.idle_from_s.get(id, now_s))

    def stop_idling(self, id: str, now_s: float) -> float:
        """Note that an allocation's worker has a job, or has left; return how long it had none."""
        idle_s = self.idling_s(id, now_s)
        self.idle_from_s.pop(id, None)
        return idle_s

    def allocation_of(self, machine: str) -> Allocation | None:
        """Return the allocation whose worker has this name."""
        found = self.allocations.get(machine[-ID_CHARACTERS:])
        return found if found is not None and found.machine == machine else None


class JobKind(NamedTuple):
    """The key of a class: jobs of one user with equal requirements, recipe or program, and stated duration."""

    wanted: SchedulableJob
    like: str
    """The recipe, or for a program the job's name: durations are learned by it."""
    user: str
    stated_s: float | None = None
    """Rounded by `rounded_s`: on a device of speed 1, or on the only allowed machine."""

    @property
    def only_host(self) -> str:
        """The machine that the stated time is for; empty: a device of speed 1."""
        hosts = self.wanted.allowed_hosts
        is_there = (
            self.stated_s is not None
            and len(hosts) == 1
            and self.wanted.requirements.wish is not DevicePreference.NEVER
        )
        return hosts[0] if is_there else ""

    def expected_s(self, offer: NodeOffer | None) -> float | None:
        """Return the stated time on a device of speed 1; None: not stated.

        `offer` is that of the only host, if known: the speed of its fastest device is used, or of its CPU.
        """
        if self.stated_s is None or not self.only_host or offer is None:
            return self.stated_s
        return self.stated_s * max((device.speed for device in offer.devices), default=CPU_SPEED)


class QueueState:
    """The whole state."""

    def __init__(self, time: CoordinatorTime, scheduler: Scheduler, generation: int) -> None:
        self.time = time
        self.scheduler = scheduler
        self.generation = generation
        self.live: dict[str, LiveLease] = {}
        """By the job's id."""
        self.live_by_seq: dict[int, LiveLease] = {}
        self.machines: dict[str, RegisteredMachine] = {}
        self.classes: dict[JobKind, int] = {}
        self.stated_on: dict[str, dict[int, JobKind]] = {}
        """By machine: classes whose jobs state their duration on it."""
        self.class_sorts: dict[tuple[Any, ...], int] = {}
        """`classes` by the fields of specs: the fast lookup for thousands of equal jobs."""
        self.environments: dict[str, tuple[EnvironmentChoice, ...]] = {}
        """By the digest in classes."""
        self.is_code_in_classes = False
        """Some machine runs only certain code."""
        self.code_words: set[str] = set()
        """Code words of classes (`core.machine.code_word`)."""
        self.waiting = ReadyJobs(scheduler.ready, _no_page)
        self.claims: OrderedDict[str, QueueClaimRecord] = OrderedDict()
        """By request id, the oldest first."""
        self.barred: dict[str, dict[int, float]] = {}
        """Machine → job's number → until when (monotonic) the machine is not offered the job that it declined."""
        self.cluster: Cluster | None = None
        self.policies: dict[str, HostPolicy] = {}
        self.listed: frozenset[str] = frozenset()
        """Words in the allow and deny lists of machines."""
        self.launch = LaunchState()
        self.standing = TrustState()
        """The members of the fleet."""
        self.has_after = False
        """Some job has dependencies."""
        self.next_old_tick_s = float("-inf")
        """When old responses to submissions are next deleted, by the monotonic clock."""
        self.dropping = EventDropProgress()
        self.next_delay_s = float("inf")
        """When the first delayed job is ready."""
        self.seq = self.event_id = self.bundle_id = self.class_id = 0

    def put_class(self, class_id: int, kind: JobKind) -> None:
        """Register a class with the scheduler, before any of its jobs is ready or runs."""
        host = kind.only_host
        if host:
            self.stated_on.setdefault(host, {})[class_id] = kind
        known = self.scheduler.machines.machines.get(host)
        expected_s = kind.expected_s(None if known is None else known.offer)
        self.scheduler.put_class(class_id, kind.wanted, user=kind.user, like=kind.like, expected_s=expected_s)

    def restate(self, machine: str) -> None:
        """Register classes again whose durations are stated for a machine that is known now."""
        for class_id, kind in self.stated_on.get(machine, {}).items():
            self.put_class(class_id, kind)

    def unbar(self, seq: int) -> None:
        """Offer a job again to machines that declined it: it has changed."""
        for declined in self.barred.values():
            declined.pop(seq, None)

    def add_live(self, live: LiveLease) -> None:
        """Add a lease; the caller registers it with the scheduler."""
        self.live[live.job.id] = live
        self.live_by_seq[live.job.seq] = live
        machine = self.machines.get(live.machine)
        if machine is not None:
            machine.leases[live.job.seq] = live

    def drop_live(self, live: LiveLease, now_s: float, *, is_completed: bool) -> None:
        """Remove a lease that has ended."""
        del self.live[live.job.id]
        del self.live_by_seq[live.job.seq]
        machine = self.machines.get(live.machine)
        if machine is not None:
            machine.leases.pop(live.job.seq, None)
            allocation = self.launch.allocation_of(machine.name) if not machine.leases else None
            if allocation is not None and allocation.serving_s is not None and not allocation.is_over:
                self.launch.idle_from_s[allocation.id] = now_s
        self.scheduler.release(live.allocation, now_s, is_completed=is_completed)


def _no_page(_class_id: int, _priority: int, _after_seq: int, _most: int) -> list[ReadyJobEntry]:
    """Return no ready jobs: rows are read inside a transaction only."""
    return []


def unaccepted(book: QueueState, machine: RegisteredMachine) -> dict[str, str]:
    """Return the code words that a machine denies, with the reason."""
    accepts = machine.accepts
    if not accepts:
        return {}
    found = {word: why_not_accepted(accepts, *word.split(":", 2)[1:]) for word in book.code_words}
    return {word: why for word, why in found.items() if why}


# Environments of jobs on machines: which machine can't provide which.
#
# A class has the digest of its environment. Machines that can't provide it deny the digest, at no extra cost per grant:
# only a new environment, or a change of a machine's inventory, is evaluated here.

JobEnvironments = tuple[EnvironmentChoice, ...]


def choices_in(spec: Mapping[str, Any]) -> JobEnvironments:
    """Return the choices of a job, as submitted or as stored."""
    return tuple(ENVIRONMENT_BODY.validate_python(one) for one in spec.get("environment", ()))


def learn(book: QueueState, choices: JobEnvironments) -> bool:
    """Add an environment; return True if it is new."""
    digest = environment_digest(choices)
    is_known = digest in book.environments
    book.environments[digest] = choices
    return not is_known


def unable(book: QueueState, machine: RegisteredMachine) -> dict[str, str]:
    """Return the environments that a machine can't provide, by the word that it denies, with the reason."""
    held = machine.holdings
    if held is None or not book.environments:
        return {}
    found = {
        digest: outlook(choices, machine.name, held)
        for digest, choices in book.environments.items()
        if _is_in_doubt(choices, held)
    }
    return {
        environment_word(digest): one.why
        for digest, one in found.items()
        if one.standing is EnvironmentStatus.IMPOSSIBLE
    }


def _is_in_doubt(choices: JobEnvironments, held: MachineInventory) -> bool:
    """Return False if a machine surely can provide it, as in most cases: for all platforms, and not refused."""
    is_for_all = any(not one.platform for one in choices)
    return (
        not is_for_all
        or not held.platform
        or any(one.refused or reported_digest(one) in held.impossible or not has_python(one, held) for one in choices)
    )


def is_news(book: QueueState, machine: RegisteredMachine, holdings: MachineInventory) -> bool:
    """Store a worker's inventory; return True if the environments that it can provide changed."""
    was = unable(book, machine)
    machine.holdings = holdings
    return unable(book, machine) != was
