"""What an hour of each sort of machine is worth while these jobs wait: shadow prices, and the bound that they prove.

Give every resource of every sort of machine (its devices, slots, cores, memory) a price, all prices together 1 for the
whole fleet's second. A job then costs, on each sort that can take it, its time there × what it takes × the prices. It
costs at least that on its cheapest sort, wherever it runs in the end; the fleet has 1 to spend per second. So **no
schedule ends before the sum of the cheapest costs**, whatever the prices are: that is the lower bound, and it needs no
trust in how the prices were found. The best prices make it as high as it gets (they are the dual of a linear program);
`find_worth` comes close by raising the price of what would be overrun and lowering that of what is left over.

The same prices say where a job had better go: to a sort where it costs about as much as on its cheapest one. A small
job on a large device costs more than on a small one as soon as large devices are what jobs wait for, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from stoker.model.frozen import changed, frozen
from stoker.model.requirements import Wish
from stoker.scheduler.fit import choose, device_block, shares
from stoker.scheduler.offers import DeviceOffer, NodeOffer, Sharing
from stoker.scheduler.score import CPU_SPEED
from stoker.scheduler.shapes import NodeType, Shape

ROUNDS = 300
"""Enough to come within a few thousandths of the best bound."""
_SMOOTH = (0.5, 0.004)
"""How much dearer a sort may be and still get work, at the first round and at the last."""
_SMOOTH_AGAIN = 0.03
"""The same at the first round from prices that are known to be good."""
_STEP = 0.7
"""How far prices follow the load; less than twice that, or they would swing."""
_LEAST_PRICE = 1e-12
_LEAST_WEIGHT = 1e-9


class Way(NamedTuple):
    """One way to run jobs of a shape: on one sort of machine, on devices or on the CPU."""

    sort: int
    on_devices: bool
    speed: float
    """Beside a device of speed 1; a job that wants the CPU runs there at 1."""
    takes: tuple[tuple[int, float], ...]
    """Of which resource which part of all that the fleet has of it, while it runs."""

    def part_of(self, resource: str) -> float | None:
        """Give the part that it takes of one resource of its sort; nothing if it takes none."""
        row = self.sort * len(_RESOURCES) + _RESOURCES.index(resource)
        return next((part for at, part in self.takes if at == row), None)


@frozen
class Worth:
    """Prices for the resources of a fleet, in parts of the whole fleet's second."""

    prices: tuple[float, ...]
    bound_s: float
    """No schedule of the work that was asked about ends before this."""

    def of_sort(self, sort: int) -> float:
        """Give the part of the fleet's worth that is in one sort of machine."""
        return sum(self.prices[sort * len(_RESOURCES) : (sort + 1) * len(_RESOURCES)])

    def cost(self, way: Way) -> float:
        """Give what a second of work costs this way, in seconds of the fleet."""
        return sum(self.prices[row] * part for row, part in way.takes) / way.speed


def ways_of(shape: Shape, sorts: Sequence[NodeType]) -> list[Way]:
    """Give every way to run jobs of a shape on an idle machine.

    Of what a machine with unequal devices could give, the best is taken: the bound must hold for any choice.
    """
    ways: list[Way] = []
    for number, sort in enumerate(sorts):
        offer, count = sort.offer, sort.count
        for wish in (Wish.REQUIRE, Wish.NEVER):
            on_devices = wish is Wish.REQUIRE
            if not (shape.takes_devices if on_devices else shape.takes_cpu):
                continue
            if choose(changed(shape, wish=wish), offer) is None:
                continue
            speed, parts = _on_devices(shape, offer) if on_devices else (_cpu_speed(shape), {})
            parts |= _on_node(shape, offer, on_devices=on_devices)
            takes = tuple(
                (number * len(_RESOURCES) + _RESOURCES.index(name), part / count)
                for name, part in parts.items()
                if part
            )
            ways.append(Way(number, on_devices, speed, takes))
    return ways


def find_worth(
    ways: Sequence[Sequence[Way]],
    work_s: Sequence[float],
    sorts: int,
    *,
    before: Worth | None = None,
    rounds: int = ROUNDS,
) -> Worth:
    """Find prices for the work that waits: `work_s` of each shape, which may be run in these `ways`.

    What can be run nowhere counts for nothing. Prices found `before` for similar work are a good beginning.
    """
    lines = [
        [(way.takes, work / way.speed) for way in those]
        for those, work in zip(ways, work_s, strict=True)
        if those and work > 0
    ]
    used = sorted({row for those in lines for takes, _ in those for row, _ in takes})
    prices = [0.0] * (sorts * len(_RESOURCES))
    for row in used:
        prices[row] = 1.0 if before is None else max(before.prices[row], _LEAST_PRICE)
    _normalise(prices, used)
    best = Worth(prices=tuple(prices), bound_s=0.0)
    first = _SMOOTH[0] if before is None else _SMOOTH_AGAIN
    for number in range(rounds):
        smooth = first * (_SMOOTH[1] / first) ** (number / rounds)
        bound_s, load = _spread(lines, prices, smooth)
        if bound_s > best.bound_s:
            best = Worth(prices=tuple(prices), bound_s=bound_s)
        fair = sum([prices[row] * load[row] for row in used])
        if fair <= 0.0:
            break
        for row in used:
            prices[row] = max(prices[row], _LEAST_PRICE) * max(load[row] / fair, 1e-3) ** (_STEP * smooth)
        _normalise(prices, used)
    return best


_Line = list[tuple[tuple[tuple[int, float], ...], float]]
"""Of each way what it takes, and for how long if all work went there."""


def _spread(lines: Sequence[_Line], prices: Sequence[float], smooth: float) -> tuple[float, list[float]]:
    """Give the bound that these prices prove, and each resource's load if work goes where it is about cheapest."""
    load = [0.0] * len(prices)
    bound_s = 0.0
    for those in lines:
        costs = [seconds * sum([prices[row] * part for row, part in takes]) for takes, seconds in those]
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


def _normalise(prices: list[float], used: Sequence[int]) -> None:
    """Make all prices together 1."""
    whole = sum([prices[row] for row in used])
    for row in used:
        prices[row] /= whole


_RESOURCES = ("devices", "halves", "thirds", "turns", "slots", "cores", "ram")
"""Of each sort. Devices are counted four times: by memory, by how many jobs of more than a half or a third of it are
there, and by how many jobs at all. Whatever fits on a device together is at most 1 of each."""


def _on_devices(shape: Shape, offer: NodeOffer) -> tuple[float, dict[str, float]]:
    count = shape.device_count
    able = [device for device in offer.devices if device_block(shape, device) is None]
    speed = sorted((device.speed for device in able), reverse=True)[count - 1]
    memory = [_memory_part(shape, device) for device in able]
    parts = {"devices": memory}
    if any(shares(shape, device) or device.sharing is not Sharing.NEVER for device in able):
        parts["halves"] = [_rounded(part, 1) for part in memory]
        parts["thirds"] = [_rounded(part, 2) for part in memory]
        parts["turns"] = [_turn_part(shape, device, offer) for device in able]
    whole = len(offer.devices)
    return speed, {name: sum(sorted(part)[:count]) / whole for name, part in parts.items()}


def _memory_part(shape: Shape, device: DeviceOffer) -> float:
    """Give the part of a device that the job takes.

    Jobs on one base take its size once, so each counts what it adds, of what is left beside the base. That is at most 1
    together even where several bases meet on one device.
    """
    if not shares(shape, device):
        return 1.0
    return shape.increment_bytes / (device.shared_bytes - (shape.vram_bytes - shape.increment_bytes))


def _rounded(part: float, k: int) -> float:
    """Round a part of a device so that parts of at most 1 together stay so: more than a half counts 1, less nothing.

    That is k = 1; with 2, more than two thirds count 1, more than a third a half. (A dual feasible function: of parts
    above 1 / (k + 1) at most k go together.)
    """
    steps = part * (k + 1)
    return part if steps == int(steps) else int(steps) / k


def _turn_part(shape: Shape, device: DeviceOffer, offer: NodeOffer) -> float:
    if not shares(shape, device):
        return 1.0
    most = [device.slots] if device.slots is not None else []
    if len(offer.devices) == 1 and not offer.is_slot_per_device:
        most.append(offer.slots)
    return 1.0 / min(most) if most else 0.0


def _on_node(shape: Shape, offer: NodeOffer, *, on_devices: bool) -> dict[str, float]:
    parts = {}
    if not offer.is_slot_per_device or not on_devices:
        parts["slots"] = 1.0 / offer.slots
    if offer.cores:
        parts["cores"] = shape.cores / offer.cores
    if offer.ram_bytes:
        parts["ram"] = shape.ram_bytes / offer.ram_bytes
    return {name: part for name, part in parts.items() if part}


def _cpu_speed(shape: Shape) -> float:
    return 1.0 if shape.wish is Wish.NEVER else CPU_SPEED
