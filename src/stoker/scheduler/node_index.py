"""The node index: all nodes and what is left of them. It places and releases jobs in microseconds.

    nodes = NodeIndex(offers)
    shape = nodes.shape_of(wanted)            # once for each kind of job, not for each job
    placed = nodes.place(shape)               # decides and reserves; None: no node has room now
    nodes.release(placed)
    bits = nodes.fitting(placed.node)         # which shapes could start there now: bit n is the shape with number n
    nodes.place_on(placed.node, shape)

It decides as `fit.choose` applied to every node would, with the first node winning among equals. Its cost depends
neither on the number of nodes nor on the number of waiting jobs. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from stoker.core.errors import InternalError
from stoker.core.machine import SchedulableJob
from stoker.scheduler.fit import DevicePlacement, Placement, choose
from stoker.scheduler.layout import CellLayout, NodeCells
from stoker.scheduler.node_state import NodeUsage
from stoker.scheduler.offers import MeasuredNode, NodeOffer
from stoker.scheduler.routes import ShapeRoutes, best_node, choose_on
from stoker.scheduler.score import COST_RULE, CostRule, Key, PlacementRank
from stoker.scheduler.shapes import PlacementShape, idle, shape_of


class PlacedJob(NamedTuple):
    """The reservation of a placed job. Release it with `NodeIndex.release`."""

    node: str
    devices: tuple[str, ...]
    """UUIDs; empty: it runs on the CPU."""
    is_shared: bool
    """Other jobs may use its device too."""
    score: float
    shape: PlacementShape
    choice: Placement
    serial: int


class NodeIndex:
    """Nodes in a fixed order, and the jobs placed on them."""

    def __init__(self, offers: Iterable[NodeOffer] = (), *, cost: CostRule | None = COST_RULE) -> None:
        """Add nodes; without a cost rule no shape is advised against devices."""
        self._cost = cost
        self._layout = CellLayout()
        self._seats: dict[str, NodeUsage] = {}
        self._by_order: dict[int, NodeUsage] = {}
        self._by_id: dict[int, ShapeRoutes] = {}
        self._by_shape: dict[PlacementShape, ShapeRoutes] = {}
        self._listed: set[str] = set()
        self._live: dict[int, NodeUsage] = {}
        self._next_order = 0
        self._next_serial = 0
        for offer in offers:
            self.put(offer)

    def put(self, offer: NodeOffer) -> bool:
        """Add a node, or replace its state by this offer; a known node keeps its place in the order.

        The offer of a known node counts the jobs that were placed there, as `offer` returns them; jobs that it does not
        count are gone, and must not be released.

        Return True if its lists contain a word that was in no list before: earlier shapes do not know whether it is one
        of their jobs' names, so call `shape_of` again for them.
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
        """Remove a node; jobs placed there need no release."""
        seat = self._seats.pop(node)
        del self._by_order[seat.order]
        self._layout.leave(seat)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in their order."""
        return tuple(self._by_order[order].node for order in sorted(self._by_order))

    def offer(self, node: str) -> NodeOffer:
        """Return the offer of a node as of now."""
        return self._seats[node].offer()

    def shape_of(self, wanted: SchedulableJob) -> PlacementShape:
        """Return the shape of a job: the same object for all jobs that are placed alike."""
        return self._routes_of(shape_of(wanted, listed=self._listed, cost=self._cost)).shape

    def number_of(self, shape: PlacementShape) -> int:
        """Return the bit of a shape in `fitting`, counted from 0 in the order of their first use."""
        return self._routes(shape).number

    def place(self, shape: PlacementShape) -> PlacedJob | None:
        """Reserve the best place for a job of this shape; return `None` if no node fits now."""
        routes = self._routes(shape)
        layout = self._layout
        layout.settle()
        order = best_node(routes, layout)
        if order is None:
            return None
        home = layout.homes[order]
        choice = choose_on(routes, home, layout)
        if choice is None:
            message = f"the search points at {home.seat.node}, the rule says no"
            raise InternalError(message)
        return self._take(home, routes.shape, choice)

    def place_on(self, node: str, shape: PlacementShape) -> PlacedJob | None:
        """Reserve the best place on this node; return `None` if the job does not fit there now."""
        routes = self._routes(shape)
        home = self._layout.current(self._layout.homes[self._seats[node].order])
        choice = choose_on(routes, home, self._layout)
        return None if choice is None else self._take(home, routes.shape, choice)

    def would_fit(self, node: str, shape: PlacementShape) -> bool:
        """Return True if a job of this shape could start on the node now."""
        return choose(shape, self._seats[node]) is not None

    def fitting(self, node: str) -> int:
        """Return the shapes of which a job could start on the node now: bit `number_of(shape)` for each."""
        return self._layout.fitting(self._layout.homes[self._seats[node].order])

    def beside(self, node: str) -> int:
        """Return those of `fitting` that would be placed beside their base model."""
        return self._layout.beside(self._layout.homes[self._seats[node].order])

    def best(self, shape: PlacementShape) -> tuple[str, Key] | None:
        """Return the best node for a job of this shape now and how good it is, without reserving it."""
        routes = self._routes(shape)
        self._layout.settle()
        order = best_node(routes, self._layout)
        if order is None:
            return None
        home = self._layout.homes[order]
        choice = choose_on(routes, self._layout.current(home), self._layout)
        return None if choice is None else (home.seat.node, choice.key)

    def take(self, node: str, shape: PlacementShape, choice: Placement) -> PlacedJob:
        """Reserve what `choice` returned."""
        return self._take(self._layout.homes[self._seats[node].order], shape, choice)

    def hide(self, node: str) -> None:
        """Leave a node out of `best` and `place`; everything else about it stays."""
        seat = self._seats[node]
        if not seat.is_hidden:
            seat.is_hidden = True
            self._layout.changed(self._layout.homes[seat.order])

    def show(self, node: str) -> None:
        """Let `best` and `place` find a node again."""
        seat = self._seats[node]
        if seat.is_hidden:
            seat.is_hidden = False
            self._layout.changed(self._layout.homes[seat.order])

    def usage(self, node: str) -> NodeUsage:
        """Return the state of a node for reading; callers must not change it."""
        return self._seats[node]

    def state(self, node: str) -> Hashable:
        """Return what decides which shapes fit a node: nodes with equal values have the same reasons."""
        return self._layout.state(self._layout.homes[self._seats[node].order])

    def choice(self, node: str, shape: PlacementShape) -> Placement | None:
        """Return what `place_on` would reserve, without reserving it."""
        home = self._layout.current(self._layout.homes[self._seats[node].order])
        return choose_on(self._routes(shape), home, self._layout)

    def occupy(self, node: str, shape: PlacementShape, devices: tuple[str, ...], *, is_shared: bool) -> PlacedJob:
        """Reserve for a job that runs already, whether it fits or not; devices that are gone are skipped."""
        home = self._layout.homes[self._seats[node].order]
        places = {device.uuid: at for at, device in enumerate(home.seat.devices)}
        taken = tuple(DevicePlacement(places[uuid], is_shared, False, 0.0) for uuid in devices if uuid in places)
        return self._take(home, shape, Placement(taken, Key(PlacementRank(0, 0, 0, 0), 0.0)))

    def measure(self, node: str, measured: MeasuredNode) -> bool:
        """Set what was measured on a node; return True if anything changed."""
        seat = self._seats[node]
        is_changed = seat.measure(measured)
        if is_changed:
            self._layout.measured(self._layout.homes[seat.order])
        return is_changed

    def empty(self, node: str) -> NodeUsage:
        """Return a copy of a node without our jobs."""
        seat = self._seats[node]
        return NodeUsage(idle(seat.offer()), seat.order)

    def fitting_as(self, copied: NodeUsage) -> int:
        """Return what `fitting` would return if a node were in the state of this copy."""
        home = self._layout.current(self._layout.homes[copied.order])
        return self._layout.fitting(self._layout.copy(home, copied))

    def release(self, placed: PlacedJob) -> None:
        """Release what a job reserved."""
        seat = self._live.pop(placed.serial, None)
        if seat is None or not seat.jobs:
            message = f"what was placed on {placed.node} is released, and nothing is there"
            raise InternalError(message)
        if self._seats.get(placed.node) is seat:
            seat.give_back(placed.shape, placed.devices, placed.choice)
            self._layout.changed(self._layout.homes[seat.order])

    def _take(self, home: NodeCells, shape: PlacementShape, choice: Placement) -> PlacedJob:
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

    def _routes(self, shape: PlacementShape) -> ShapeRoutes:
        # By identity: shapes are looked up far more often than made.
        return self._by_id.get(id(shape)) or self._routes_of(shape)

    def _routes_of(self, shape: PlacementShape) -> ShapeRoutes:
        routes = self._by_shape.get(shape)
        if routes is None:
            routes = self._by_shape[shape] = self._by_id[id(shape)] = ShapeRoutes(shape, len(self._by_shape))
            self._layout.learn(shape)
        return routes
