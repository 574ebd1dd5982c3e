"""Routes: the ways of one shape to its places, worked out once, and the best place on each of them now."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from stoker.scheduler.fit import is_wished
from stoker.scheduler.layout import Layout
from stoker.scheduler.pools import (
    AlonePool,
    CpuPool,
    DeviceKind,
    Idle,
    Policy,
    SharedPool,
    allows,
    score_alone,
    terms_of,
)
from stoker.scheduler.score import Key, Rank, cpu_score, shared_score, slices_needed
from stoker.scheduler.shapes import Shape
from stoker.scheduler.shelves import Ladders

Found = tuple[Key, int]
"""How good, and which node."""


class AloneRoute:
    """To nodes on which a shape's jobs may have devices alone."""

    __slots__ = ("bound", "pool", "scores")

    def __init__(self, bound: Key, pool: AlonePool) -> None:
        self.bound = bound
        self.pool = pool
        self.scores: dict[Idle, float] = {}
        """How good nodes are by what is idle on them; zero: it is not enough."""

    def find(self, shape: Shape) -> Found | None:
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
    """To devices that a shape's jobs may share."""

    __slots__ = ("bound", "pool", "resident_rank")

    def __init__(self, bound: Key, pool: SharedPool) -> None:
        self.bound = bound
        self.pool = pool
        self.resident_rank = bound.rank._replace(fitting=True)

    def find(self, shape: Shape) -> Found | None:
        return self._climb(shape, self.pool.room, shape.vram_bytes, self.bound.rank)

    def find_beside_base(self, shape: Shape) -> Found | None:
        there = self.pool.beside.get((shape.base, shape.base_bytes))
        return self._climb(shape, there, shape.increment_bytes, self.resident_rank) if there else None

    def _climb(self, shape: Shape, ladders: Ladders, need_bytes: int, rank: Rank) -> Found | None:
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
    """To CPUs that a shape's jobs may run on."""

    __slots__ = ("bound", "need_slices", "pool")

    def __init__(self, bound: Key, pool: CpuPool, need_slices: float) -> None:
        self.bound = bound
        self.pool = pool
        self.need_slices = need_slices

    def find(self, shape: Shape) -> Found | None:
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


class Ranks(NamedTuple):
    """A shape's ranks under one policy; `fitting` is what `Rank` says."""

    on_devices: Rank
    on_devices_fitting: Rank
    on_cpu: Rank
    on_cpu_fitting: Rank


class ShapeRoutes:
    """A shape, and its routes, the most promising first."""

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

    def __init__(self, shape: Shape, number: int) -> None:
        self.shape = shape
        self.number = number
        self.bit = 1 << number
        self.need_slices = slices_needed(shape.ram_bytes, shape.cores)
        self.base = (shape.base, shape.base_bytes) if shape.base else None
        self.increment_bytes = shape.increment_bytes
        self.version = -1
        self.devices: list[AloneRoute | SharedRoute] = []
        self.sharing: list[SharedRoute] = []
        """Those of them on which its base may lie."""
        self.cpu: list[CpuRoute] = []
        self._ranks: dict[Policy, Ranks | None] = {}
        self._terms: dict[DeviceKind, tuple[bool, float]] = {}

    def ranks(self, policy: Policy, lists: dict[frozenset[str], int]) -> Ranks | None:
        """Give its ranks under a policy; nothing if the policy does not allow it."""
        try:
            return self._ranks[policy]
        except KeyError:
            found = self._ranks[policy] = (
                _ranks(self.shape, policy, lists) if allows(self.shape, policy, lists) else None
            )
            return found

    def terms(self, kind: DeviceKind) -> tuple[bool, float]:
        """Say whether it would share devices of this kind, and how good they are if it has them alone; zero: never."""
        try:
            return self._terms[kind]
        except KeyError:
            found = self._terms[kind] = terms_of(self.shape, kind)
            return found


def plan_routes(ask: ShapeRoutes, layout: Layout) -> None:
    """Find out which pools a shape's jobs may go to, and how good they could be there."""
    ask.version = layout.version
    ask.devices, ask.sharing, ask.cpu = [], [], []
    lists = layout.known.host_lists
    if ask.shape.takes_devices:
        _plan_alone(ask, layout)
        _plan_shared(ask, layout)
        ask.devices.sort(key=lambda route: route.bound, reverse=True)
    if ask.shape.takes_cpu:
        for pool in layout.cpu_pools.values():
            ranks = ask.ranks(pool.policy, lists)
            if ranks is not None:
                rank = ranks.on_cpu if pool.has_devices else ranks.on_cpu_fitting
                ask.cpu.append(CpuRoute(Key(rank, inf), pool, ask.need_slices))
        ask.cpu.sort(key=lambda route: route.bound, reverse=True)


def _plan_alone(ask: ShapeRoutes, layout: Layout) -> None:
    for pool in layout.alone_pools.values():
        terms = [ask.terms(kind) for kind in pool.kinds]
        best = max(0.0 if is_shared else score for is_shared, score in terms)
        ranks = ask.ranks(pool.policy, layout.known.host_lists)
        if best and ranks is not None:
            ask.devices.append(AloneRoute(Key(ranks.on_devices, best), pool))


def _plan_shared(ask: ShapeRoutes, layout: Layout) -> None:
    for pool in layout.shared_pools.values():
        is_shared, _ = ask.terms(pool.kind)
        ranks = ask.ranks(pool.policy, layout.known.host_lists)
        if is_shared and ranks is not None:
            best = shared_score(pool.kind.usable_bytes, ask.shape.vram_bytes, pool.kind.speed, 0)
            route = SharedRoute(Key(ranks.on_devices, best), pool)
            ask.devices.append(route)
            if ask.shape.base:
                ask.sharing.append(route)


def _ranks(shape: Shape, policy: Policy, lists: dict[frozenset[str], int]) -> Ranks:
    is_preferred = bool(shape.preferred_hosts) and bool(policy.hosts & lists[shape.preferred_hosts])
    return Ranks(
        *(
            Rank(is_wished(shape, on_devices=on_devices), is_preferred, policy.priority, is_fitting)
            for on_devices in (True, False)
            for is_fitting in (False, True)
        )
    )
