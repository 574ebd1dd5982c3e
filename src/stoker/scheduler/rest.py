"""The rest: how long all that waits and runs would take the whole fleet, kept true with a few additions per job.

Counted as `worth` counts: a second of work at what it costs where it costs least. Of a job that runs, what is left by
what its like took before.
"""

from __future__ import annotations

from collections.abc import Mapping

Share = tuple[float, float]
"""What one running job adds: so much per second, until then."""


class Rest:
    """Sums over all jobs."""

    def __init__(self) -> None:
        self.running = 0
        self._waiting: dict[int, float] = {}
        self._all_waiting = 0.0
        self._rates = 0.0
        self._ends = 0.0

    def comes(self, cost_s: float, priority: int) -> None:
        """Count a job that waits from now on."""
        self._waiting[priority] = self._waiting.get(priority, 0.0) + cost_s
        self._all_waiting += cost_s

    def starts(self, cost_s: float, priority: int, now_s: float, takes_s: float) -> Share:
        """Count a job that waited and runs now; give the share back when it ends."""
        self._waiting[priority] -= cost_s
        self._all_waiting -= cost_s
        rate, until_s = cost_s / takes_s, now_s + takes_s
        self.running += 1
        self._rates += rate
        self._ends += rate * until_s
        return rate, until_s

    def ends(self, share: Share) -> None:
        """Count a job no more."""
        rate, until_s = share
        self.running -= 1
        self._rates -= rate
        self._ends -= rate * until_s

    def recount(self, waiting: Mapping[int, float]) -> None:
        """Count anew what waits, by priority: prices have changed. What runs is counted as before."""
        self._waiting = dict(waiting)
        self._all_waiting = sum(waiting.values())

    def both_s(self, now_s: float, priority: int | None = None) -> tuple[float, float]:
        """Say how long the whole fleet would take until a job of this priority is begun, and until all is done.

        Begun: the waiting jobs of its priority and above, and the first of those that run to end. Done: these, and all
        that runs. Without a priority: the lowest.
        """
        if priority is None:
            waiting_s = self._all_waiting
        else:
            waiting_s = sum([cost_s for at, cost_s in self._waiting.items() if at >= priority])
        running_s = self._ends - self._rates * now_s
        waiting_s, running_s = max(waiting_s, 0.0), max(running_s, 0.0)
        return waiting_s + running_s / (self.running or 1), waiting_s + running_s
