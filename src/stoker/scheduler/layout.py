"""The layout: the position of each node in the cells of its pools, updated as jobs start and end.

A job that starts or ends moves one node, and not before the next search: callers that only query single nodes do not
pay for it. A shape with an amount or a host list that no shape had before moves the nodes that it distinguishes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from math import inf
from typing import Any

from stoker.scheduler.fit import DeviceUsage, NodeUsage, PlacementShape, room_bytes, slices_left
from stoker.scheduler.pools import (
    AlonePool,
    Amounts,
    CellIndex,
    CpuPool,
    DeviceKind,
    Gate,
    IdleDevices,
    KnownShapes,
    NodePolicy,
    ShapeMasks,
    SharedPool,
    amount_at,
)
from stoker.scheduler.score import slices_of

Place = tuple[CellIndex[Any], Any]
"""An index of a pool, and the cell of a node in it."""


class NodeCells:
    """A node's pools, which are fixed, and its cells in them, which change."""

    __slots__ = ("alone", "cpu", "gate", "groups", "is_bare", "is_current", "is_shelved", "policy", "seat", "shelved")

    def __init__(self, seat: NodeUsage, policy: NodePolicy, cpu: CpuPool) -> None:
        self.seat = seat
        self.policy = policy
        self.cpu = cpu
        self.alone: AlonePool | None = None
        self.groups: list[tuple[SharedPool, list[DeviceUsage]]] = []
        self.gate: Gate = (-1, -1)
        self.is_current = False
        """True if `gate` is up to date."""
        self.shelved: tuple[Gate, list[Place]] = self.gate, []
        """Its cells as of the last `settle`."""
        self.is_shelved = True
        self.is_bare = True
        """In one of its possible cells no known shape could start, so it is not in that cell."""


class CellLayout:
    """All nodes in their cells. Cells in which no known shape could start stay empty."""

    def __init__(self) -> None:
        self.known = KnownShapes()
        self.homes: dict[int, NodeCells] = {}
        self.alone_pools: dict[tuple[NodePolicy, tuple[DeviceKind, ...]], AlonePool] = {}
        self.shared_pools: dict[tuple[NodePolicy, DeviceKind], SharedPool] = {}
        self.cpu_pools: dict[tuple[NodePolicy, bool, bool], CpuPool] = {}
        self._masks = ShapeMasks(self.known)
        self._policies: dict[tuple[Any, ...], NodePolicy] = {}
        self._kinds: dict[tuple[Any, ...], DeviceKind] = {}
        self._has_learned = False
        self._unshelved: dict[int, NodeCells] = {}

    @property
    def version(self) -> int:
        """The number of pools; it changes when a pool is added."""
        return len(self.alone_pools) + len(self.shared_pools) + len(self.cpu_pools)

    def learn(self, shape: PlacementShape) -> None:
        """Distinguish nodes by what this shape requires."""
        self._masks.add(shape)
        self._has_learned = True
        for hosts in self.known.learn(shape):
            for home in [one for one in self.homes.values() if one.seat.node in hosts]:
                self.leave(home.seat)
                self.enter(home.seat)

    def settle(self) -> None:
        """Move every changed node to its cells."""
        if self._has_learned:
            self._recheck()
        for home in self._unshelved.values():
            self._shelve(home)
        self._unshelved.clear()

    def changed(self, home: NodeCells) -> None:
        """Mark a node after a job started or ended; the next search moves it."""
        home.is_current = False
        if home.is_shelved:
            home.is_shelved = False
            self._unshelved[home.seat.order] = home

    def current(self, home: NodeCells) -> NodeCells:
        """Update what a node admits, if it is out of date; return the same home."""
        if self._has_learned:
            self._recheck()
        if not home.is_current:
            home.gate = self._gate(home.seat)
            home.is_current = True
        return home

    def fitting(self, home: NodeCells) -> int:
        """Return the shapes of which a job could start on this node now, a bit for each in the order of `learn`."""
        seat, masks = home.seat, self._masks
        slots = seat.slots - seat.slots_held
        if seat.closed or (slots < 1 and not seat.is_slot_per_device):
            return 0
        if self._has_learned or not home.is_current:
            self.current(home)
        fits = 0
        if slots > 0:
            fits = masks.on_cpu
            idle = None if home.alone is None else idle_on(home, home.alone, slots)
            if home.alone is not None and idle is not None:
                fits |= masks.alone(home.alone, idle)
        for pool, devices in home.groups:
            kind = pool.kind
            if self.known.is_shared(kind):
                for device in devices:
                    if not device.is_held and takes_sharers(device, has_slots=slots > 0):
                        if device.bits_version != masks.version:
                            self._find_bits(kind, device)
                        fits |= device.bits
        return fits and fits & masks.admitted(home.policy, home.gate)

    def beside(self, home: NodeCells) -> int:
        """Return those of `fitting` that would be placed beside their base model."""
        self.current(home)
        seat, masks = home.seat, self._masks
        has_slots = seat.slots > seat.slots_held
        if seat.closed or not (has_slots or seat.is_slot_per_device):
            return 0
        fits = 0
        for pool, devices in home.groups:
            for device in devices:
                if device.bases and takes_sharers(device, has_slots=has_slots):
                    if device.bits_version != masks.version:
                        self._find_bits(pool.kind, device)
                    fits |= device.beside_bits
        return fits and fits & masks.admitted(home.policy, home.gate)

    def state(self, home: NodeCells) -> Hashable:
        """Return everything that decides which shapes fit a node now."""
        self.current(home)
        seat = home.seat
        return (
            home.policy,
            home.gate,
            seat.slots - seat.slots_held,
            seat.is_slot_per_device,
            tuple([(pool.kind, tuple(map(self._state, devices))) for pool, devices in home.groups]),
        )

    def _state(self, device: DeviceUsage) -> Hashable:
        left = amount_at(self.known.vram_amounts, max(0, room_bytes(device)))
        taken = device.slots is not None and device.jobs >= device.slots
        bases = frozenset(device.bases) if device.bases else None
        return min(device.jobs, 1), device.is_held, bool(device.closed), device.admits, left, taken, bases

    def _find_bits(self, kind: DeviceKind, device: DeviceUsage) -> None:
        """Compute which shapes could share a device. Needed after a job started or ended or a shape was learned."""
        masks, room = self._masks, room_bytes(device)
        beside = 0
        for base in device.bases:
            beside |= masks.beside(kind, base, room)
        device.beside_bits = beside
        device.bits = beside | masks.shared(kind, room)
        device.bits_version = masks.version

    def enter(self, seat: NodeUsage) -> None:
        """Add a node."""
        hosts = sum(bit for names, bit in self.known.host_lists.items() if seat.node in names)
        policy = self._policy(seat.allow_jobs, seat.deny_jobs, seat.priority, hosts)
        home = self.homes[seat.order] = NodeCells(seat, policy, self._cpu_pool(policy, seat))
        by_kind: dict[DeviceKind, list[DeviceUsage]] = {}
        for device in seat.devices:
            device.admits = amount_at(self.known.vram_amounts, device.whole_bytes)
            by_kind.setdefault(self._kind(device), []).append(device)
        if by_kind:
            home.alone = self._alone_pool(policy, tuple(by_kind))
            home.groups = [(self._shared_pool(policy, kind), devices) for kind, devices in by_kind.items()]
        self.changed(home)

    def copy(self, home: NodeCells, seat: NodeUsage) -> NodeCells:
        """Return a home for a copy of its node, without adding it."""
        made = NodeCells(seat, home.policy, home.cpu)
        made.alone = home.alone
        for device, copied in zip(home.seat.devices, seat.devices, strict=True):
            copied.admits = device.admits
        if len(home.groups) == 1:
            made.groups = [(home.groups[0][0], seat.devices)]
        else:
            copies = {id(of): copied for of, copied in zip(home.seat.devices, seat.devices, strict=True)}
            made.groups = [(pool, [copies[id(device)] for device in devices]) for pool, devices in home.groups]
        return made

    def measured(self, home: NodeCells) -> None:
        """Mark a node after a measurement changed its capacity."""
        seat = home.seat
        home.cpu = self._cpu_pool(home.policy, seat)
        for device in seat.devices:
            device.admits = amount_at(self.known.vram_amounts, device.whole_bytes)
        self.changed(home)

    def leave(self, seat: NodeUsage) -> None:
        """Remove a node."""
        home = self.homes.pop(seat.order)
        gate, places = home.shelved
        for index, at in places:
            index.remove(at, gate, seat.order)
        self._unshelved.pop(seat.order, None)

    def _recheck(self) -> None:
        """Mark the nodes whose cells change because of shapes learned since."""
        self._has_learned = False
        amounts = self.known.vram_amounts
        for home in self.homes.values():
            is_other = home.is_bare or self._gate(home.seat) != home.gate
            for device in home.seat.devices:
                admits = amount_at(amounts, device.whole_bytes)
                is_other |= admits != device.admits
                device.admits = admits
            if is_other:
                self.changed(home)

    def _gate(self, seat: NodeUsage) -> Gate:
        # As `ram_left` and `cores_left`; the smallest amount is 0. It is asked for every decision.
        ram, cores = self.known.ram_amounts, self.known.core_amounts
        ram_bytes = inf if seat.ram_bytes is None else seat.ram_bytes - seat.ram_held_bytes
        cores_left = inf if seat.cores is None else seat.cores - seat.cores_held
        return (
            ram[bisect_right(ram, ram_bytes) - 1] if ram_bytes > 0 else 0,
            cores[bisect_right(cores, cores_left) - 1] if cores_left > 0 else 0,
        )

    def _shelve(self, home: NodeCells) -> None:
        self.current(home)
        order = home.seat.order
        gate, places = home.gate, [] if home.seat.closed or home.seat.is_hidden else self._places(home)
        old_gate, old_places = home.shelved
        gone, come = old_places, places
        if gate == old_gate:
            # Cells that stay the same are not touched.
            gone = [place for place in old_places if place not in places]
            come = [place for place in places if place not in old_places]
        for index, at in gone:
            index.remove(at, old_gate, order)
        for index, at in come:
            index.add(at, gate, order)
        home.shelved = gate, places
        home.is_shelved = True

    def _places(self, home: NodeCells) -> list[Place]:
        seat, masks = home.seat, self._masks
        slots = seat.slots - seat.slots_held
        admitted = masks.admitted(home.policy, home.gate)
        places: list[Place] = []
        home.is_bare = False
        if slots > 0:
            if masks.on_cpu & admitted:
                places.append((home.cpu.left.at(seat.jobs), slices_left(seat) or 0.0))
            else:
                home.is_bare = True
            idle = None if home.alone is None else idle_on(home, home.alone, slots)
            if home.alone is not None and idle is not None:
                if masks.alone(home.alone, idle) & admitted:
                    places.append((home.alone.nodes, idle))
                else:
                    home.is_bare = True
        if slots > 0 or seat.is_slot_per_device:
            for pool, devices in home.groups:
                if self.known.is_shared(pool.kind):
                    places += self._shared_places(home, pool, devices, admitted, has_slots=slots > 0)
                else:
                    home.is_bare = True
        return places

    def _shared_places(
        self, home: NodeCells, pool: SharedPool, devices: list[DeviceUsage], admitted: int, *, has_slots: bool
    ) -> Iterable[Place]:
        kind, masks = pool.kind, self._masks
        # Equal devices of one node are there once.
        found: dict[Place, None] = {}
        for device in devices:
            if not takes_sharers(device, has_slots=has_slots):
                continue
            room = room_bytes(device)
            if masks.shared(kind, room) & admitted:
                found[pool.room.at(device.jobs), room] = None
            else:
                home.is_bare = True
            for base in device.bases:
                if masks.beside(kind, base, room) & admitted:
                    found[pool.beside_base(base).at(device.jobs), room] = None
                else:
                    home.is_bare = True
        return found

    def _policy(self, *fields: Any) -> NodePolicy:
        policy = self._policies.get(fields)
        if policy is None:
            policy = self._policies[fields] = NodePolicy(*fields)
        return policy

    def _kind(self, device: DeviceUsage) -> DeviceKind:
        fields = device.backend, device.total_bytes, device.usable_bytes, device.speed, device.sharing
        kind = self._kinds.get(fields)
        if kind is None:
            kind = self._kinds[fields] = DeviceKind(*fields)
        return kind

    def _alone_pool(self, policy: NodePolicy, kinds: tuple[DeviceKind, ...]) -> AlonePool:
        pool = self.alone_pools.get((policy, kinds))
        if pool is None:
            pool = self.alone_pools[policy, kinds] = AlonePool(policy, kinds)
        return pool

    def _shared_pool(self, policy: NodePolicy, kind: DeviceKind) -> SharedPool:
        pool = self.shared_pools.get((policy, kind))
        if pool is None:
            pool = self.shared_pools[policy, kind] = SharedPool(policy, kind)
        return pool

    def _cpu_pool(self, policy: NodePolicy, seat: NodeUsage) -> CpuPool:
        has_devices = bool(seat.devices)
        is_known = seat.ram_bytes is not None or seat.cores is not None
        pool = self.cpu_pools.get((policy, has_devices, is_known))
        if pool is None:
            pool = CpuPool(policy, has_devices=has_devices, is_known=is_known)
            self.cpu_pools[policy, has_devices, is_known] = pool
        if is_known:
            whole = slices_of(
                inf if seat.ram_bytes is None else seat.ram_bytes, inf if seat.cores is None else seat.cores
            )
            pool.most_slices = max(pool.most_slices, whole or 0.0)
        return pool


def idle_on(home: NodeCells, pool: AlonePool, slots: int) -> IdleDevices | None:
    """Return the idle devices of a node with this many free slots; `None` if there are none."""
    groups = home.groups
    if len(groups) == 1:
        amounts: Amounts = (_idle_amounts(groups[0][1]),)
        count = len(amounts[0])
    else:
        amounts = tuple([_idle_amounts(devices) for _, devices in groups])
        count = sum(map(len, amounts))
    if not count:
        return None
    return pool.idle(amounts, min(count, slots) if home.seat.is_slot_per_device else count)


def takes_sharers(device: DeviceUsage, *, has_slots: bool) -> bool:
    """Return True if a device takes another job that shares it, regardless of memory."""
    if device.is_held or device.closed or not (has_slots or device.jobs):
        return False
    return device.slots is None or device.jobs < device.slots


def _idle_amounts(devices: list[DeviceUsage]) -> tuple[float, ...]:
    idle = [device.admits for device in devices if not device.jobs and not device.closed]
    if len(idle) > 1:
        idle.sort(reverse=True)
    return tuple(idle)
