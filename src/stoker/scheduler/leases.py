"""Decisions as values, leases, fair shares of users, and the outstanding work of the fleet.

A running job uses the largest of its parts of the fleet's devices, cores and memory (its dominant share). A user's
usage is the sum of that over time, in seconds of the whole fleet, and halves every `HALF_LIFE_S`. Within a priority the
user with the smallest usage divided by weight comes first.

Outstanding work is how long all ready and running jobs would take the whole fleet, kept up to date with a few
additions. It is counted with `prices`: a second of work at its cost on its cheapest node type. Of a running job the
part that is left by its estimate counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from math import inf, log
from typing import NamedTuple

from stoker.core.errors import InternalError
from stoker.core.frozen import fresh, frozen
from stoker.core.machine import ANY_USER, UserPolicy
from stoker.core.text import counted
from stoker.scheduler.fit import Placement, PlacementShape
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.machine_index import LeaseAllocation, MachineIndex, MachineLease
from stoker.scheduler.ready_queue import ReadyHead, ReadyQueue, UserQueue

HALF_LIFE_S = 24 * 3600.0
_RATE = log(2) / HALF_LIFE_S
_REBASE_S = 32 * HALF_LIFE_S
_MOST_HALF_LIVES = 512.0
"""What is longer ago counts as this long ago: powers of two have an end."""
_TOTALS_MOVED = 1.1
"""Parts of the fleet that leases use are found again when the fleet grew or shrank by this factor."""
_AHEAD_S = 600.0
"""A running job counts as if it had run so much longer, so that jobs that start together count at once."""


@frozen
class ShareView:
    """How one user stands."""

    user: str
    share: float
    """Of the recent usage of all users with running or ready jobs."""
    fair_share: float
    """What the weights give."""
    usage_s: float
    """Seconds of the whole fleet, older ones counted less."""
    jobs: int
    devices: int


def dominant_part(shape: PlacementShape, devices: int, totals: tuple[int, int, int]) -> float:
    """Return the largest of the parts of a fleet's devices, cores and bytes of RAM that a job uses on its devices."""
    return max(
        devices / max(1, totals[0]),
        shape.cores / max(1, totals[1]),
        shape.ram_bytes / max(1, totals[2]),
    )


class _User:
    __slots__ = ("devices", "jobs", "policy", "rate", "usage")

    def __init__(self, policy: UserPolicy) -> None:
        self.policy = policy
        self.usage = 0.0
        """In units that grow with time: usage × 2 ** (time / half-life). So the order of idle users never changes.

        Of what runs, the part before its start is taken off: with what `rate` makes until now it is the whole."""
        self.rate = 0.0
        """Part of the fleet that its running jobs use."""
        self.jobs = 0
        self.devices = 0


class Shares:
    """All users."""

    def __init__(self, policies: Mapping[str, UserPolicy] | None = None) -> None:
        self.policies = dict(policies or {})
        self.has_limits = _has_limits(self.policies)
        """Whether any user is limited."""
        self._users: dict[str, _User] = {}
        self._totals: tuple[int, int, int] | None = None
        """Devices, cores and bytes of RAM of the fleet by which parts of it were last found; None: no machine yet."""
        self._parts: dict[tuple[int, int], float] = {}
        """Parts of that fleet that jobs of a type use on so many devices."""
        self._zero_s = 0.0
        """The time at which a second of usage counts as one."""
        self._scaled_s, self._scaled = -inf, 0.0
        """What a second counted at the last time that was asked for, times the mean life of usage."""

    def set_policies(self, policies: Mapping[str, UserPolicy]) -> None:
        """Replace what the operator allows; the entry `*` is for users without one."""
        self.policies = dict(policies)
        self.has_limits = _has_limits(self.policies)
        for name, user in self._users.items():
            user.policy = self._policy(name)

    def charge(self, name: str, usage_s: float, at_s: float) -> None:
        """Count usage of the past that ended at a time."""
        self._rebase(at_s)
        user = self._user(name)
        user.usage += usage_s * self._scale(at_s)

    def set_totals(self, totals: tuple[int, int, int], leases: Iterable[MachineLease], now_s: float) -> None:
        """Find again which part of the fleet each lease uses, if the fleet grew or shrank."""
        if self._totals is not None and all(
            known <= total * _TOTALS_MOVED and total <= known * _TOTALS_MOVED
            for known, total in zip(self._totals, totals, strict=True)
        ):
            return
        self._totals = totals
        self._parts.clear()
        for lease in leases:
            before, lease.usage_rate = lease.usage_rate, self.part_of_fleet(lease)
            self._change(self._user(lease.user), lease.usage_rate - before, now_s)

    def start(self, name: str, rate: float, devices: int, now_s: float) -> None:
        """Count a job that uses this part of the fleet from now on."""
        user = self._user(name)
        self._change(user, rate, now_s)
        user.jobs += 1
        user.devices += devices

    def end(self, name: str, rate: float, devices: int, now_s: float) -> None:
        """Count it no more."""
        user = self._user(name)
        self._change(user, -rate, now_s)
        user.jobs -= 1
        user.devices -= devices
        if not user.jobs:
            user.rate = 0.0

    def part_of_fleet(self, lease: MachineLease) -> float:
        """Return which part of the fleet a lease uses."""
        if self._totals is None:
            return 0.0
        key = lease.type.index, len(lease.allocation.devices)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = dominant_part(lease.shape, key[1], self._totals)
        return part

    def order(self, names: Iterable[str], now_s: float) -> list[str]:
        """Return users in the order in which they are served: the one with the least usage first."""
        self._rebase(now_s)
        return sorted(names, key=lambda name: (self._key(name, now_s), name))

    def room(self, name: str) -> tuple[bool, int | None]:
        """Return whether a user may start a job at all, and on how many devices; None: any number."""
        jobs, devices = self.left(name)
        return jobs is None or jobs > 0, devices

    def left(self, name: str) -> tuple[int | None, int | None]:
        """Return how many jobs a user may still start, and on how many devices; None: any number."""
        user = self._users.get(name)
        policy = user.policy if user is not None else self._policy(name)
        jobs, devices = (user.jobs, user.devices) if user is not None else (0, 0)
        return (
            None if policy.most_jobs is None else max(0, policy.most_jobs - jobs),
            None if policy.most_devices is None else max(0, policy.most_devices - devices),
        )

    def allowed(self, name: str, types: JobTypes, mask: int) -> int:
        """Return what the limits of a user leave of some job types."""
        if not self.has_limits:
            return mask
        is_open, devices = self.room(name)
        if not is_open:
            return 0
        return mask if devices is None else mask & ~types.wider_than(devices)

    def limit_reached(self, name: str, devices: int) -> str:
        """Return which limit keeps a user from starting a job on so many devices, in words; empty: none."""
        user, policy = self._users.get(name), self._policy(name)
        jobs, held = (user.jobs, user.devices) if user is not None else (0, 0)
        if policy.most_jobs is not None and jobs >= policy.most_jobs:
            return f"limit of user {name} ({counted(policy.most_jobs, 'job')} at once)"
        if policy.most_devices is not None and devices > max(0, policy.most_devices - held):
            return f"limit of user {name} ({counted(policy.most_devices, 'device')} at once)"
        return ""

    def is_limited(self, name: str) -> bool:
        """Return whether a limit keeps a user from starting some jobs now, or may do so."""
        is_open, devices = self.room(name)
        return not is_open or devices is not None

    def usage(self, now_s: float) -> dict[str, float]:
        """Return the usage of every user until now, in seconds of the whole fleet, older ones counted less."""
        scale = self._scale(now_s)
        return {
            name: max(0.0, user.usage / scale + user.rate / _RATE)
            for name, user in self._users.items()
            if user.usage or user.rate
        }

    def views(self, names: Iterable[str], now_s: float) -> dict[str, ShareView]:
        """Return how these users stand beside each other."""
        names = list(names)
        self._rebase(now_s)
        usage = {name: self._key(name, now_s) * self._user(name).policy.weight / self._scale(now_s) for name in names}
        whole, weights = sum(usage.values()), sum(self._user(name).policy.weight for name in names)
        return {
            name: ShareView(
                user=name,
                share=usage[name] / whole if whole else 0.0,
                fair_share=self._user(name).policy.weight / weights if weights else 0.0,
                usage_s=usage[name],
                jobs=self._user(name).jobs,
                devices=self._user(name).devices,
            )
            for name in names
        }

    def _key(self, name: str, now_s: float) -> float:
        user = self._users.get(name)
        if user is None:
            return 0.0
        usage = user.usage + user.rate * self._scale(now_s + _AHEAD_S) / _RATE if user.rate else user.usage
        return max(0.0, usage) / user.policy.weight

    def _change(self, user: _User, more: float, now_s: float) -> None:
        """Let a user's jobs use this much more of the fleet from now on."""
        if now_s != self._scaled_s:
            self._rebase(now_s)
            self._scaled_s, self._scaled = now_s, self._scale(now_s) / _RATE
        user.usage -= more * self._scaled
        user.rate += more

    def _rebase(self, now_s: float) -> None:
        """Keep the numbers small: count from now, if the time from which is counted is long ago, or a clock jumped.

        A clock that was set back far leaves usage as it is.
        """
        if abs(now_s - self._zero_s) > _REBASE_S:
            factor = max(1.0, self._scale(now_s))
            for user in self._users.values():
                user.usage /= factor
            self._zero_s = now_s
            self._scaled_s = -inf

    def shift(self, back_s: float) -> None:
        """Go on counting after the clock was set back."""
        self._zero_s -= back_s
        self._scaled_s = -inf

    def _scale(self, at_s: float) -> float:
        half_lives = (at_s - self._zero_s) / HALF_LIFE_S
        return float(2.0 ** max(-_MOST_HALF_LIVES, min(half_lives, _MOST_HALF_LIVES)))

    def _user(self, name: str) -> _User:
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = _User(self._policy(name))
        return user

    def _policy(self, name: str) -> UserPolicy:
        return self.policies.get(name) or self.policies.get(ANY_USER) or UserPolicy()


def _has_limits(policies: Mapping[str, UserPolicy]) -> bool:
    return any(one.most_jobs is not None or one.most_devices is not None for one in policies.values())


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
    """What of that is worth starting here, of any user."""
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


_LEAST_PROGRESS = 0.02
"""With less done there is no estimate: start-up time would distort it."""


def progress_end_s(started_s: float, step: int | None, of: int | None, now_s: float) -> float | None:
    """Return when a run ends at its speed until now; None if its progress is unknown.

    The end is not in the past, and not later than 1 / `_LEAST_PROGRESS` times the duration until now.
    """
    if step is None or of is None or step <= 0 or of <= 0:
        return None
    # Workers send integers of any size: a quotient below 1 is always a float.
    part = step / of if step < of else 1.0
    if part < _LEAST_PROGRESS:
        return None
    return now_s + max(0.0, now_s - started_s) * (1 - part) / part
