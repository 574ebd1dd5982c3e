"""What the writer knows without asking: live leases, machines, classes, claims, who waits, the next numbers.

It is a copy of rows, made when the coordinator starts and changed together with them. A guarded statement that does not
find its row shows that the copy is wrong; then it is thrown away and made again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stoker.coordinator.auth import Revocations, TrustState
from stoker.coordinator.queue.ready import ReadyJobEntry, ReadyJobs
from stoker.core.clock import Clock
from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.job import EnvironmentChoice
from stoker.core.jsontext import loads
from stoker.core.leases import AttemptToken, Budgets, FleetTimes
from stoker.core.machine import Cluster, DevicePreference, SchedulableJob, code_word, environment_word
from stoker.protocol.code_messages import code_of, why_not_accepted
from stoker.protocol.environment_messages import (
    EnvironmentStatus,
    environment_digest,
    has_python,
    outlook,
    reported_digest,
)
from stoker.protocol.job_messages import ENVIRONMENT_BODY, HostPolicy
from stoker.protocol.lease_messages import MachineInventory
from stoker.scheduler.machine_index import LeaseAllocation
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.scheduler import Scheduler
from stoker.scheduler.score import CPU_SPEED

# What the queue is given: time, limits, the scheduler, and where bytes lie.


@frozen
class QueueContext:
    """Handed in once, the same for as long as the queue lives."""

    clock: Clock
    times: FleetTimes
    budgets: Budgets
    scheduler: Scheduler
    has_object: Callable[[str], int | None]
    """How many bytes lie under a digest; nothing if none do."""
    randomness: Callable[[], float]
    """From 0 to 1."""
    version: str = ""
    """The program's."""
    revocations: Revocations = fresh(factory=Revocations)


_JUMP_S = 1.0
"""By less, clocks that are kept right are set all the time."""


class CoordinatorTime:
    """The coordinator's own time: it never goes back, whatever happens to the wall clock.

    Stamps are the larger of the wall clock and of what was stored last plus what has passed since. Leases are judged on
    the monotonic scale alone, so that no jump of the wall clock ends one.
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
        # The boot time counts suspend: then time has passed, and jobs of other machines went on.
        jumped_s = self._last_s - (last_s + boot_s - self._last_boot_s)
        self._jumped_s += jumped_s if jumped_s > _JUMP_S else 0.0
        self._last_tick_s, self._last_boot_s = tick_s, boot_s
        return self._last_s

    def take_jump_s(self) -> float:
        """Return by how much the time to store was set forward since this was last asked, beside what has passed."""
        jumped_s, self._jumped_s = self._jumped_s, 0.0
        return jumped_s

    def tick_s(self) -> float:
        """Return the time by which leases are judged."""
        return self._clock.monotonic_s()


ACCEPTS = "accepts"
"""Under this a machine's row keeps, beside what was declared of it, which code alone it runs."""
ENDS = "ends_s"
"""Under this it keeps there when the machine goes away."""


@changeable
class LiveLease:
    """A live lease and what is needed of its job to end it."""

    seq: int
    id: str
    attempt: int
    epoch: int
    generation: int
    machine: str
    incarnation: str
    class_id: int
    """Of its job now; its allocation may still be of another one."""
    priority: int
    state: str
    allocation: LeaseAllocation
    attempts: int
    """How many failures of its own the job may have."""
    user_failures: int
    lost: int
    declined: int
    until_tick_s: float
    """When it is over, on the monotonic scale."""
    blockers: int = 0
    is_cancelling: bool = False
    cancel_why: str = ""
    """Of one that is cancelled: by whom."""
    started_s: float | None = None
    progress: str = ""
    prepared: int = 0
    """Before its start: how far its machine has got with what it needs."""
    is_changed: bool = False
    """Renewed since it was last written down."""

    def is_token(self, token: AttemptToken) -> bool:
        """Return whether a token is this lease's own."""
        return (
            token.epoch == self.epoch
            and token.attempt == self.attempt
            and token.generation == self.generation
            and token.job == self.id
        )


LATE_S = 3600.0
"""How long a machine that lost a lease may send the result, from when it is heard again or last spoke of it."""


@changeable
class RegisteredMachine:
    """A machine that has said hello."""

    row: dict[str, Any]
    """As it is stored."""
    closed_devices: dict[str, str]
    seen_tick_s: float
    holdings: MachineInventory | None = None
    """What its worker said last that it has; None: it has not spoken since this coordinator started."""
    disk_free_bytes: int | None = None
    """As its last heartbeat said."""
    leases: dict[int, LiveLease] = fresh(factory=dict)
    """By the job's number."""
    late_until_tick_s: float = float("-inf")
    """Until when it may send the result of a lease that ended without a word of it; infinite until it is heard."""
    is_offered: bool = False
    """Whether the scheduler counts on it: it was heard of lately."""
    away: NodeOffer | None = None
    """What it would offer if it came back; None: not asked for since it was last offered."""
    is_changed: bool = False
    """Seen since that was last written down."""

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def incarnation(self) -> str:
        return str(self.row["incarnation"])

    @property
    def is_expected(self) -> bool:
        """Whether it spoke lately, as far as is known, and did not say goodbye."""
        return self.seen_tick_s > float("-inf") and self.row["left_s"] is None

    @property
    def outdated(self) -> list[str]:
        """Earlier starts of its worker, the oldest first: their late words do not count."""
        return loads(self.row["outdated"]) if self.row["outdated"] else []

    @property
    def accepts(self) -> tuple[str, ...]:
        """Trees and commits whose code alone it runs; none: any."""
        declared = self.row["declared"]
        # Read seldom, and mostly not there: the text says so without being read.
        return tuple(loads(declared).get(ACCEPTS, ())) if f'"{ACCEPTS}"' in (declared or "") else ()

    @property
    def ends_s(self) -> float | None:
        """When it goes away; None: no end is known."""
        declared = self.row["declared"]
        return loads(declared).get(ENDS) if f'"{ENDS}"' in (declared or "") else None

    @property
    def closed(self) -> str:
        """Why it gets nothing; empty: it is open."""
        if not self.row["closed"]:
            return ""
        why = self.row["why"]
        return f"{self.row['closed']}: {why}" if why else str(self.row["closed"])


class QueueClaimRecord(NamedTuple):
    """What a request for work was granted."""

    incarnation: str
    at_s: float
    granted: tuple[tuple[int, int], ...]
    """Job's number and epoch."""


@changeable
class EventDropProgress:
    """How far old events and unused classes have been looked for."""

    next_tick_s: float = float("-inf")
    """When they are next looked for, on the monotonic scale."""
    looked_to: int = 0
    """Up to which event."""
    class_looked_to: int = 0
    dropped_to: int = 0
    """The newest event that was dropped."""


class JobKind(NamedTuple):
    """What makes jobs one class: they ask for the same, are alike in what they run, and are of one user.

    They also state about the same duration, or none.
    """

    wanted: SchedulableJob
    like: str
    """The recipe; of a program, the job's name: by that durations are learned."""
    user: str
    stated_s: float | None = None
    """As `rounded_s` rounds it: on a device of speed 1, or on the only machine that is allowed."""

    @property
    def only_host(self) -> str:
        """The machine on which its jobs take the stated time; empty: a device of speed 1."""
        hosts = self.wanted.allowed_hosts
        is_there = (
            self.stated_s is not None
            and len(hosts) == 1
            and self.wanted.requirements.wish is not DevicePreference.NEVER
        )
        return hosts[0] if is_there else ""

    def expected_s(self, offer: NodeOffer | None) -> float | None:
        """Return the stated time on a device of speed 1; None: not stated.

        `offer` is that of the only host, if it is known: the speed of its fastest device counts, or of its CPU.
        """
        if self.stated_s is None or not self.only_host or offer is None:
            return self.stated_s
        return self.stated_s * max((device.speed for device in offer.devices), default=CPU_SPEED)


class QueueState:
    """All of it."""

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
        """By machine, classes whose jobs state how long they take there."""
        self.class_sorts: dict[tuple[Any, ...], int] = {}
        """The same by the fields of orders, so that thousands that are alike are soon known."""
        self.environments: dict[str, tuple[EnvironmentChoice, ...]] = {}
        """By the digest that classes know them by."""
        self.tells_code_apart = False
        """Whether some machine runs only certain code."""
        self.code_words: set[str] = set()
        """Those that classes have (`core.machine.code_word`)."""
        self.waiting = ReadyJobs(scheduler.ready, _no_page)
        self.claims: OrderedDict[str, QueueClaimRecord] = OrderedDict()
        """By request id, the oldest first."""
        self.barred: dict[str, dict[int, float]] = {}
        """Machine → job's number → until when (monotonic) it is not offered the job again, which it declined."""
        self.cluster: Cluster | None = None
        self.policies: dict[str, HostPolicy] = {}
        self.listed: frozenset[str] = frozenset()
        """Words that machines' allow and deny lists ask about."""
        self.standing = TrustState()
        """Who belongs to the fleet."""
        self.has_after = False
        """Whether any job was ever to come after another."""
        self.next_old_tick_s = float("-inf")
        """When it is next looked for answers to submissions that are too old, on the monotonic scale."""
        self.dropping = EventDropProgress()
        self.next_delay_s = float("inf")
        """When the first delayed job is ready."""
        self.seq = 0
        self.event_id = 0
        self.bundle_id = 0
        self.class_id = 0

    def put_class(self, class_id: int, kind: JobKind) -> None:
        """Let the scheduler know a class, before any of its jobs is ready or runs."""
        host = kind.only_host
        if host:
            self.stated_on.setdefault(host, {})[class_id] = kind
        known = self.scheduler.machines.machines.get(host)
        expected_s = kind.expected_s(None if known is None else known.offer)
        self.scheduler.put_class(class_id, kind.wanted, user=kind.user, like=kind.like, expected_s=expected_s)

    def restate(self, machine: str) -> None:
        """Let the scheduler know how long jobs take whose duration is stated for a machine, which is known now."""
        for class_id, kind in self.stated_on.get(machine, {}).items():
            self.put_class(class_id, kind)

    def unbar(self, seq: int) -> None:
        """Let machines be offered a job again that they declined: it is another one now."""
        for declined in self.barred.values():
            declined.pop(seq, None)

    def add_live(self, live: LiveLease) -> None:
        """Add a lease; the scheduler counts it where it is granted or restored."""
        self.live[live.id] = live
        self.live_by_seq[live.seq] = live
        machine = self.machines.get(live.machine)
        if machine is not None:
            machine.leases[live.seq] = live

    def drop_live(self, live: LiveLease, now_s: float, *, is_completed: bool) -> None:
        """Remove a lease that has ended."""
        del self.live[live.id]
        del self.live_by_seq[live.seq]
        machine = self.machines.get(live.machine)
        if machine is not None:
            machine.leases.pop(live.seq, None)
        self.scheduler.release(live.allocation, now_s, is_completed=is_completed)


def _no_page(_class_id: int, _priority: int, _after_seq: int, _most: int) -> list[ReadyJobEntry]:
    """Return no ready jobs: outside of a turn nothing is read."""
    return []


# Words for programs' code, and which of them a machine denies that runs only certain code.
#
# As long as no machine is so, no class knows about code. From the first on (`Book.tells_code_apart`), a program's class
# has a word for its tree and commit, and machines that do not accept it deny that word: a grant costs nothing more.

_PROGRAM = "command"


def code_in(book: QueueState, spec: Mapping[str, Any]) -> str:
    """Return the word for an order's code; empty: nobody asks, or it is a recipe's, which is the machine's own."""
    if not book.tells_code_apart or spec["recipe"] != _PROGRAM:
        return ""
    return code_word(*code_of(spec))


def learn_code(book: QueueState, word: str) -> bool:
    """Take in a word; says whether it is news."""
    if word in book.code_words:
        return False
    book.code_words.add(word)
    return True


def unaccepted(book: QueueState, machine: RegisteredMachine) -> dict[str, str]:
    """Return the code that a machine does not run, by the word that it denies, with the reason."""
    accepts = machine.accepts
    if not accepts:
        return {}
    found = {word: why_not_accepted(accepts, *word.split(":", 2)[1:]) for word in book.code_words}
    return {word: why for word, why in found.items() if why}


# Environments of jobs against machines: which machine can't have which, and what its worker says it has.
#
# A class of jobs knows its environment by one digest. Machines that can't have one deny that digest, so that what is
# granted costs nothing more: only news of an environment, or of what a machine has, is looked at here.

Choices = tuple[EnvironmentChoice, ...]


def choices_in(spec: Mapping[str, Any]) -> Choices:
    """Return the choices of an order, as it came or as it is stored."""
    return tuple(ENVIRONMENT_BODY.validate_python(one) for one in spec.get("environment", ()))


def digest_in(spec: Mapping[str, Any]) -> str:
    """Return the digest by which an order's class knows its environment; empty: it has none."""
    return environment_digest(choices_in(spec)) if spec.get("environment") else ""


def learn(book: QueueState, choices: Choices) -> bool:
    """Take in an environment; return True if it is news."""
    digest = environment_digest(choices)
    is_known = digest in book.environments
    book.environments[digest] = choices
    return not is_known


def unable(book: QueueState, machine: RegisteredMachine) -> dict[str, str]:
    """Return the environments that a machine can't have, by the word that it denies, with the reason."""
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


def _is_in_doubt(choices: Choices, held: MachineInventory) -> bool:
    """Return True if a machine may be unable to have it: most are for all machines, and none refused them."""
    is_for_all = any(not one.platform for one in choices)
    return (
        not is_for_all
        or not held.platform
        or any(one.refused or reported_digest(one) in held.impossible or not has_python(one, held) for one in choices)
    )


def is_news(book: QueueState, machine: RegisteredMachine, holdings: MachineInventory) -> bool:
    """Take in what a worker says it has; says whether it can have other environments now than before."""
    was = unable(book, machine)
    machine.holdings = holdings
    return unable(book, machine) != was


_LEAST_PROGRESS = 0.02
"""Less than this part done says nothing about the rest: starting up takes its own time."""


def progress_end_s(started_s: float, step: int | None, of: int | None, now_s: float) -> float | None:
    """Return when a run ends if it goes on as fast as until now; None if it does not say how far it is.

    Whatever it says, the end is not in the past, and not later than 1 / `_LEAST_PROGRESS` times what it took until now.
    """
    if step is None or of is None or step <= 0 or of <= 0:
        return None
    # Workers send whole numbers of any size: a quotient below 1 is always a float.
    part = step / of if step < of else 1.0
    if part < _LEAST_PROGRESS:
        return None
    return now_s + max(0.0, now_s - started_s) * (1 - part) / part
