"""What starts and what runs: decisions as values, leases, and the outstanding work of the fleet.

Outstanding work is how long all that is ready and runs would take the whole fleet, kept up to date with a few
additions. It is counted with `prices`: a second of work at what it costs on its cheapest node type. Of a running job
the part that is left by its estimate counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from stoker.core.errors import InternalError
from stoker.core.frozen import fresh, frozen
from stoker.scheduler.fit import Placement
from stoker.scheduler.job_types import JobType
from stoker.scheduler.machine_index import LeaseAllocation, MachineIndex, MachineLease
from stoker.scheduler.ready_queue import ReadyHead, ReadyQueue, UserQueue
from stoker.scheduler.shares import Shares


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


class OutstandingWork:
    """Sums over all jobs."""

    def __init__(self) -> None:
        self.running = 0
        self.settling, self.settles_s = "", 0.0
        """The machine whose job was the last of all that ran, until it has asked, or until this time at the latest."""
        self._costs_s: Sequence[float] = ()
        self._ready: dict[int, float] = {}
        self._all_ready = 0.0
        self._sums: dict[int, float] | None = None
        """By priority, what is ready there and above; None: it has to be found again."""
        self._rates = 0.0
        self._ends = 0.0

    def cost_s(self, index: int) -> float:
        """Return what a job of a type costs, in seconds of the fleet; 0 before prices are known."""
        return self._costs_s[index] if index < len(self._costs_s) else 0.0

    def add_ready(self, index: int, priority: int, more: int) -> None:
        """Count jobs of a type that became ready; negative: that are no longer."""
        cost_s = self.cost_s(index) * more
        self._ready[priority] = self._ready.get(priority, 0.0) + cost_s
        self._all_ready += cost_s
        self._sums = None

    def set_costs(self, costs_s: Sequence[float], counts: Iterable[tuple[int, int, int]]) -> None:
        """Count all ready jobs at new prices: `counts` by type and priority. What runs is counted as before."""
        self._costs_s = costs_s
        self._ready = {}
        for index, priority, count in counts:
            self._ready[priority] = self._ready.get(priority, 0.0) + count * costs_s[index]
        self._all_ready = sum(self._ready.values())
        self._sums = None

    def start(self, rate: float, until_s: float) -> None:
        """Count a running job: so much per second, until then."""
        self.running += 1
        self._rates += rate
        self._ends += rate * until_s

    def end(self, rate: float, until_s: float) -> None:
        """Count it no more."""
        self.running -= 1
        self._rates -= rate
        self._ends -= rate * until_s
        if not self.running:
            self._rates = self._ends = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in the whole fleet, and no machine is about to ask because its job ended just now."""
        return not self.running and not self.settling

    def shift(self, back_s: float) -> None:
        """Move the ends of what runs: the clock was set back."""
        self.settles_s -= back_s
        self._ends -= self._rates * back_s

    def _ready_from(self, priority: int) -> float:
        """Return what the ready jobs of a priority and above cost: for all priorities at once, when amounts changed."""
        if self._sums is None:
            levels = sorted(self._ready.items(), reverse=True)
            self._sums = dict(zip((at for at, _ in levels), accumulate(cost_s for _, cost_s in levels), strict=True))
        found = self._sums.get(priority)
        if found is None:
            return sum([cost_s for at, cost_s in self._ready.items() if at >= priority])
        return found

    def both_s(self, now_s: float, priority: int | None = None) -> tuple[float, float]:
        """Return how long the fleet needs until a job of this priority starts, and until all is done.

        Starts: the ready jobs of its priority and above, and the first of the running ones to end. Done: these, and all
        that runs. Without a priority: the lowest.
        """
        ready_s = self._all_ready if priority is None else self._ready_from(priority)
        running_s = self._ends - self._rates * now_s
        ready_s, running_s = max(ready_s, 0.0), max(running_s, 0.0)
        return ready_s + running_s / (self.running or 1), ready_s + running_s


EXPECTED_NEWS = 0.2
"""A time left that differs by no more than this part from the known one is no news."""
MOST_LONGER = 100.0
"""A progress report lets a job take at most so many times as long as its estimate, or as it has run."""


class Leases:
    """All leases, counted on their machines, in the work of the fleet and in the shares of users."""

    def __init__(
        self,
        machines: MachineIndex,
        ready: ReadyQueue,
        work: OutstandingWork,
        shares: Shares,
        news: Callable[[], None],
    ) -> None:
        """Call `news` when a job is expected to end at another time than others wait for."""
        self._machines = machines
        self._ready = ready
        self._work = work
        self._shares = shares
        self._news = news
        self._unpriced: dict[MachineLease, None] = {}
        """Leases that were restored before prices were known."""

    def start(
        self, allocation: LeaseAllocation, now_s: float, placement: Placement | None, used_s: float | None = None
    ) -> MachineLease:
        """Count a lease; its user is charged from `used_s` on, or from now."""
        job_class = self._ready.classes.get(allocation.class_id)
        if job_class is None:
            message = f"a lease on {allocation.machine} is of class {allocation.class_id}, which is not known"
            raise InternalError(message)
        one = job_class.type
        lease = MachineLease(allocation, one, one.placed_shape(on_devices=bool(allocation.devices)), job_class.user)
        self._machines.add(lease, placement)
        machine = self._machines.machines.get(allocation.machine)
        lease.work_rate = speed = self._machines.speed_of(machine, lease) if machine is not None else 1.0
        takes_s = one.expected_s / speed
        lease.started_s, lease.until_s = now_s, now_s + takes_s
        lease.cost_rate = self._work.cost_s(one.index) / takes_s
        self._work.start(lease.cost_rate, lease.until_s)
        if machine is not None and machine.busy_until_s < lease.until_s:
            machine.busy_until_s = lease.until_s
        lease.usage_rate = self._shares.part_of_fleet(lease)
        self._shares.start(lease.user, lease.usage_rate, len(allocation.devices), now_s if used_s is None else used_s)
        return lease

    def restore(  # noqa: PLR0913 - what is known of a lease that was granted earlier
        self,
        allocation: LeaseAllocation,
        now_s: float,
        started_s: float | None = None,
        *,
        granted_s: float | None = None,
        ends_s: float | None = None,
        speed: float | None = None,
        cost_rate: float | None = None,
    ) -> None:
        """Count a lease that was granted earlier. What is None is found out: the user's usage counts from now.

        What it costs is found with the next prices if it is not known, and how fast it runs when its machine is known.
        """
        used_s = now_s if granted_s is None else granted_s
        since_s = used_s if started_s is None else started_s
        lease = self.start(allocation, since_s, None, used_s)
        if speed is not None:
            lease.work_rate = speed
        if cost_rate is None:
            self._unpriced[lease] = None
        else:
            self._set_cost(lease, cost_rate)
        self.set_end(lease, since_s + lease.type.expected_s / lease.work_rate if ends_s is None else ends_s)

    def started(self, allocation: LeaseAllocation, now_s: float) -> None:
        """Take in that the job of a lease runs from now on: until now it was prepared."""
        lease = self._machines.find(allocation)
        lease.started_s = now_s
        self.set_end(lease, now_s + lease.type.expected_s / lease.work_rate)

    def started_s(self, allocation: LeaseAllocation) -> float:
        """Return since when the job of a lease runs, or is prepared, on the clock as it is now."""
        return self._machines.find(allocation).started_s

    def expect(self, allocation: LeaseAllocation, until_s: float, now_s: float) -> None:
        """Take in when a running job will end, by its own progress, if that differs much from what is expected.

        Jobs may report anything: the end is never in the past, and a job never takes `MOST_LONGER` times as long as its
        estimate, or as it has run already.
        """
        lease = self._machines.find(allocation)
        long_s = max(lease.type.expected_s / lease.work_rate, now_s - lease.started_s)
        until_s = min(until_s, lease.started_s + MOST_LONGER * long_s)
        left_s, known_s = max(0.0, until_s - now_s), max(0.0, lease.until_s - now_s)
        if abs(left_s - known_s) > EXPECTED_NEWS * max(left_s, known_s):
            self.set_end(lease, now_s + left_s)
            if self._ready.holding:
                self._news()

    def end(self, allocation: LeaseAllocation) -> MachineLease:
        """Count a lease no more on its machine and in the work of the fleet."""
        lease = self._machines.drop(allocation)
        if self._unpriced:
            self._unpriced.pop(lease, None)
        self._work.end(lease.cost_rate, lease.until_s)
        return lease

    def set_end(self, lease: MachineLease, until_s: float) -> None:
        """Let a lease be expected to end at this time."""
        self._work.end(lease.cost_rate, lease.until_s)
        self._machines.expect(lease, until_s)
        self._work.start(lease.cost_rate, until_s)

    def price_restored(self, *, are_prices_found: bool) -> None:
        """Count restored leases at the prices of now, until these are found for all of their machines."""
        for lease in self._unpriced:
            takes_s = lease.type.expected_s / lease.work_rate
            self._set_cost(lease, self._work.cost_s(lease.type.index) / takes_s)
        if are_prices_found and not self._machines.has_absent:
            self._unpriced.clear()

    def _set_cost(self, lease: MachineLease, cost_rate: float) -> None:
        self._work.end(lease.cost_rate, lease.until_s)
        lease.cost_rate = cost_rate
        self._work.start(cost_rate, lease.until_s)
