"""Routes: the pools to which jobs of one shape may go, and the search for the best place in them.

Routes are computed once for each shape. `best_node` tries them by the best score that each could have, until no other
could be better. `choose_on` returns what `fit.choose` returns, from what is known of the shape and the node's pools.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from stoker.core.machine import DevicePreference
from stoker.scheduler.fit import DevicePlacement, Placement, choose, is_wished, slices_left
from stoker.scheduler.layout import CellLayout, NodeCells
from stoker.scheduler.node_state import DeviceUsage
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
from stoker.scheduler.score import Key, PlacementRank, cpu_score, shared_score, slices_needed
from stoker.scheduler.shapes import PlacementShape

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
        for idle, cell in self.pool.nodes.cells.items():
            score = self.scores.get(idle, -1.0)
            if score < 0:
                score = self.scores[idle] = score_alone(shape, self.pool.kinds, idle)
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
    """The ranks of a shape with one policy; `fitting` as in `Rank`."""

    on_devices: PlacementRank
    on_devices_fitting: PlacementRank
    on_cpu: PlacementRank
    on_cpu_fitting: PlacementRank


class ShapeRoutes:
    """A shape and its routes, the best bound first."""

    __slots__ = (
        "_ranks",
        "_terms",
        "base",
        "bit",
        "cpu",
        "devices",
        "increment_bytes",
        "need_slices",
        "number",
        "shape",
        "sharing",
        "version",
    )

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


def choose_on(routes: ShapeRoutes, home: NodeCells, layout: CellLayout) -> Placement | None:
    """Return what `fit.choose` returns for this shape and node, faster."""
    shape = routes.shape
    ram, cores = home.gate
    if ram < shape.ram_bytes or cores < shape.cores or home.seat.closed:
        return None
    if len(home.groups) > 1:
        return choose(shape, home.seat)
    ranks = routes.ranks(home.policy, layout.known.host_lists)
    if ranks is None:
        return None
    wish = shape.wish
    on_devices = _devices_on(routes, home, ranks) if wish is not DevicePreference.NEVER and home.groups else None
    if wish is DevicePreference.REQUIRE or (on_devices is not None and not shape.is_advised_against):
        return on_devices
    return _cpu_on(routes, home, ranks) or on_devices


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


def _devices_on(routes: ShapeRoutes, home: NodeCells, ranks: ShapeRanks) -> Placement | None:
    seat = home.seat
    slots = seat.slots - seat.slots_held
    pool, devices = home.groups[0]
    is_shared, score = routes.terms(pool.kind)
    if is_shared:
        return _shared_on(routes, devices, ranks, slots) if slots > 0 or seat.is_slot_per_device else None
    count = routes.shape.device_count
    if not score or (count > slots if seat.is_slot_per_device else slots < 1):
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


def _cpu_on(routes: ShapeRoutes, home: NodeCells, ranks: ShapeRanks) -> Placement | None:
    seat = home.seat
    if seat.slots_held >= seat.slots:
        return None
    score = cpu_score(slices_left(seat), routes.need_slices, seat.jobs)
    return Placement((), Key(ranks.on_cpu if seat.devices else ranks.on_cpu_fitting, score))
