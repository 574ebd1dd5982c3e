"""When is there room for it? Leases end one after the other, as estimated; whoever is before it takes the first rooms.

Pure, and an estimate: jobs ahead are taken to be like the one that is asked about, and nobody new to come. A machine
whose leases end nobody knows when opens nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import heappop, heappush

from stoker.coordinator.matching.cases import Fleet
from stoker.scheduler.fit import DevicePlacement, Placement, choose
from stoker.scheduler.node_state import NodeUsage
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.score import Key, Rank
from stoker.scheduler.shapes import Shape, shape_of

_MOST = 10_000
"""Whoever stands further back is told nothing."""
_UNSCORED = Key(Rank(0, 0, 0, 0), 0.0)


def starts_s(
    shape: Shape, fleet: Fleet, fitting: Collection[str], *, ahead: int, lasts_s: float | None, now_s: float
) -> float | None:
    """Say when a job may start that so many go before; nothing if nobody can know. It fits `fitting` machines now."""
    if ahead >= _MOST:
        return None
    rooms = {offer.node: _Room(offer) for offer in fleet.offers if not offer.closed}
    events = _begin(fleet, fitting, rooms, now_s)
    for at_s, node, given in events:
        room = rooms[node]
        if given is not None:
            room.give_back(given)
        while (taken := room.take(shape)) is not None:
            if not ahead:
                return at_s
            ahead -= 1
            if lasts_s is not None:
                events.add(at_s + lasts_s, node, taken)
    return None


def _begin(fleet: Fleet, fitting: Collection[str], rooms: Iterable[str], now_s: float) -> _Events:
    """Look where there is room now, and what ends later."""
    events = _Events()
    for node in rooms:
        if node in fitting:
            events.add(now_s, node, None)
        for holder in fleet.holders.get(node, ()):
            if holder.ends_s is not None:
                given = _Given(shape_of(holder.wanted), holder.devices, is_shared=holder.is_shared)
                events.add(max(now_s, holder.ends_s), node, given)
    return events


class _Given:
    """What a job has of a machine."""

    __slots__ = ("is_shared", "shape", "uuids")

    def __init__(self, shape: Shape, uuids: tuple[str, ...], *, is_shared: bool) -> None:
        self.shape = shape
        self.uuids = uuids
        self.is_shared = is_shared


class _Events:
    """Times at which something ends, the earliest first; more may be added on the way."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, _Given | None]] = []
        self._count = 0

    def add(self, at_s: float, node: str, given: _Given | None) -> None:
        # Counted, so that of two at one time the first is the first.
        heappush(self._heap, (at_s, self._count, node, given))
        self._count += 1

    def __iter__(self) -> Iterator[tuple[float, str, _Given | None]]:
        while self._heap:
            at_s, _, node, given = heappop(self._heap)
            yield at_s, node, given


class _Room:
    """A machine to try things out on."""

    __slots__ = ("_offer", "_seat")

    def __init__(self, offer: NodeOffer) -> None:
        self._offer = offer
        self._seat: NodeUsage | None = None

    @property
    def seat(self) -> NodeUsage:
        if self._seat is None:
            self._seat = NodeUsage(self._offer, 0)
        return self._seat

    def take(self, shape: Shape) -> _Given | None:
        choice = choose(shape, self.seat)
        if choice is None:
            return None
        self.seat.take(shape, choice)
        uuids = tuple([self.seat.devices[one.at].uuid for one in choice.devices])
        return _Given(shape, uuids, is_shared=bool(choice.devices) and choice.devices[0].is_shared)

    def give_back(self, given: _Given) -> None:
        seat = self.seat
        places = {device.uuid: at for at, device in enumerate(seat.devices)}
        there = tuple([uuid for uuid in given.uuids if uuid in places])
        # What the machine was seen with may be a moment older than who was seen on it.
        if seat.jobs and all(seat.devices[places[uuid]].jobs for uuid in there):
            devices = tuple([DevicePlacement(places[uuid], given.is_shared, False, 0.0) for uuid in there])
            seat.give_back(given.shape, there, Placement(devices, _UNSCORED))
