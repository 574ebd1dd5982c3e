"""The board: all nodes and what is left of them; jobs are put on it and taken off in microseconds.

    board = Board(offers)
    shape = board.shape_of(wanted)            # once for each kind of job, not for each job
    placed = board.place(shape)               # decides and takes; None: there is no room now
    board.release(placed)
    bits = board.fitting(placed.node)         # which shapes could start there now: bit n is the shape with number n
    board.place_on(placed.node, shape)

What it decides is what asking `fit.choose` about every node and taking the best would decide, the first node winning
among equals; what it costs depends neither on how many nodes there are nor on how many jobs wait. It has no lock and no
clock: whoever owns it calls it from one thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from stoker.model.errors import Bug
from stoker.model.requirements import WantedJob
from stoker.scheduler.fit import DevicePlacement, Placement, choose
from stoker.scheduler.layout import Home, Layout
from stoker.scheduler.node_state import NodeUsage
from stoker.scheduler.offers import MeasuredNode, NodeOffer
from stoker.scheduler.routes import ShapeRoutes
from stoker.scheduler.score import CostRule, Key, Rank
from stoker.scheduler.search import best_node, choose_on
from stoker.scheduler.shapes import Shape, idle, shape_of


class PlacedJob(NamedTuple):
    """A job's place, as it was taken. Give it back with `NodeIndex.release`."""

    node: str
    devices: tuple[str, ...]
    """UUIDs; none: it runs on the CPU."""
    is_shared: bool
    """Others may be on its devices too."""
    score: float
    shape: Shape
    choice: Placement
    serial: int


class NodeIndex:
    """Nodes in a fixed order, and the jobs that hold parts of them."""

    def __init__(self, offers: Iterable[NodeOffer] = (), *, cost: CostRule | None = None) -> None:
        """Lay out nodes; without a cost rule nobody is advised against devices."""
        self._cost = cost
        self._layout = Layout()
        self._seats: dict[str, NodeUsage] = {}
        self._by_order: dict[int, NodeUsage] = {}
        self._asks: dict[int, ShapeRoutes] = {}
        self._shapes: dict[Shape, ShapeRoutes] = {}
        self._listed: set[str] = set()
        self._live: dict[int, NodeUsage] = {}
        self._next_order = 0
        self._next_serial = 0
        for offer in offers:
            self.put(offer)

    def put(self, offer: NodeOffer) -> bool:
        """Add a node, or let it stand as this offer says; it keeps its place in the order.

        An offer for a known node counts the jobs that were placed there, as `offer` gives them; those it does not count
        are off the board, and must not be released.

        True if its lists name a word that no list named before: shapes that were asked for earlier don't know whether
        it is one of their jobs' names, so ask for them again.
        """
        seat = self._seats.get(offer.node)
        if seat is None:
            seat = self._seats[offer.node] = self._by_order[self._next_order] = NodeUsage(offer, self._next_order)
            self._next_order += 1
        else:
            self._layout.leave(seat)
            seat.stand_as(offer)
        self._layout.enter(seat)
        words = set(offer.allow_jobs) | set(offer.deny_jobs)
        is_new = not words <= self._listed
        self._listed |= words
        return is_new

    def remove(self, node: str) -> None:
        """Forget a node; what was placed there needs no release."""
        seat = self._seats.pop(node)
        del self._by_order[seat.order]
        self._layout.leave(seat)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in their order."""
        return tuple(self._by_order[order].node for order in sorted(self._by_order))

    def offer(self, node: str) -> NodeOffer:
        """Give a node as it stands now."""
        return self._seats[node].offer()

    def shape_of(self, wanted: WantedJob) -> Shape:
        """Give a job's shape: the same object for all jobs that are placed alike."""
        return self._ask_of(shape_of(wanted, listed=self._listed, cost=self._cost)).shape

    def number_of(self, shape: Shape) -> int:
        """Give a shape's bit in `fitting`, counted from 0 in the order in which shapes were first asked for."""
        return self._ask(shape).number

    def place(self, shape: Shape) -> PlacedJob | None:
        """Take the best place there is for a job of this shape; nothing if none fits now."""
        ask = self._ask(shape)
        layout = self._layout
        layout.settle()
        order = best_node(ask, layout)
        if order is None:
            return None
        home = layout.homes[order]
        choice = choose_on(ask, home, layout)
        if choice is None:
            message = f"the search points at {home.seat.node}, the rule says no"
            raise Bug(message)
        return self._take(home, ask.shape, choice)

    def place_on(self, node: str, shape: Shape) -> PlacedJob | None:
        """Take the best place on this node; nothing if the job does not fit there now."""
        ask = self._ask(shape)
        home = self._layout.current(self._layout.homes[self._seats[node].order])
        choice = choose_on(ask, home, self._layout)
        return None if choice is None else self._take(home, ask.shape, choice)

    def would_fit(self, node: str, shape: Shape) -> bool:
        """Say whether a job of this shape could start on the node now."""
        return choose(shape, self._seats[node]) is not None

    def fitting(self, node: str) -> int:
        """Give the shapes of which a job could start on the node now: bit `number_of(shape)` for each."""
        return self._layout.fitting(self._layout.homes[self._seats[node].order])

    def beside(self, node: str) -> int:
        """Give those of `fitting` that would be put beside their base model there."""
        return self._layout.beside(self._layout.homes[self._seats[node].order])

    def seat(self, node: str) -> NodeUsage:
        """Give a node itself, to be asked of the rule and never changed."""
        return self._seats[node]

    def state(self, node: str) -> Hashable:
        """Give what decides which shapes fit a node: where it is equal, the rule gives the same reasons."""
        return self._layout.state(self._layout.homes[self._seats[node].order])

    def devices(self, node: str) -> tuple[str, ...]:
        """Give the UUIDs of a node's devices, in its order."""
        return tuple([device.uuid for device in self._seats[node].devices])

    def choice(self, node: str, shape: Shape) -> Placement | None:
        """Give what `place_on` would take, and take nothing."""
        home = self._layout.current(self._layout.homes[self._seats[node].order])
        return choose_on(self._ask(shape), home, self._layout)

    def occupy(self, node: str, shape: Shape, devices: tuple[str, ...], *, is_shared: bool) -> PlacedJob:
        """Count a job that has its place already, whatever the rule says of it now; devices that are gone are not."""
        home = self._layout.homes[self._seats[node].order]
        places = {device.uuid: at for at, device in enumerate(home.seat.devices)}
        taken = tuple(DevicePlacement(places[uuid], is_shared, False, 0.0) for uuid in devices if uuid in places)
        return self._take(home, shape, Placement(taken, Key(Rank(0, 0, 0, 0), 0.0)))

    def measure(self, node: str, measured: MeasuredNode) -> bool:
        """Let a node be as it was measured just now; says whether that is other than before."""
        seat = self._seats[node]
        is_other = seat.measure(measured)
        if is_other:
            self._layout.measured(self._layout.homes[seat.order])
        return is_other

    def scratch(self, node: str, *, is_idle: bool = False) -> NodeUsage:
        """Give a copy of a node to try things out on: as it stands, or with none of our jobs on it."""
        seat = self._seats[node]
        offer = seat.offer()
        return NodeUsage(idle(offer) if is_idle else offer, seat.order)

    def fitting_as(self, scratch: NodeUsage) -> int:
        """Give what `fitting` would give if a node were as this copy of it is."""
        return self._layout.fitting(self._layout.as_if(scratch))

    def release(self, placed: PlacedJob) -> None:
        """Give back what a job had."""
        seat = self._live.pop(placed.serial, None)
        if seat is None or not seat.jobs:
            message = f"what was placed on {placed.node} is released, and nothing is there"
            raise Bug(message)
        if self._seats.get(placed.node) is seat:
            seat.give_back(placed.shape, placed.devices, placed.choice)
            self._layout.changed(self._layout.homes[seat.order])

    def _take(self, home: Home, shape: Shape, choice: Placement) -> PlacedJob:
        seat = home.seat
        seat.take(shape, choice)
        self._layout.changed(home)
        serial = self._next_serial
        self._next_serial = serial + 1
        self._live[serial] = seat
        taken = choice.devices
        # A job that shares has one device.
        is_shared = bool(taken) and taken[0].is_shared
        uuids = tuple([seat.devices[one.at].uuid for one in taken])
        return PlacedJob(seat.node, uuids, is_shared, choice.key.score, shape, choice, serial)

    def _ask(self, shape: Shape) -> ShapeRoutes:
        # By identity: shapes are asked about far more often than made.
        return self._asks.get(id(shape)) or self._ask_of(shape)

    def _ask_of(self, shape: Shape) -> ShapeRoutes:
        ask = self._shapes.get(shape)
        if ask is None:
            ask = self._shapes[shape] = self._asks[id(shape)] = ShapeRoutes(shape, len(self._shapes))
            self._layout.learn(shape)
        return ask
