"""Pools: nodes that are alike but for what is left of them.

What makes placing cheap: within one pool the order of places hardly depends on the shape. For jobs alone on their
devices nodes are equal that have equally many idle ones; where memory is shared, and on the CPU, more room is better
among places with equally many jobs. So a pool is a shelf of equal nodes, or a few ladders, each looked at from the top.
"""

from __future__ import annotations

from stoker.model.devices import Backend
from stoker.scheduler.fit import list_block, shares
from stoker.scheduler.offers import Sharing
from stoker.scheduler.score import alone_score
from stoker.scheduler.shapes import Shape
from stoker.scheduler.shelves import Ladders, Shelf

Base = tuple[str, int]
"""A base model and its size."""
Amounts = tuple[tuple[float, ...], ...]


class Policy:
    """What nodes allow, and which lists of hosts they are in. Equal policies are one object."""

    __slots__ = ("allow_jobs", "deny_jobs", "hosts", "priority")

    def __init__(self, allow_jobs: tuple[str, ...], deny_jobs: tuple[str, ...], priority: int, hosts: int) -> None:
        self.allow_jobs = allow_jobs
        self.deny_jobs = deny_jobs
        self.priority = priority
        self.hosts = hosts
        """Which lists of hosts name the node: a bit for each."""


class DeviceKind:
    """Devices that only differ in what is left of them. Equal kinds are one object."""

    __slots__ = ("backend", "sharing", "speed", "total_bytes", "usable_bytes")

    def __init__(self, backend: Backend, total_bytes: int, usable_bytes: int, speed: float, sharing: Sharing) -> None:
        self.backend = backend
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes
        self.speed = speed
        self.sharing = sharing


class Idle:
    """A node's idle devices: for each kind what each of them admits, the most first. Equal ones are one object."""

    __slots__ = ("amounts", "slots")

    def __init__(self, amounts: Amounts, slots: int) -> None:
        self.amounts = amounts
        self.slots = slots
        """How many of them may be taken."""


class AlonePool:
    """Nodes with devices of the same kinds under one policy, for jobs that have their devices alone."""

    __slots__ = ("_idle", "kinds", "nodes", "policy")

    def __init__(self, policy: Policy, kinds: tuple[DeviceKind, ...]) -> None:
        self.policy = policy
        self.kinds = kinds
        self.nodes: Shelf[Idle] = Shelf()
        """By what is idle."""
        self._idle: dict[tuple[int, Amounts], Idle] = {}

    def idle(self, amounts: Amounts, slots: int) -> Idle:
        """Give the one object that says this."""
        found = self._idle.get((slots, amounts))
        if found is None:
            found = self._idle[slots, amounts] = Idle(amounts, slots)
        return found


class SharedPool:
    """Devices of one kind under one policy, for jobs that share."""

    __slots__ = ("beside", "kind", "policy", "room")

    def __init__(self, policy: Policy, kind: DeviceKind) -> None:
        self.policy = policy
        self.kind = kind
        self.room = Ladders()
        """By the memory that is left."""
        self.beside: dict[Base, Ladders] = {}
        """The same, of those of its devices that have a base model on them."""

    def beside_base(self, base: Base) -> Ladders:
        found = self.beside.get(base)
        if found is None:
            found = self.beside[base] = Ladders()
        return found


class CpuPool:
    """CPUs of nodes under one policy."""

    __slots__ = ("has_devices", "is_known", "left", "most_slices", "policy")

    def __init__(self, policy: Policy, *, has_devices: bool, is_known: bool) -> None:
        self.policy = policy
        self.has_devices = has_devices
        self.is_known = is_known
        """Whether anybody knows how much RAM or how many cores they have."""
        self.left = Ladders()
        """By the slices that are left."""
        self.most_slices = 0.0
        """More than this is left on none of them."""


def allows(shape: Shape, policy: Policy, lists: dict[frozenset[str], int]) -> bool:
    """Say whether nodes under a policy take jobs of a shape at all."""
    if shape.allowed_hosts and not policy.hosts & lists[shape.allowed_hosts]:
        return False
    return list_block(shape, allow_jobs=policy.allow_jobs, deny_jobs=policy.deny_jobs) is None


def score_alone(shape: Shape, kinds: tuple[DeviceKind, ...], idle: Idle) -> float:
    """Score a node by its idle devices, the worst of those that the job would get; zero if they are too few."""
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


def terms_of(shape: Shape, kind: DeviceKind) -> tuple[bool, float]:
    """Say whether a job shares devices of this kind, and how good they are if it has them alone; zero: never."""
    if kind.backend is not shape.backend:
        return False, 0.0
    if shares(shape, kind):
        return True, 0.0
    fits = shape.vram_bytes <= kind.total_bytes
    return False, alone_score(shape.vram_bytes, kind.total_bytes, kind.speed) if fits else 0.0
