"""Node types under the prices of the waiting work: where each job type is cheap, fast and preferred.

What the policy asks of one node type is computed once and kept as masks over job types (`NodeTable`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from operator import or_

from stoker.scheduler.fit import PlacementShape, is_wished, shares
from stoker.scheduler.job_types import LEAST_PROGRESS_S, UNKNOWN_S, JobType, JobTypes
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.prices import RESOURCES, Pricer, Prices, RunOption, run_options
from stoker.scheduler.score import CPU_SPEED

LONG = 0.7
"""A job that would run for this part of what all the rest takes goes first."""
TIERS = (3 / 4, 3 / 8, 3 / 16)
"""Jobs that take this part of a machine or of a shared device at once go before smaller ones."""


class NodeTable:
    """One node type."""

    __slots__ = (
        "arrived_s", "by_length", "cheap", "count", "ever", "fast", "gap_s", "here_s", "leaving", "less_wanted",
        "longest_s", "needs", "number", "offer", "own", "own_cpu", "own_devices", "patience", "saving", "slow", "speed",
        "staying", "tiers", "times", "unknown", "wanted",
    )  # fmt: skip

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
        """Work of unknown duration."""
        self.saving = 0
        """Work that has saved a checkpoint."""
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
        """Return what may start in this time, by `least_time_s`; nothing if no time is left."""
        found = self.times.upto(seconds) | self.unknown if seconds > 0.0 else 0
        return found | self.saving if seconds >= LEAST_PROGRESS_S else found


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


CARE = 0.8
"""Durations are estimates: what is expected to take this part of the time may take all of it."""
SLACK = 1.25
"""A machine that is slower than the fastest one by no more than this is never too slow."""
DEAR = 1.3
"""A node type on which a job costs this many times what it costs on its cheapest one is left to others."""
PATIENCE = 2.0
"""So many times what a faster machine would save, a job waits for it at the most."""
_LEAST_REFRESH_S = 10.0
"""Masks are not made again more often than this because time passes."""
_MOMENT_S = 0.01
"""Longer than the error of any time: what has just the time left has it no more this much later."""
_LEAST_VALUE = 1e-3
_ROUNDS, _ROUNDS_AGAIN = 150, 40
_TERMS_AT_ONCE = 24_000
"""How much of the search for prices is done in one decision; the rest is done in the following ones."""


class NodeTables:
    """All node types, under prices for the work that waits."""

    def __init__(self, types: JobTypes) -> None:
        self._types = types
        self.tables: list[NodeTable] = []
        self.prices: Prices | None = None
        self._values: tuple[Prices | None, list[float]] = None, []
        """The part of the fleet's value that is in each node type, and by which prices."""
        self.cheapest: list[float] = []
        """What a second of each job type's work costs where it costs least, in seconds of the whole fleet."""
        self.fastest_s: list[float] = []
        """How long each job type takes where it takes least."""
        self.next_end_s = inf
        """When the last machines of a node type have no longer the time for some job type: `refresh` then."""
        self._counted: list[list[RunOption]] = []
        """By job type, the ways to run it on machines that can be counted on, and stay for long enough."""
        self.pricer: Pricer | None = None
        self._waiting: Sequence[float] = ()
        self.is_stale = False
        self._noted: list[tuple[int, float]] = []
        """Job types that came while the masks were out of date, and when."""

    def add_node_type(self, offer: NodeOffer) -> NodeTable:
        """Add a node type."""
        table = NodeTable(len(self.tables), offer)
        self.tables.append(table)
        for one in self._types.types:
            one.options += _options_of(one.shape, [table])
        self.is_stale = True
        return table

    def add_job_type(self, one: JobType) -> None:
        """Add a job type."""
        one.options = _options_of(one.shape, self.tables)
        self.is_stale = True

    def set_count(self, table: NodeTable, count: int) -> None:
        """Let so many machines of a node type count."""
        if (table.count == 0) != (count == 0):
            self.is_stale = True
        table.count = count

    def set_ends(self, table: NodeTable) -> None:
        """Take in that machines with a known end came to a node type, or left it."""
        if table.leaving:
            self.is_stale = True

    def note_arrivals(self, arrived: int, now_s: float) -> None:
        """Take in that jobs of some types came; for which node types is known once the masks are up to date."""
        if self.is_stale:
            self._noted.append((arrived, now_s))
            return
        for table in self.tables:
            if table.fast & arrived:
                table.note_arrival(now_s)

    def shift(self, back_s: float) -> None:
        """Move times of the past: the clock was set back."""
        for table in self.tables:
            table.arrived_s -= back_s
        self._noted = [(arrived, at_s - back_s) for arrived, at_s in self._noted]

    def is_counted(self, one: JobType, option: RunOption, now_s: float) -> bool:
        """Return whether a job may wait for a node type: for machines that are there, and stay for long enough."""
        table = self.tables[option.node_type]
        takes_s = one.least_s(option.speed)
        return table.count > 0 and (not table.leaving or takes_s <= table.ends_s - now_s)

    def refresh(self, now_s: float) -> bool:
        """Bring the masks up to date; return whether node types or job types, or what they have time for, changed."""
        if not self.is_stale and now_s < self.next_end_s:
            return False
        self.is_stale = False
        for table in self.tables:
            table.clear()
        self.fastest_s = []
        self._counted = []
        self._set_next_end(now_s)
        for one in self._types.types:
            counted = [option for option in one.options if self.is_counted(one, option, now_s)]
            self._counted.append(counted)
            self.fastest_s.append(one.expected_s / max((option.speed for option in counted), default=1.0))
            # A machine that is not counted on may ask all the same.
            for option in one.options:
                self._add_option(one, option)
            self._prefer(one, counted)
        for table in self.tables:
            table.times = AmountSteps((here_s, number) for number, here_s in table.here_s.items())
            table.patience = AmountSteps((self._patience_s(table, number), number) for number in table.here_s)
            table.by_length.sort(reverse=True)
        self.cheapest += [0.0] * (len(self._types.types) - len(self.cheapest))
        self._apply()
        noted, self._noted = self._noted, []
        for arrived, at_s in noted:
            self.note_arrivals(arrived, at_s)
        return True

    def reprice(self, work_s: Sequence[float]) -> None:
        """Begin to compute prices for the pending work of each job type; `improve` continues."""
        options = self._counted
        counts = [table.count for table in self.tables]
        before = self.prices
        if before is not None and any(
            count and (number >= len(before.counts) or not before.counts[number]) for number, count in enumerate(counts)
        ):
            # A node type came that had no price: the few rounds that correct prices would not find it.
            before = None
        rounds = _ROUNDS if before is None else _ROUNDS_AGAIN
        self.pricer = Pricer(options, work_s, counts, before=before, rounds=rounds)
        self._waiting = work_s
        self.improve()

    def set_prices(self, rows: Mapping[int, Sequence[float]], bound_s: float, work_s: Sequence[float]) -> None:
        """Take over prices by node type (`Prices.rows`) that were found for so much waiting work."""
        none = (0.0,) * len(RESOURCES)
        flat = [price for table in self.tables for price in rows.get(table.number, none)]
        self.prices = Prices(rows=tuple(flat), bound_s=bound_s, counts=tuple([table.count for table in self.tables]))
        self.pricer, self._waiting = None, work_s
        self._apply()

    def improve(self) -> None:
        """Do some more rounds of the search for prices."""
        pricer = self.pricer
        if pricer is None:
            return
        self.prices = pricer.run(max(1, _TERMS_AT_ONCE // max(1, pricer.terms)))
        if pricer.is_done:
            self.pricer = None
        self._apply()

    def faster_value(self, one: JobType, option: RunOption) -> float:
        """Return the part of the fleet's value that is in faster node types which can run a job type, too."""
        if self.prices is None:
            return 1.0
        if self._values[0] is not self.prices:
            self._values = self.prices, [self.prices.of_type(number) for number in range(len(self.prices.counts))]
        least, values = option.speed * SLACK, self._values[1]
        faster = {other.node_type for other in one.options if other.speed > least}
        # A node type that is newer than the prices has none.
        return max(_LEAST_VALUE, sum([values[number] for number in faster if number < len(values)]))

    def _apply(self) -> None:
        """Lay out what is cheap and what is slow under the prices."""
        tables, prices = self.tables, self.prices
        slow: list[list[tuple[float, int]]] = [[] for _ in tables]
        for table in tables:
            table.cheap = table.wanted
        is_scarce = prices is not None and prices.bound_s > self._longest_waiting_s()
        for one in self._types.types:
            counted = self._counted[one.index]
            for option in self._cheap_options(one, counted, is_scarce=is_scarce):
                tables[option.node_type].cheap |= 1 << one.number(option)
            for option in one.options:
                if len(counted) < len(one.options) and option not in counted:
                    tables[option.node_type].cheap |= 1 << one.number(option)
                excess = excess_s(one.expected_s / option.speed, self.fastest_s[one.index])
                slow[option.node_type].append((excess * self.faster_value(one, option), one.number(option)))
        for table, amounts in zip(tables, slow, strict=True):
            table.slow = AmountSteps(amounts)
            table.own = table.ever & table.cheap
            table.own_devices = table.own & self._types.devices
            table.own_cpu = table.own & ~self._types.devices

    def _set_next_end(self, now_s: float) -> None:
        """Find when the next job type takes longer than the last machines of some node type stay."""
        ends = {table.number: table.ends_s for table in self.tables if table.leaving and not table.staying}
        last_starts = [
            ends[option.node_type] - one.least_s(option.speed)
            for one in (self._types.types if ends else ())
            for option in one.options
            if option.node_type in ends
        ]
        next_s = min([at_s for at_s in last_starts if at_s > now_s - _MOMENT_S], default=inf)
        self.next_end_s = max(next_s + _MOMENT_S, now_s + _LEAST_REFRESH_S)

    def _longest_waiting_s(self) -> float:
        """With less work than one job takes nothing is scarce."""
        pairs = zip(self.fastest_s, self._waiting, strict=False)
        return max((fastest_s for fastest_s, work in pairs if work), default=0.0)

    def _cheap_options(self, one: JobType, options: Sequence[RunOption], *, is_scarce: bool) -> Sequence[RunOption]:
        """Return the options in which a job type costs about the least; all of them, if nothing is scarce."""
        prices = self.prices
        if prices is None:
            self.cheapest[one.index] = 0.0
            return options
        # What takes longer than all the rest is no way to save.
        limit_s = max(self.fastest_s[one.index], prices.bound_s)
        known = len(prices.counts)
        in_time = [
            (prices.cost(option), option)
            for option in options
            if option.node_type < known and one.expected_s / option.speed <= limit_s
        ]
        self.cheapest[one.index] = least = min((cost for cost, _ in in_time), default=0.0)
        if not is_scarce or not in_time:
            return options
        return [option for cost, option in in_time if cost <= least * DEAR]

    def _patience_s(self, table: NodeTable, number: int) -> float:
        """Return how long a job waits at the most before it starts here.

        For a faster machine `PATIENCE` times what it would save there; where this is no reason to wait, the time that
        it takes here.
        """
        here_s = table.here_s[number]
        if (table.less_wanted | table.fast) >> number & 1:
            return here_s
        return max(0.0, here_s - self.fastest_s[self._types.type_of[number].index]) * PATIENCE

    def _add_option(self, one: JobType, option: RunOption) -> None:
        table = self.tables[option.node_type]
        number = one.number(option)
        bit = 1 << number
        table.ever |= bit
        here_s = one.expected_s / option.speed
        if one.is_known:
            table.here_s[number] = here_s
        else:
            table.unknown |= bit
        if one.has_checkpoint:
            table.saving |= bit
        if not one.is_known:
            table.fast |= bit
        elif is_fast(here_s, self.fastest_s[one.index]):
            table.fast |= bit
            table.longest_s = max(table.longest_s, here_s)
            table.by_length.append((here_s, bit, one.index, number))
        table.needs[number] = min(1.0, option.part_of("devices" if option.on_devices else "cores") or 0.0)
        width = _width(one.shape, option, table.offer)
        for tier, least in enumerate(TIERS):
            if width >= least:
                table.tiers[tier] |= bit

    def _prefer(self, one: JobType, counted: Sequence[RunOption]) -> None:
        """Note which node types a job type prefers, by its own list and by their priority."""
        # A device or the CPU, as the job wishes, comes before hosts.
        wished = [option for option in one.options if is_wished(one.shape, on_devices=option.on_devices)]
        ranks = {option.node_type: preference(one.shape, self.tables[option.node_type].offer) for option in wished}
        best = max((ranks[option.node_type] for option in counted if option in wished), default=(False, 0))
        if all(rank >= best for rank in ranks.values()):
            return
        for option in wished:
            table = self.tables[option.node_type]
            bit = 1 << one.number(option)
            if ranks[option.node_type] >= best:
                table.wanted |= bit
                table.fast |= bit
            else:
                table.less_wanted |= bit


def preference(shape: PlacementShape, offer: NodeOffer) -> tuple[bool, int]:
    """Return how much a job would rather be on a node: its own list decides before the node's priority."""
    return offer.node in shape.preferred_hosts, offer.priority


def is_fast(here_s: float, fastest_s: float) -> bool:
    """Return whether here is about as fast as it gets."""
    return here_s <= fastest_s * SLACK


def excess_s(here_s: float, fastest_s: float) -> float:
    """Return the longest wait for the fastest machine for which waiting is still worth it."""
    return here_s / CARE - fastest_s


def _options_of(shape: PlacementShape, tables: Iterable[NodeTable]) -> list[RunOption]:
    options = run_options(shape, [(table.number, table.offer) for table in tables])
    if not shape.is_advised_against:
        return options
    # A device brings nothing to a job that the cost rule advises to keep from it.
    return [option._replace(speed=CPU_SPEED) if option.on_devices else option for option in options]


def _width(shape: PlacementShape, option: RunOption, offer: NodeOffer) -> float:
    """Return the part of a machine that has to be free at once: of its devices, of a shared one, of its cores."""
    if not option.on_devices:
        return option.part_of("cores") or 0.0
    shared = [device.shared_bytes for device in offer.devices if shares(shape, device)]
    if shared:
        return shape.increment_bytes / max(shared)
    return shape.device_count / len(offer.devices)
