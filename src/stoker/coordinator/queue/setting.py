"""What the queue is given: time, limits, the scheduler, and where bytes lie."""

from __future__ import annotations

from collections.abc import Callable

from stoker.coordinator.authority.revocations import Revocations
from stoker.model.clock import Clock
from stoker.model.frozen import fresh, frozen
from stoker.model.leases import Budgets, FleetTimes
from stoker.scheduler.scheduler import Scheduler


@frozen
class Setting:
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
        """Give the time by which leases are judged."""
        return self._clock.monotonic_s()
