"""Outstanding work: how long all that is ready and runs would take the whole fleet, kept true with a few additions.

Counted with `prices`: a second of work at what it costs on its cheapest node type. Of a running job the part that is
left by its estimate counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate


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
