"""What the rules of `turns` ask of each sort of machine, worked out once and laid out as masks over shapes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import or_

from stoker.scheduler.fit import shares
from stoker.scheduler.lineup import Line
from stoker.scheduler.patience import SLACK, excess_s, is_fast
from stoker.scheduler.shapes import NodeType, Shape
from stoker.scheduler.worth import Way, Worth, find_worth

DEAR = 1.3
"""A sort of machine on which a job costs this many times what it costs on its cheapest one is left to others."""
TIERS = (3 / 4, 3 / 8, 3 / 16)
"""Jobs that take this part of a machine or of a shared device at once go before smaller ones."""
_LEAST_WORTH = 1e-3
_ROUNDS, _ROUNDS_AGAIN = 150, 40


class SortTable:
    """One sort of machine."""

    __slots__ = (
        "by_length",
        "cheap",
        "ever",
        "fast",
        "here_s",
        "longest_s",
        "needs",
        "own",
        "own_cpu",
        "own_devices",
        "slow",
        "speed",
        "tiers",
        "times",
    )

    def __init__(self, sort: NodeType) -> None:
        self.ever = 0
        """What fits an idle one."""
        self.cheap = 0
        """What costs about the least here."""
        self.fast = 0
        """What runs about as fast here as anywhere."""
        self.here_s: dict[int, float] = {}
        """How long each takes here, by its number."""
        self.longest_s = 0.0
        """How long the longest of what is fast here takes."""
        self.by_length: list[tuple[float, int, int, int]] = []
        """What is fast here, the longest first: its time, its bit, its line, its number."""
        self.needs: dict[int, float] = {}
        """Which part of an idle one each takes: of its devices, or of its cores."""
        self.tiers = [0] * len(TIERS)
        """What takes at least so large a part of a machine, or of a device that it shares."""
        self.times = Steps()
        """By how long each takes here."""
        self.slow = Steps()
        """By how much must wait for the whole fleet so that each is worth starting here."""
        self.own = self.own_devices = self.own_cpu = 0
        """What fits an idle one and is cheap here: all, on devices, on the CPU."""
        self.speed = max((device.speed for device in sort.offer.devices), default=0.0)

    def longer_than(self, seconds: float) -> int:
        """Give what takes longer than that here, and would nowhere take much less."""
        return self.fast & ~self.times.upto(seconds)

    def worth_starting(self, ahead_s: float) -> int:
        """Give what is worth starting here, if what waits takes the whole fleet so long: `patience` for all at once."""
        return self.fast | self.slow.upto(ahead_s)


class Steps:
    """Shapes in the order of some amount."""

    __slots__ = ("_amounts", "_masks")

    def __init__(self, amounts: Iterable[tuple[float, int]] = ()) -> None:
        """Take each one's amount and number."""
        ordered = sorted(amounts)
        self._amounts = [amount for amount, _ in ordered]
        self._masks = list(accumulate((1 << number for _, number in ordered), or_, initial=0))

    def upto(self, amount: float) -> int:
        """Give those with no more than that."""
        return self._masks[bisect_right(self._amounts, amount)]


class Tables:
    """All sorts of machines, under prices that fit the work that waits."""

    def __init__(self, lines: Sequence[Line], sorts: Sequence[NodeType]) -> None:
        self._lines = lines
        self.sorts = [SortTable(sort) for sort in sorts]
        self.cheapest = [0.0] * len(lines)
        """What a second of each line's work costs where it costs least, in seconds of the whole fleet."""
        self.fastest_s = [line.expected_s / line.top_speed for line in lines]
        """How long each takes where it takes least."""
        self.devices = 0
        """What takes devices at all."""
        self.worth: Worth | None = None
        for place, line in enumerate(lines):
            if line.on_devices is not None:
                self.devices |= 1 << line.on_devices
            for way in line.ways:
                self._add_way(sorts[way.sort], place, way)
        for table in self.sorts:
            table.times = Steps((here_s, number) for number, here_s in table.here_s.items())
            table.by_length.sort(reverse=True)

    def price(self, work_s: Sequence[float]) -> Worth:
        """Find prices for so much waiting work of each line, what is dear under them, and what is slow."""
        rounds = _ROUNDS if self.worth is None else _ROUNDS_AGAIN
        ways = [line.ways for line in self._lines]
        self.worth = worth = find_worth(ways, work_s, len(self.sorts), before=self.worth, rounds=rounds)
        waiting = [line for line, work in zip(self._lines, work_s, strict=True) if work]
        longest_s = max((line.expected_s / line.top_speed for line in waiting), default=0.0)
        # With less work than one job takes nothing is scarce.
        is_scarce = worth.bound_s > longest_s
        slow: list[list[tuple[float, int]]] = [[] for _ in self.sorts]
        for table in self.sorts:
            table.cheap = 0
        for place, line in enumerate(self._lines):
            for way in self._cheap_ways(place, worth, is_scarce=is_scarce):
                self.sorts[way.sort].cheap |= 1 << line.number(way)
            for way in line.ways:
                excess = excess_s(line.takes_s(way), self.fastest_s[place])
                slow[way.sort].append((excess * self.faster_worth(place, way), line.number(way)))
        for table, amounts in zip(self.sorts, slow, strict=True):
            table.slow = Steps(amounts)
            table.own = table.ever & table.cheap
            table.own_devices = table.own & self.devices
            table.own_cpu = table.own & ~self.devices
        return worth

    def faster_worth(self, place: int, way: Way) -> float:
        """Give the part of the fleet's worth that is in faster machines which take a line's jobs, too."""
        if self.worth is None:
            return 1.0
        faster = {other.sort for other in self._lines[place].ways if other.speed > way.speed * SLACK}
        return max(_LEAST_WORTH, sum(self.worth.of_sort(sort) for sort in faster))

    def _cheap_ways(self, place: int, worth: Worth, *, is_scarce: bool) -> list[Way]:
        """Give the ways in which a line's jobs cost about the least; all, if nothing is scarce."""
        line = self._lines[place]
        # What takes longer than all the rest is no way to save.
        limit_s = max(self.fastest_s[place], worth.bound_s)
        in_time = [(worth.cost(way), way) for way in line.ways if line.takes_s(way) <= limit_s]
        self.cheapest[place] = least = min((cost for cost, _ in in_time), default=0.0)
        if not is_scarce:
            return list(line.ways)
        return [way for cost, way in in_time if cost <= least * DEAR]

    def _add_way(self, sort: NodeType, place: int, way: Way) -> None:
        line, table = self._lines[place], self.sorts[way.sort]
        number = line.number(way)
        bit = 1 << number
        table.ever |= bit
        here_s = table.here_s[number] = line.takes_s(way)
        if is_fast(here_s, self.fastest_s[place]):
            table.fast |= bit
            table.longest_s = max(table.longest_s, here_s)
            table.by_length.append((here_s, bit, place, number))
        table.needs[number] = min(1.0, (way.part_of("devices" if way.on_devices else "cores") or 0.0) * sort.count)
        for tier, least in enumerate(TIERS):
            if _width(line.shape, way, sort) >= least:
                table.tiers[tier] |= bit


def _width(shape: Shape, way: Way, sort: NodeType) -> float:
    """Give the part of a machine that has to be free at once: of its devices, of one that is shared, of its cores."""
    if not way.on_devices:
        return (way.part_of("cores") or 0.0) * sort.count
    shared = [device.shared_bytes for device in sort.offer.devices if shares(shape, device)]
    if shared:
        return shape.increment_bytes / max(shared)
    return shape.device_count / len(sort.offer.devices)
