"""Shadow prices of machines while jobs wait, and the lower bound on the makespan that the prices prove.

Every resource of every node type (devices, slots, cores, memory) has a price; all prices together are 1 for a second
of the whole fleet. A job costs, on each node type that can run it, its time there × what it takes × the prices. It
costs at least that on its cheapest node type, wherever it runs, and the fleet has 1 to spend per second. So **no
schedule ends before the sum of the cheapest costs**, whatever the prices are. The best prices are the dual solution of
a linear program; `Pricer` approaches them by raising the price of resources that would be overloaded and lowering the
others.

The same prices say where a job should run: on a node type where it costs about as much as on its cheapest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from typing import NamedTuple

from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference
from stoker.scheduler.fit import PlacementShape, choose, device_block, shares
from stoker.scheduler.offers import DeviceOffer, NodeOffer, Sharing
from stoker.scheduler.score import CPU_SPEED

ROUNDS = 300
"""Enough to come within a few thousandths of the best bound."""
_SMOOTH = (0.5, 0.004)
"""How much more a node type may cost and still get work, in the first round and in the last."""
_SMOOTH_AGAIN = 0.03
"""The same in the first round, starting from earlier prices."""
_STEP = 0.7
"""How far prices follow the load; with twice as much they would oscillate."""
_LEAST_PRICE = 1e-12
_LEAST_WEIGHT = 1e-9

RESOURCES = ("devices", "halves", "thirds", "jobs", "slots", "cores", "ram")
"""Of each node type. Devices are counted four times: by memory, by jobs of more than a half or a third of it, and by
jobs. Jobs that fit on one device together take at most 1 of each."""

Takes = tuple[tuple[int, float], ...]


class RunOption(NamedTuple):
    """One way to run jobs of a shape: on one node type, on devices or on the CPU."""

    node_type: int
    on_devices: bool
    speed: float
    """Relative to a device of speed 1; a job that asks for the CPU runs there at 1."""
    takes: Takes
    """(index in `RESOURCES`, part of one machine) while it runs."""

    def part_of(self, resource: str) -> float | None:
        """Return the part of one machine's resource that it takes; None if it takes none."""
        row = RESOURCES.index(resource)
        return next((part for at, part in self.takes if at == row), None)


@frozen
class Prices:
    """Prices of all resources, in parts of a second of the whole fleet."""

    rows: tuple[float, ...]
    """By node type, in the order of `RESOURCES`; for one machine of that type."""
    bound_s: float
    """No schedule of the work ends before this."""
    counts: tuple[int, ...]

    def of_type(self, node_type: int) -> float:
        """Return the part of the fleet's value that is in one node type."""
        first = node_type * len(RESOURCES)
        return sum(self.rows[first : first + len(RESOURCES)]) * self.counts[node_type]

    def cost(self, option: RunOption) -> float:
        """Return what a second of work costs this way, in seconds of the fleet."""
        first, rows = option.node_type * len(RESOURCES), self.rows
        return sum([rows[first + row] * part for row, part in option.takes]) / option.speed


def run_options(shape: PlacementShape, node_types: Iterable[tuple[int, NodeOffer]]) -> list[RunOption]:
    """Return every way to run jobs of a shape on an idle machine.

    On a machine with unequal devices the best ones count: the bound must hold for any choice.
    """
    options: list[RunOption] = []
    for number, offer in node_types:
        for wish in (DevicePreference.REQUIRE, DevicePreference.NEVER):
            on_devices = wish is DevicePreference.REQUIRE
            if not (shape.takes_devices if on_devices else shape.takes_cpu):
                continue
            if choose(changed(shape, wish=wish), offer) is None:
                continue
            speed, parts = _on_devices(shape, offer) if on_devices else (_cpu_speed(shape), {})
            parts |= _on_node(shape, offer, on_devices=on_devices)
            takes = tuple((RESOURCES.index(name), part) for name, part in parts.items() if part)
            options.append(RunOption(number, on_devices, speed, takes))
    return options


class Pricer:
    """Finds prices for one amount of waiting work, a few rounds at a time."""

    def __init__(
        self,
        options: Sequence[Sequence[RunOption]],
        work_s: Sequence[float],
        counts: Sequence[int],
        *,
        before: Prices | None = None,
        rounds: int = ROUNDS,
    ) -> None:
        """Take `work_s` of each kind of job, which may be run in these ways; `before` are prices of similar work."""
        width = len(RESOURCES)
        self._counts = tuple(counts)
        self._jobs: list[_Job] = [
            [
                (
                    tuple([(one.node_type * width + row, part / counts[one.node_type]) for row, part in one.takes]),
                    work / one.speed,
                )
                for one in those
                if counts[one.node_type]
            ]
            for those, work in zip(options, work_s, strict=True)
            if work > 0
        ]
        self._jobs = [those for those in self._jobs if those]
        self._used = sorted({row for those in self._jobs for takes, _ in those for row, _ in takes})
        self._prices = [0.0] * (len(counts) * width)
        for row in self._used:
            known = 0.0
            if before is not None and row < len(before.rows):
                known = before.rows[row] * before.counts[row // width]
            self._prices[row] = 1.0 if before is None else max(known, _LEAST_PRICE)
        self._normalise()
        self._first = _SMOOTH[0] if before is None else _SMOOTH_AGAIN
        self._rounds, self._round = rounds, 0
        self._best, self._bound_s = list(self._prices), 0.0

    @property
    def terms(self) -> int:
        """How much one round computes."""
        return sum(map(len, self._jobs))

    @property
    def is_done(self) -> bool:
        return self._round >= self._rounds

    def run(self, rounds: int) -> Prices:
        """Do so many rounds more, and return the best prices so far."""
        for _ in range(min(rounds, self._rounds - self._round)):
            smooth = self._first * (_SMOOTH[1] / self._first) ** (self._round / self._rounds)
            self._round += 1
            prices = self._prices
            bound_s, load = _spread(self._jobs, prices, smooth)
            if bound_s > self._bound_s:
                self._best, self._bound_s = list(prices), bound_s
            fair = sum([prices[row] * load[row] for row in self._used])
            if fair <= 0.0:
                self._round = self._rounds
                break
            for row in self._used:
                prices[row] = max(prices[row], _LEAST_PRICE) * max(load[row] / fair, 1e-3) ** (_STEP * smooth)
            self._normalise()
        return self._found()

    def _found(self) -> Prices:
        width, counts = len(RESOURCES), self._counts
        rows = tuple([price / (counts[row // width] or 1) for row, price in enumerate(self._best)])
        return Prices(rows=rows, bound_s=self._bound_s, counts=counts)

    def _normalise(self) -> None:
        """Make all prices together 1."""
        whole = sum([self._prices[row] for row in self._used])
        for row in self._used:
            self._prices[row] /= whole


def find_prices(
    options: Sequence[Sequence[RunOption]],
    work_s: Sequence[float],
    counts: Sequence[int],
    *,
    before: Prices | None = None,
    rounds: int = ROUNDS,
) -> Prices:
    """Return prices for the work that waits: `work_s` of each kind of job, which may be run in these ways.

    What can be run nowhere counts for nothing.
    """
    return Pricer(options, work_s, counts, before=before, rounds=rounds).run(rounds)


_Job = list[tuple[Takes, float]]
"""Of each way what it takes of the fleet, and for how long if all work went there."""


def _spread(jobs: Sequence[_Job], prices: Sequence[float], smooth: float) -> tuple[float, list[float]]:
    """Return the bound that these prices prove, and the load of each resource if work goes where it is cheap."""
    load = [0.0] * len(prices)
    bound_s = 0.0
    for those in jobs:
        costs = []
        for takes, seconds in those:
            price = 0.0
            for row, part in takes:
                price += prices[row] * part
            costs.append(seconds * price)
        least = min(costs)
        bound_s += least
        if least <= 0.0:
            weights = [1.0 if cost <= 0.0 else 0.0 for cost in costs]
        else:
            weights = [exp((1.0 - cost / least) / smooth) for cost in costs]
        whole = sum(weights)
        for (takes, seconds), weight in zip(those, weights, strict=True):
            if weight > _LEAST_WEIGHT:
                scaled = seconds * weight / whole
                for row, part in takes:
                    load[row] += scaled * part
    return bound_s, load


def _on_devices(shape: PlacementShape, offer: NodeOffer) -> tuple[float, dict[str, float]]:
    count = shape.device_count
    able = [device for device in offer.devices if device_block(shape, device) is None]
    speed = sorted((device.speed for device in able), reverse=True)[count - 1]
    memory = [_memory_part(shape, device) for device in able]
    parts = {"devices": memory}
    if any(shares(shape, device) or device.sharing is not Sharing.NEVER for device in able):
        parts["halves"] = [_rounded(part, 1) for part in memory]
        parts["thirds"] = [_rounded(part, 2) for part in memory]
        parts["jobs"] = [_job_part(shape, device, offer) for device in able]
    whole = len(offer.devices)
    return speed, {name: sum(sorted(part)[:count]) / whole for name, part in parts.items()}


def _memory_part(shape: PlacementShape, device: DeviceOffer) -> float:
    """Return the part of a device that the job takes.

    Jobs on one base model share its memory, so each counts what it adds, of what is left beside the base. That is at
    most 1 together, also where several bases meet on one device.
    """
    if not shares(shape, device):
        return 1.0
    return shape.increment_bytes / (device.shared_bytes - (shape.vram_bytes - shape.increment_bytes))


def _rounded(part: float, k: int) -> float:
    """Round a part of a device so that parts of at most 1 together stay so: with k = 1, more than a half counts 1.

    With 2, more than two thirds count 1, more than a third a half. (A dual feasible function: of parts above
    1 / (k + 1) at most k go together.)
    """
    steps = part * (k + 1)
    return part if steps == int(steps) else int(steps) / k


def _job_part(shape: PlacementShape, device: DeviceOffer, offer: NodeOffer) -> float:
    if not shares(shape, device):
        return 1.0
    most = [device.slots] if device.slots is not None else []
    if len(offer.devices) == 1 and not offer.is_slot_per_device:
        most.append(offer.slots)
    return 1.0 / min(most) if most else 0.0


def _on_node(shape: PlacementShape, offer: NodeOffer, *, on_devices: bool) -> dict[str, float]:
    parts = {}
    if not offer.is_slot_per_device or not on_devices:
        parts["slots"] = 1.0 / offer.slots
    if offer.cores:
        parts["cores"] = shape.cores / offer.cores
    if offer.ram_bytes:
        parts["ram"] = shape.ram_bytes / offer.ram_bytes
    return {name: part for name, part in parts.items() if part}


def _cpu_speed(shape: PlacementShape) -> float:
    return 1.0 if shape.wish is DevicePreference.NEVER else CPU_SPEED
