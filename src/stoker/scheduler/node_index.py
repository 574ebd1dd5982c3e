"""The node index: all nodes and what is left of them. It places and releases jobs in microseconds.

    nodes = NodeIndex(offers)
    shape = nodes.shape_of(wanted)            # once for each kind of job, not for each job
    placed = nodes.place(shape)               # decides and reserves; None: no node has room now
    nodes.release(placed)
    bits = nodes.fitting(placed.node)         # which shapes could start there now: bit n is the shape with number n
    nodes.place_on(placed.node, shape)

It decides as `fit.choose` applied to every node would, with the first node winning among equals. Its cost depends
neither on the number of nodes nor on the number of waiting jobs. Not thread-safe.

Routes are the pools to which jobs of one shape may go, computed once for each shape. `best_node` tries them by the best
score that each could have, until no other could be better. `choose_on` returns what `fit.choose` returns, from what is
known of the shape and the node's pools.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from typing import NamedTuple

from stoker.core.errors import InternalError
from stoker.core.machine import DevicePreference, SchedulableJob
from stoker.scheduler.fit import (
    DevicePlacement,
    DeviceUsage,
    NodeUsage,
    Placement,
    PlacementShape,
    choose,
    is_wished,
    shape_of,
    slices_left,
)
from stoker.scheduler.layout import CellLayout, NodeCells
from stoker.scheduler.offers import MeasuredNode, NodeOffer, idle
from stoker.scheduler.pools import (
    AlonePool,
    CpuPool,
    DeviceKind,
    IdleDevices,
    Ladders,
    NodePolicy,
    SharedPool,
    allows,
    score_alone,
    terms_of,
)
from stoker.scheduler.score import COST_RULE, CostRule, Key, PlacementRank, cpu_score, shared_score, slices_needed

Found = tuple[Key, int]
"""The key of a place, and the order of its node."""


class AloneRoute:
    """Nodes on which jobs of a shape may have devices alone."""

    __slots__ = ("bound", "pool", "scores")

    def __init__(self, bound: Key, pool: AlonePool) -> None:
        self.bound = bound
        self.pool = pool
        self.scores: dict[IdleDevices, float] = {}
        """Scores of nodes by their idle devices; 0 if these are too few."""

    def find(self, shape: PlacementShape) -> Found | None:
        best_score, best_order = 0.0, -1
        for devices, cell in self.pool.nodes.cells.items():
            score = self.scores.get(devices, -1.0)
            if score < 0:
                score = self.scores[devices] = score_alone(shape, self.pool.kinds, devices)
            if score and score >= best_score:
                order = cell.first(shape.ram_bytes, shape.cores)
                if order >= 0 and (score > best_score or order < best_order):
                    best_score, best_order = score, order
        return (Key(self.bound.rank, best_score), best_order) if best_order >= 0 else None


class SharedRoute:
    """Devices that jobs of a shape may share."""

    __slots__ = ("bound", "pool", "resident_rank")

    def __init__(self, bound: Key, pool: SharedPool) -> None:
        self.bound = bound
        self.pool = pool
        self.resident_rank = bound.rank._replace(fitting=True)

    def find(self, shape: PlacementShape) -> Found | None:
        return self._climb(shape, self.pool.room, shape.vram_bytes, self.bound.rank)

    def find_beside_base(self, shape: PlacementShape) -> Found | None:
        there = self.pool.beside.get((shape.base, shape.base_bytes))
        return self._climb(shape, there, shape.increment_bytes, self.resident_rank) if there else None

    def _climb(self, shape: PlacementShape, ladders: Ladders, need_bytes: int, rank: PlacementRank) -> Found | None:
        speed, most_bytes = self.pool.kind.speed, self.pool.kind.usable_bytes
        best_score, best_order = -1.0, -1
        for jobs, ladder in enumerate(ladders.by_jobs):
            if not ladder.rungs or ladder.rungs[-1] < need_bytes:
                continue
            if shared_score(most_bytes, need_bytes, speed, jobs) < best_score:
                break
            left, order = ladder.best(need_bytes, shape.ram_bytes, shape.cores)
            score = shared_score(left, need_bytes, speed, jobs)
            if order >= 0 and (score > best_score or (score == best_score and order < best_order)):
                best_score, best_order = score, order
        return (Key(rank, best_score), best_order) if best_order >= 0 else None


class CpuRoute:
    """CPUs that jobs of a shape may use."""

    __slots__ = ("bound", "need_slices", "pool")

    def __init__(self, bound: Key, pool: CpuPool, need_slices: float) -> None:
        self.bound = bound
        self.pool = pool
        self.need_slices = need_slices

    def find(self, shape: PlacementShape) -> Found | None:
        best_score, best_order = -1.0, -1
        for jobs, ladder in enumerate(self.pool.left.by_jobs):
            if not ladder.rungs:
                continue
            if self._score(self.pool.most_slices, jobs) < best_score:
                break
            left, order = ladder.best(-inf, shape.ram_bytes, shape.cores)
            score = self._score(left, jobs)
            if order >= 0 and (score > best_score or (score == best_score and order < best_order)):
                best_score, best_order = score, order
        return (Key(self.bound.rank, best_score), best_order) if best_order >= 0 else None

    def _score(self, left: float, jobs: int) -> float:
        return cpu_score(left if self.pool.is_known else None, self.need_slices, jobs)


class ShapeRanks(NamedTuple):
    """The ranks of a shape with one policy; `fitting` as in `PlacementRank`."""

    on_devices: PlacementRank
    on_devices_fitting: PlacementRank
    on_cpu: PlacementRank
    on_cpu_fitting: PlacementRank


class ShapeRoutes:
    """A shape and its routes, the best bound first."""

    __slots__ = (
        "_ranks", "_terms", "base", "bit", "cpu", "devices", "increment_bytes", "need_slices", "number", "shape",
        "sharing", "version",
    )  # fmt: skip

    def __init__(self, shape: PlacementShape, number: int) -> None:
        self.shape = shape
        self.number = number
        self.bit = 1 << number
        self.need_slices = slices_needed(shape.ram_bytes, shape.cores)
        self.base = (shape.base, shape.base_bytes) if shape.base else None
        self.increment_bytes = shape.increment_bytes
        self.version = -1
        self.devices: list[AloneRoute | SharedRoute] = []
        self.sharing: list[SharedRoute] = []
        """Those of them on which its base may be."""
        self.cpu: list[CpuRoute] = []
        self._ranks: dict[NodePolicy, ShapeRanks | None] = {}
        self._terms: dict[DeviceKind, tuple[bool, float]] = {}

    def ranks(self, policy: NodePolicy, lists: dict[frozenset[str], int]) -> ShapeRanks | None:
        """Return its ranks with a policy; `None` if the policy does not allow it."""
        try:
            return self._ranks[policy]
        except KeyError:
            found = self._ranks[policy] = (
                _ranks(self.shape, policy, lists) if allows(self.shape, policy, lists) else None
            )
            return found

    def terms(self, kind: DeviceKind) -> tuple[bool, float]:
        """Return what `pools.terms_of` returns, computed once for each kind."""
        try:
            return self._terms[kind]
        except KeyError:
            found = self._terms[kind] = terms_of(self.shape, kind)
            return found


def best_node(routes: ShapeRoutes, layout: CellLayout) -> int | None:
    """Return the order of the best node for a job of this shape now; `None` if none fits."""
    if routes.version != layout.version:
        _plan_routes(routes, layout)
    wish = routes.shape.wish
    if wish is DevicePreference.NEVER:
        found = _on_cpu(routes)
    elif wish is DevicePreference.REQUIRE:
        found = _on_devices(routes)
    elif routes.shape.is_advised_against:
        found = _on_cpu(routes) or _on_devices(routes)
    else:
        found = _on_devices(routes) or _on_cpu(routes)
    return None if found is None else found[1]


def choose_on(routes: ShapeRoutes, cells: NodeCells, layout: CellLayout) -> Placement | None:
    """Return what `fit.choose` returns for this shape and node, faster."""
    shape = routes.shape
    ram, cores = cells.gate
    if ram < shape.ram_bytes or cores < shape.cores or cells.usage.closed:
        return None
    if len(cells.groups) > 1:
        return choose(shape, cells.usage)
    ranks = routes.ranks(cells.policy, layout.known.host_lists)
    if ranks is None:
        return None
    wish = shape.wish
    on_devices = _devices_on(routes, cells, ranks) if wish is not DevicePreference.NEVER and cells.groups else None
    if wish is DevicePreference.REQUIRE or (on_devices is not None and not shape.is_advised_against):
        return on_devices
    return _cpu_on(routes, cells, ranks) or on_devices


def _plan_routes(routes: ShapeRoutes, layout: CellLayout) -> None:
    """Compute the pools to which jobs of a shape may go, and the best key of each."""
    routes.version = layout.version
    routes.devices, routes.sharing, routes.cpu = [], [], []
    lists = layout.known.host_lists
    if routes.shape.takes_devices:
        _plan_alone(routes, layout)
        _plan_shared(routes, layout)
        routes.devices.sort(key=lambda route: route.bound, reverse=True)
    if routes.shape.takes_cpu:
        for pool in layout.cpu_pools.values():
            ranks = routes.ranks(pool.policy, lists)
            if ranks is not None:
                rank = ranks.on_cpu if pool.has_devices else ranks.on_cpu_fitting
                routes.cpu.append(CpuRoute(Key(rank, inf), pool, routes.need_slices))
        routes.cpu.sort(key=lambda route: route.bound, reverse=True)


def _plan_alone(routes: ShapeRoutes, layout: CellLayout) -> None:
    for pool in layout.alone_pools.values():
        terms = [routes.terms(kind) for kind in pool.kinds]
        best = max(0.0 if is_shared else score for is_shared, score in terms)
        ranks = routes.ranks(pool.policy, layout.known.host_lists)
        if best and ranks is not None:
            routes.devices.append(AloneRoute(Key(ranks.on_devices, best), pool))


def _plan_shared(routes: ShapeRoutes, layout: CellLayout) -> None:
    for pool in layout.shared_pools.values():
        is_shared, _ = routes.terms(pool.kind)
        ranks = routes.ranks(pool.policy, layout.known.host_lists)
        if is_shared and ranks is not None:
            best = shared_score(pool.kind.usable_bytes, routes.shape.vram_bytes, pool.kind.speed, 0)
            route = SharedRoute(Key(ranks.on_devices, best), pool)
            routes.devices.append(route)
            if routes.shape.base:
                routes.sharing.append(route)


def _ranks(shape: PlacementShape, policy: NodePolicy, lists: dict[frozenset[str], int]) -> ShapeRanks:
    is_preferred = bool(shape.preferred_hosts) and bool(policy.hosts & lists[shape.preferred_hosts])
    return ShapeRanks(
        *(
            PlacementRank(is_wished(shape, on_devices=on_devices), is_preferred, policy.priority, is_fitting)
            for on_devices in (True, False)
            for is_fitting in (False, True)
        )
    )


def _on_devices(routes: ShapeRoutes) -> Found | None:
    shape = routes.shape
    best: Found | None = None
    for beside in routes.sharing:
        best = _better(best, beside.find_beside_base(shape))
    for route in routes.devices:
        if best is not None and route.bound < best[0]:
            break
        best = _better(best, route.find(shape))
    return best


def _on_cpu(routes: ShapeRoutes) -> Found | None:
    best: Found | None = None
    for route in routes.cpu:
        if best is not None and route.bound < best[0]:
            break
        best = _better(best, route.find(routes.shape))
    return best


def _better(one: Found | None, other: Found | None) -> Found | None:
    """Return the better of two; of equal ones the first node."""
    if one is None or other is None:
        return one or other
    if one[0] == other[0]:
        return one if one[1] <= other[1] else other
    return one if one[0] > other[0] else other


def _devices_on(routes: ShapeRoutes, cells: NodeCells, ranks: ShapeRanks) -> Placement | None:
    usage = cells.usage
    slots = usage.slots - usage.slots_held
    pool, devices = cells.groups[0]
    is_shared, score = routes.terms(pool.kind)
    if is_shared:
        return _shared_on(routes, devices, ranks, slots) if slots > 0 or usage.is_slot_per_device else None
    count = routes.shape.device_count
    if not score or (count > slots if usage.is_slot_per_device else slots < 1):
        return None
    need = routes.shape.vram_bytes
    chosen: list[DevicePlacement] = []
    for at, device in enumerate(devices):
        if not device.jobs and device.admits >= need and not device.closed:
            chosen.append(DevicePlacement(at, False, False, score))
            if len(chosen) == count:
                return Placement(tuple(chosen), Key(ranks.on_devices, score))
    return None


def _shared_on(routes: ShapeRoutes, devices: list[DeviceUsage], ranks: ShapeRanks, slots: int) -> Placement | None:
    base, need_alone, increment = routes.base, routes.shape.vram_bytes, routes.increment_bytes
    best_at, best_score, best_resident = -1, -1.0, False
    for at, device in enumerate(devices):
        jobs = device.jobs
        if device.is_held or device.closed or (slots < 1 and not jobs):
            continue
        is_resident = base is not None and base in device.bases
        need, room = increment if is_resident else need_alone, device.shared_bytes - device.promised_bytes
        if need > room or (device.slots is not None and jobs >= device.slots) or best_resident > is_resident:
            continue
        score = shared_score(room, need, device.speed, jobs)
        if score > best_score or is_resident > best_resident:
            best_at, best_score, best_resident = at, score, is_resident
    if best_at < 0:
        return None
    rank = ranks.on_devices_fitting if best_resident else ranks.on_devices
    return Placement((DevicePlacement(best_at, True, best_resident, best_score),), Key(rank, best_score))


def _cpu_on(routes: ShapeRoutes, cells: NodeCells, ranks: ShapeRanks) -> Placement | None:
    usage = cells.usage
    if usage.slots_held >= usage.slots:
        return None
    score = cpu_score(slices_left(usage), routes.need_slices, usage.jobs)
    return Placement((), Key(ranks.on_cpu if usage.devices else ranks.on_cpu_fitting, score))


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
        self._usages: dict[str, NodeUsage] = {}
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
        usage = self._usages.get(offer.node)
        if usage is None:
            usage = self._usages[offer.node] = self._by_order[self._next_order] = NodeUsage(offer, self._next_order)
            self._next_order += 1
        else:
            self._layout.leave(usage)
            usage.stand_as(offer)
        self._layout.enter(usage)
        words = set(offer.allow_jobs) | set(offer.deny_jobs)
        is_new = not words <= self._listed
        self._listed |= words
        return is_new

    def remove(self, node: str) -> None:
        """Remove a node; jobs placed there need no release."""
        usage = self._usages.pop(node)
        del self._by_order[usage.order]
        self._layout.leave(usage)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in their order."""
        return tuple(self._by_order[order].node for order in sorted(self._by_order))

    def offer(self, node: str) -> NodeOffer:
        """Return the offer of a node as of now."""
        return self._usages[node].offer()

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
        cells = layout.node_cells[order]
        choice = choose_on(routes, cells, layout)
        if choice is None:
            message = f"the search points at {cells.usage.node}, the rule says no"
            raise InternalError(message)
        return self._take(cells, routes.shape, choice)

    def place_on(self, node: str, shape: PlacementShape) -> PlacedJob | None:
        """Reserve the best place on this node; return `None` if the job does not fit there now."""
        routes = self._routes(shape)
        cells = self._layout.current(self._layout.node_cells[self._usages[node].order])
        choice = choose_on(routes, cells, self._layout)
        return None if choice is None else self._take(cells, routes.shape, choice)

    def would_fit(self, node: str, shape: PlacementShape) -> bool:
        """Return True if a job of this shape could start on the node now."""
        return choose(shape, self._usages[node]) is not None

    def fitting(self, node: str) -> int:
        """Return the shapes of which a job could start on the node now: bit `number_of(shape)` for each."""
        return self._layout.fitting(self._layout.node_cells[self._usages[node].order])

    def beside(self, node: str) -> int:
        """Return those of `fitting` that would be placed beside their base model."""
        return self._layout.beside(self._layout.node_cells[self._usages[node].order])

    def best(self, shape: PlacementShape) -> tuple[str, Key] | None:
        """Return the best node for a job of this shape now and how good it is, without reserving it."""
        routes = self._routes(shape)
        self._layout.settle()
        order = best_node(routes, self._layout)
        if order is None:
            return None
        cells = self._layout.node_cells[order]
        choice = choose_on(routes, self._layout.current(cells), self._layout)
        return None if choice is None else (cells.usage.node, choice.key)

    def take(self, node: str, shape: PlacementShape, choice: Placement) -> PlacedJob:
        """Reserve what `choice` returned."""
        return self._take(self._layout.node_cells[self._usages[node].order], shape, choice)

    def hide(self, node: str) -> None:
        """Leave a node out of `best` and `place`; everything else about it stays."""
        usage = self._usages[node]
        if not usage.is_hidden:
            usage.is_hidden = True
            self._layout.changed(self._layout.node_cells[usage.order])

    def show(self, node: str) -> None:
        """Let `best` and `place` find a node again."""
        usage = self._usages[node]
        if usage.is_hidden:
            usage.is_hidden = False
            self._layout.changed(self._layout.node_cells[usage.order])

    def usage(self, node: str) -> NodeUsage:
        """Return the state of a node for reading; callers must not change it."""
        return self._usages[node]

    def state(self, node: str) -> Hashable:
        """Return what decides which shapes fit a node: nodes with equal values have the same reasons."""
        return self._layout.state(self._layout.node_cells[self._usages[node].order])

    def choice(self, node: str, shape: PlacementShape) -> Placement | None:
        """Return what `place_on` would reserve, without reserving it."""
        cells = self._layout.current(self._layout.node_cells[self._usages[node].order])
        return choose_on(self._routes(shape), cells, self._layout)

    def occupy(self, node: str, shape: PlacementShape, devices: tuple[str, ...], *, is_shared: bool) -> PlacedJob:
        """Reserve for a job that runs already, whether it fits or not; devices that are gone are skipped."""
        cells = self._layout.node_cells[self._usages[node].order]
        places = {device.uuid: at for at, device in enumerate(cells.usage.devices)}
        taken = tuple(DevicePlacement(places[uuid], is_shared, False, 0.0) for uuid in devices if uuid in places)
        return self._take(cells, shape, Placement(taken, Key(PlacementRank(0, 0, 0, 0), 0.0)))

    def measure(self, node: str, measured: MeasuredNode) -> bool:
        """Set what was measured on a node; return True if anything changed."""
        usage = self._usages[node]
        is_changed = usage.measure(measured)
        if is_changed:
            self._layout.measured(self._layout.node_cells[usage.order])
        return is_changed

    def empty(self, node: str) -> NodeUsage:
        """Return a copy of a node without our jobs."""
        usage = self._usages[node]
        return NodeUsage(idle(usage.offer()), usage.order)

    def fitting_as(self, copied: NodeUsage) -> int:
        """Return what `fitting` would return if a node were in the state of this copy."""
        cells = self._layout.current(self._layout.node_cells[copied.order])
        return self._layout.fitting(self._layout.copy(cells, copied))

    def release(self, placed: PlacedJob) -> None:
        """Release what a job reserved."""
        usage = self._live.pop(placed.serial, None)
        if usage is None or not usage.jobs:
            message = f"what was placed on {placed.node} is released, and nothing is there"
            raise InternalError(message)
        if self._usages.get(placed.node) is usage:
            usage.give_back(placed.shape, placed.devices, placed.choice)
            self._layout.changed(self._layout.node_cells[usage.order])

    def _take(self, cells: NodeCells, shape: PlacementShape, choice: Placement) -> PlacedJob:
        usage = cells.usage
        usage.take(shape, choice)
        self._layout.changed(cells)
        serial = self._next_serial
        self._next_serial = serial + 1
        self._live[serial] = usage
        taken = choice.devices
        # A job that shares has one device.
        is_shared = bool(taken) and taken[0].is_shared
        uuids = tuple([usage.devices[one.at].uuid for one in taken])
        return PlacedJob(usage.node, uuids, is_shared, choice.key.score, shape, choice, serial)

    def _routes(self, shape: PlacementShape) -> ShapeRoutes:
        # By identity: shapes are looked up far more often than made.
        return self._by_id.get(id(shape)) or self._routes_of(shape)

    def _routes_of(self, shape: PlacementShape) -> ShapeRoutes:
        routes = self._by_shape.get(shape)
        if routes is None:
            routes = self._by_shape[shape] = self._by_id[id(shape)] = ShapeRoutes(shape, len(self._by_shape))
            self._layout.learn(shape)
        return routes
