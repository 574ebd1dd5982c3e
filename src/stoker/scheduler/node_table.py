"""What the policy asks of one node type, computed once and kept as masks over job types."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import inf
from operator import or_

from stoker.scheduler.job_types import UNKNOWN_S
from stoker.scheduler.offers import NodeOffer

LONG = 0.7
"""A job that would run for this part of what all the rest takes goes first."""
TIERS = (3 / 4, 3 / 8, 3 / 16)
"""Jobs that take this part of a machine or of a shared device at once go before smaller ones."""


class NodeTable:
    """One node type."""

    __slots__ = (
        "arrived_s",
        "by_length",
        "cheap",
        "count",
        "ever",
        "fast",
        "gap_s",
        "here_s",
        "leaving",
        "less_wanted",
        "longest_s",
        "needs",
        "number",
        "offer",
        "own",
        "own_cpu",
        "own_devices",
        "patience",
        "slow",
        "speed",
        "staying",
        "tiers",
        "times",
        "unknown",
        "wanted",
    )

    def __init__(self, number: int, offer: NodeOffer) -> None:
        self.number = number
        self.offer = offer
        """One of them, idle."""
        self.count = 0
        """How many there are that can be counted on."""
        self.staying = 0
        """How many there are that have no known end."""
        self.leaving: dict[str, float] = {}
        """The others, by name, with their ends."""
        self.speed = max((device.speed for device in offer.devices), default=0.0)
        self.arrived_s, self.gap_s = -inf, inf
        """When jobs for which it is fast came last, and how far apart such arrivals are of late."""
        self.clear()

    def clear(self) -> None:
        """Forget all job types."""
        self.ever = 0
        """What fits an idle one."""
        self.cheap = 0
        """What costs about the least here."""
        self.fast = 0
        """What runs about as fast here as anywhere."""
        self.unknown = 0
        """What takes nobody knows how long."""
        self.wanted = 0
        """What prefers this node type to others that could run it."""
        self.less_wanted = 0
        """What prefers another node type."""
        self.here_s: dict[int, float] = {}
        """How long each takes here, by its bit number."""
        self.longest_s = 0.0
        """How long the longest of what is fast here takes."""
        self.by_length: list[tuple[float, int, int, int]] = []
        """What is fast here, the longest first: its time, its bit, its type, its bit number."""
        self.needs: dict[int, float] = {}
        """Which part of an idle one each takes: of its devices, or of its cores."""
        self.tiers = [0] * len(TIERS)
        """What takes at least so large a part of a machine, or of a device that it shares."""
        self.times = AmountSteps()
        """By how long each takes here, as far as that is known."""
        self.patience = AmountSteps()
        """By how long each waits for another machine, at the most, before it starts here."""
        self.slow = AmountSteps()
        """By how much work must wait, in seconds of the fleet, so that each is worth starting here."""
        self.own = self.own_devices = self.own_cpu = 0
        """What fits an idle one and is cheap here: all, on devices, on the CPU."""

    def note_arrival(self, now_s: float) -> None:
        """Take in that jobs came for which it is fast."""
        if now_s > self.arrived_s > -inf:
            gap_s = now_s - self.arrived_s
            self.gap_s = gap_s if self.gap_s == inf else (self.gap_s + gap_s) / 2
        self.arrived_s = now_s

    def gets_more_within(self, seconds: float, now_s: float) -> bool:
        """Return whether jobs keep coming for which it is fast, so that it is not idle without those that wait."""
        return max(self.gap_s, now_s - self.arrived_s) < seconds

    def is_near_end(self, rest_s: float, now_s: float) -> bool:
        """Return whether its longest jobs take a good part of the time that all the rest takes, and no more come."""
        return self.longest_s > rest_s * LONG and not self.gets_more_within(self.longest_s, now_s)

    @property
    def ends_s(self) -> float:
        """When the last of them goes away; infinite: no end is known."""
        return max(self.leaving.values()) if self.leaving and not self.staying else inf

    def longer_than(self, seconds: float) -> int:
        """Return what takes longer than that here, and nowhere much less."""
        return self.fast & ~self.times.upto(seconds) & ~self.unknown

    def worth_starting(self, ahead_s: float) -> int:
        """Return what is worth starting here, if the fleet needs so long for what waits."""
        slow = self.slow
        return self.fast | slow.masks[bisect_right(slow.amounts, ahead_s)]

    def over_after(self, seconds: float) -> int:
        """Return what has waited long enough if it has waited so long: then waiting has cost more than it may bring."""
        found = self.patience.upto(seconds)
        return found | self.unknown if seconds >= UNKNOWN_S else found

    def shortest_s(self, mask: int) -> float | None:
        """Return after which time the first of those in a mask has waited long enough."""
        shortest_s = self.patience.shortest(mask)
        if mask & self.unknown and (shortest_s is None or shortest_s > UNKNOWN_S):
            return UNKNOWN_S
        return shortest_s

    def within(self, seconds: float) -> int:
        """Return what is over after this time, or has no estimate; nothing if no time is left."""
        return self.times.upto(seconds) | self.unknown if seconds > 0.0 else 0


class AmountSteps:
    """Job types in the order of some amount."""

    __slots__ = ("amounts", "masks")

    def __init__(self, amounts: Iterable[tuple[float, int]] = ()) -> None:
        """Take each one's amount and bit number."""
        ordered = sorted(amounts)
        self.amounts = [amount for amount, _ in ordered]
        self.masks = list(accumulate((1 << number for _, number in ordered), or_, initial=0))
        """Those with no more than the first amounts: none of them, one, two."""

    def upto(self, amount: float) -> int:
        """Return those with no more than that."""
        return self.masks[bisect_right(self.amounts, amount)]

    def shortest(self, mask: int) -> float | None:
        """Return the smallest amount of those in a mask."""
        if not self.masks[-1] & mask:
            return None
        low, high = 0, len(self.amounts) - 1
        while low < high:
            middle = (low + high) // 2
            if self.masks[middle + 1] & mask:
                high = middle
            else:
                low = middle + 1
        return self.amounts[low]
