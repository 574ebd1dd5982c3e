"""Pools: nodes that are alike but for what is left of them, indexed so that the best is found without a scan.

Within one pool the order of places hardly depends on the shape. For jobs alone on their devices, nodes with equally
many idle devices are equal; where memory is shared, and on the CPU, more room is better among places with equally many
jobs. So a pool is one `CellIndex` of equal nodes, or a `Ladder` per number of jobs, read from the top.

RAM and cores do not order places, they only admit: nodes whose free amounts lie between the same two amounts that any
shape requires admit the same shapes (`KnownShapes`), and have the same `Gate` in their cell. `ShapeMasks` answers which
shapes fit a node as one number with a bit for each shape, so that a queue finds its next job by bit operations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from stoker.core.device import Backend
from stoker.scheduler.fit import PlacementShape, list_block, shares
from stoker.scheduler.offers import Sharing
from stoker.scheduler.score import alone_score

At = TypeVar("At")
Base = tuple[str, int]
"""A base model and its size."""
Amounts = tuple[tuple[float, ...], ...]
Gate = tuple[float, float]
"""The largest amounts of RAM and cores that any shape requires and these nodes have left."""
_FEW = 8
"""Up to this many, a linear search is faster than a heap."""


class Bucket:
    """Nodes that are equal for placement, with fast access to the first of them."""

    __slots__ = ("_heap", "_queued", "members")

    def __init__(self, order: int) -> None:
        self.members = {order}
        # Only with many members. Removed nodes stay in the heap until they reach its top: removal is free.
        self._heap: list[int] | None = None
        self._queued: set[int] | None = None

    def add(self, order: int) -> None:
        self.members.add(order)
        if self._heap is not None and self._queued is not None and order not in self._queued:
            self._queued.add(order)
            heappush(self._heap, order)

    def first(self) -> int:
        members, heap, queued = self.members, self._heap, self._queued
        if heap is None or queued is None:
            if len(members) <= _FEW:
                return min(members)
            heap = self._heap = sorted(members)
            queued = self._queued = set(members)
        while heap[0] not in members:
            queued.discard(heappop(heap))
        return heap[0]


class Cell:
    """Equally good nodes, by their gate."""

    __slots__ = ("buckets",)

    def __init__(self, gate: Gate, order: int) -> None:
        self.buckets = {gate: Bucket(order)}

    def add(self, gate: Gate, order: int) -> None:
        bucket = self.buckets.get(gate)
        if bucket is None:
            self.buckets[gate] = Bucket(order)
        else:
            bucket.add(order)

    def remove(self, gate: Gate, order: int) -> None:
        members = self.buckets[gate].members
        members.discard(order)
        if not members:
            del self.buckets[gate]

    def first(self, ram_bytes: int, cores: int) -> int:
        """Return the first node whose gate admits this much; -1 if there is none."""
        best = -1
        for (ram_left, cores_left), bucket in self.buckets.items():
            if ram_left >= ram_bytes and cores_left >= cores:
                order = bucket.first()
                if best < 0 or order < best:
                    best = order
        return best


class CellIndex(Generic[At]):
    """Cells by what their nodes have in common."""

    __slots__ = ("cells",)

    def __init__(self) -> None:
        self.cells: dict[At, Cell] = {}

    def add(self, at: At, gate: Gate, order: int) -> None:
        cell = self.cells.get(at)
        if cell is None:
            self.cells[at] = Cell(gate, order)
            self._on_added(at)
        else:
            cell.add(gate, order)

    def remove(self, at: At, gate: Gate, order: int) -> None:
        cell = self.cells[at]
        cell.remove(gate, order)
        if not cell.buckets:
            del self.cells[at]
            self._on_removed(at)

    def _on_added(self, at: At) -> None:
        """Called after a cell was added."""

    def _on_removed(self, at: At) -> None:
        """Called after a cell was removed."""


class Ladder(CellIndex[float]):
    """Cells by how much is left, in order."""

    __slots__ = ("rungs",)

    def __init__(self) -> None:
        super().__init__()
        self.rungs: list[float] = []

    def best(self, least: float, ram_bytes: int, cores: int) -> tuple[float, int]:
        """Return the highest rung from `least` on with a node whose gate admits this much, and that node; else -1."""
        for rung in reversed(self.rungs):
            if rung < least:
                break
            order = self.cells[rung].first(ram_bytes, cores)
            if order >= 0:
                return rung, order
        return 0, -1

    def _on_added(self, at: float) -> None:
        insort(self.rungs, at)

    def _on_removed(self, at: float) -> None:
        del self.rungs[bisect_left(self.rungs, at)]


class Ladders:
    """A ladder for each number of jobs that are there already."""

    __slots__ = ("by_jobs",)

    def __init__(self) -> None:
        self.by_jobs: list[Ladder] = []

    def at(self, jobs: int) -> Ladder:
        while len(self.by_jobs) <= jobs:
            self.by_jobs.append(Ladder())
        return self.by_jobs[jobs]


class NodePolicy:
    """What nodes allow, and the host lists that contain them. Equal policies are one object."""

    __slots__ = ("allow_jobs", "deny_jobs", "hosts", "priority")

    def __init__(self, allow_jobs: tuple[str, ...], deny_jobs: tuple[str, ...], priority: int, hosts: int) -> None:
        self.allow_jobs = allow_jobs
        self.deny_jobs = deny_jobs
        self.priority = priority
        self.hosts = hosts
        """The host lists that contain the node: a bit for each."""


class DeviceKind:
    """Devices that only differ in what is left of them. Equal kinds are one object."""

    __slots__ = ("backend", "sharing", "speed", "total_bytes", "usable_bytes")

    def __init__(self, backend: Backend, total_bytes: int, usable_bytes: int, speed: float, sharing: Sharing) -> None:
        self.backend = backend
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes
        self.speed = speed
        self.sharing = sharing


class IdleDevices:
    """A node's idle devices: for each kind the amounts they admit, the largest first. Equal ones are one object."""

    __slots__ = ("amounts", "slots")

    def __init__(self, amounts: Amounts, slots: int) -> None:
        self.amounts = amounts
        self.slots = slots
        """How many of them may be used."""


class AlonePool:
    """Nodes with devices of the same kinds and one policy, for jobs that have their devices alone."""

    __slots__ = ("_idle", "kinds", "nodes", "policy")

    def __init__(self, policy: NodePolicy, kinds: tuple[DeviceKind, ...]) -> None:
        self.policy = policy
        self.kinds = kinds
        self.nodes: CellIndex[IdleDevices] = CellIndex()
        """By their idle devices."""
        self._idle: dict[tuple[int, Amounts], IdleDevices] = {}

    def idle(self, amounts: Amounts, slots: int) -> IdleDevices:
        """Return the one `IdleDevices` of these values."""
        found = self._idle.get((slots, amounts))
        if found is None:
            found = self._idle[slots, amounts] = IdleDevices(amounts, slots)
        return found


class SharedPool:
    """Devices of one kind and one policy, for jobs that share."""

    __slots__ = ("beside", "kind", "policy", "room")

    def __init__(self, policy: NodePolicy, kind: DeviceKind) -> None:
        self.policy = policy
        self.kind = kind
        self.room = Ladders()
        """By free memory."""
        self.beside: dict[Base, Ladders] = {}
        """The same for the devices that have a base model on them, by base."""

    def beside_base(self, base: Base) -> Ladders:
        found = self.beside.get(base)
        if found is None:
            found = self.beside[base] = Ladders()
        return found


class CpuPool:
    """CPUs of nodes with one policy."""

    __slots__ = ("has_devices", "is_known", "left", "most_slices", "policy")

    def __init__(self, policy: NodePolicy, *, has_devices: bool, is_known: bool) -> None:
        self.policy = policy
        self.has_devices = has_devices
        self.is_known = is_known
        """The RAM or the cores of the nodes are known."""
        self.left = Ladders()
        """By free slices."""
        self.most_slices = 0.0
        """No node has more free slices than this."""


class KnownShapes:
    """What all known shapes require: the amounts, the host lists, and whether any of them shares."""

    def __init__(self) -> None:
        self.vram_amounts: list[float] = [0]
        """Amounts of device memory, sorted; RAM and cores likewise."""
        self.ram_amounts: list[float] = [0]
        self.core_amounts: list[float] = [0]
        self.host_lists: dict[frozenset[str], int] = {}
        """The host lists of the shapes, each with its bit."""
        self._has_sharers = False

    def learn(self, shape: PlacementShape) -> list[frozenset[str]]:
        """Add a shape; return its host lists that are new."""
        for amounts, required in (
            (self.vram_amounts, shape.vram_bytes),
            (self.vram_amounts, shape.increment_bytes),
            (self.ram_amounts, shape.ram_bytes),
            (self.core_amounts, shape.cores),
        ):
            if required not in amounts:
                insort(amounts, required)
        self._has_sharers |= shape.may_share
        new = [hosts for hosts in (shape.allowed_hosts, shape.preferred_hosts) if hosts]
        new = [hosts for hosts in dict.fromkeys(new) if hosts not in self.host_lists]
        for hosts in new:
            self.host_lists[hosts] = 1 << len(self.host_lists)
        return new

    def is_shared(self, kind: DeviceKind) -> bool:
        """Return True if any shape might share devices of this kind."""
        return kind.sharing is Sharing.ALWAYS or (self._has_sharers and kind.sharing is Sharing.ASKED)


class ShapeMasks:
    """The shapes that fit, as bits, by what decides it; each computed at its first use."""

    def __init__(self, known: KnownShapes) -> None:
        self._known = known
        self._shapes: list[PlacementShape] = []
        self.version = 0
        """The number of shapes."""
        self.on_cpu = 0
        """Shapes that may run on a CPU."""
        self._alone: dict[IdleDevices, int] = {}
        self._shared: dict[tuple[DeviceKind, float], int] = {}
        self._beside: dict[tuple[DeviceKind, Base, float], int] = {}
        self._admitted: dict[tuple[NodePolicy, Gate], int] = {}

    def add(self, shape: PlacementShape) -> None:
        """Add the next shape."""
        if shape.takes_cpu:
            self.on_cpu |= 1 << len(self._shapes)
        self._shapes.append(shape)
        self.version += 1
        self._alone.clear()
        self._shared.clear()
        self._beside.clear()
        self._admitted.clear()

    def admitted(self, policy: NodePolicy, gate: Gate) -> int:
        """Return the shapes that a node's policy, RAM and cores admit."""
        bits = self._admitted.get((policy, gate))
        if bits is None:
            (ram, cores), lists = gate, self._known.host_lists
            bits = self._admitted[policy, gate] = self._bits(
                lambda shape: shape.ram_bytes <= ram and shape.cores <= cores and allows(shape, policy, lists)
            )
        return bits

    def alone(self, pool: AlonePool, idle: IdleDevices) -> int:
        """Return the shapes for which these idle devices suffice."""
        bits = self._alone.get(idle)
        if bits is None:
            bits = self._alone[idle] = self._bits(lambda shape: score_alone(shape, pool.kinds, idle) > 0)
        return bits

    def shared(self, kind: DeviceKind, room_bytes: int) -> int:
        """Return the shapes that may share a device with this much free memory."""
        left = amount_at(self._known.vram_amounts, room_bytes)
        bits = self._shared.get((kind, left))
        if bits is None:
            bits = self._shared[kind, left] = self._bits(
                lambda shape: shape.vram_bytes <= left and _may_share(shape, kind)
            )
        return bits

    def beside(self, kind: DeviceKind, base: Base, room_bytes: int) -> int:
        """Return the shapes that may share a device with this much free memory and their base model on it."""
        left = amount_at(self._known.vram_amounts, room_bytes)
        bits = self._beside.get((kind, base, left))
        if bits is None:
            bits = self._beside[kind, base, left] = self._bits(_on_base(kind, base, left))
        return bits

    def _bits(self, holds: Callable[[PlacementShape], bool]) -> int:
        return sum(1 << number for number, shape in enumerate(self._shapes) if holds(shape))


def allows(shape: PlacementShape, policy: NodePolicy, lists: dict[frozenset[str], int]) -> bool:
    """Return True if nodes with this policy take jobs of the shape at all."""
    if shape.allowed_hosts and not policy.hosts & lists[shape.allowed_hosts]:
        return False
    return list_block(shape, allow_jobs=policy.allow_jobs, deny_jobs=policy.deny_jobs) is None


def score_alone(shape: PlacementShape, kinds: tuple[DeviceKind, ...], idle: IdleDevices) -> float:
    """Return the score of the worst idle device that the job would get on a node; 0 if they are too few."""
    missing = shape.device_count
    if missing > idle.slots or not shape.takes_devices:
        return 0.0
    found = []
    for kind, amounts in zip(kinds, idle.amounts, strict=True):
        is_shared, score = terms_of(shape, kind)
        if score and not is_shared:
            found.append((score, sum(1 for amount in amounts if amount >= shape.vram_bytes)))
    for score, count in sorted(found, reverse=True):
        missing -= count
        if count and missing <= 0:
            return score
    return 0.0


def terms_of(shape: PlacementShape, kind: DeviceKind) -> tuple[bool, float]:
    """Return whether a job shares devices of this kind, and their score if it has them alone; 0 if it can't."""
    if kind.backend is not shape.backend:
        return False, 0.0
    if shares(shape, kind):
        return True, 0.0
    fits = shape.vram_bytes <= kind.total_bytes
    return False, alone_score(shape.vram_bytes, kind.total_bytes, kind.speed) if fits else 0.0


def amount_at(amounts: list[float], left: float) -> float:
    """Return the largest of the amounts that is left; -1 if less than all of them is."""
    place = bisect_right(amounts, left)
    return amounts[place - 1] if place else -1


def _on_base(kind: DeviceKind, base: Base, left: float) -> Callable[[PlacementShape], bool]:
    def holds(shape: PlacementShape) -> bool:
        is_same = (shape.base, shape.base_bytes) == base
        return is_same and shape.increment_bytes <= left and _may_share(shape, kind)

    return holds


def _may_share(shape: PlacementShape, kind: DeviceKind) -> bool:
    return shape.takes_devices and shape.backend is kind.backend and shares(shape, kind)
