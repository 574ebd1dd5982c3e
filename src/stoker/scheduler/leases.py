"""What runs: leases, when they are expected to end, and what they cost of the fleet and of their users' shares."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.errors import InternalError
from stoker.scheduler.fit import Placement
from stoker.scheduler.machine import LeaseAllocation, MachineLease
from stoker.scheduler.machine_index import MachineIndex
from stoker.scheduler.outstanding import OutstandingWork
from stoker.scheduler.ready_queue import ReadyQueue
from stoker.scheduler.shares import Shares

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
