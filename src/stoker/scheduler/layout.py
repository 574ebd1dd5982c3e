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

CellPlace = tuple[CellIndex[Any], Any]
"""An index of a pool, and the cell of a node in it."""


class NodeCells:
    """A node's pools, which are fixed, and its cells in them, which change."""

    __slots__ = ("alone", "cpu", "gate", "groups", "is_bare", "is_current", "is_shelved", "policy", "shelved", "usage")

    def __init__(self, usage: NodeUsage, policy: NodePolicy, cpu: CpuPool) -> None:
        self.usage = usage
        self.policy = policy
        self.cpu = cpu
        self.alone: AlonePool | None = None
        self.groups: list[tuple[SharedPool, list[DeviceUsage]]] = []
        self.gate: Gate = (-1, -1)
        self.is_current = False
        """True if `gate` is up to date."""
        self.shelved: tuple[Gate, list[CellPlace]] = self.gate, []
        """Its cells as of the last `settle`."""
        self.is_shelved = True
        self.is_bare = True
        """In one of its possible cells no known shape could start, so it is not in that cell."""


class CellLayout:
    """All nodes in their cells. Cells in which no known shape could start stay empty."""

    def __init__(self) -> None:
        self.known = KnownShapes()
        self.node_cells: dict[int, NodeCells] = {}
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
            for cells in [one for one in self.node_cells.values() if one.usage.node in hosts]:
                self.leave(cells.usage)
                self.enter(cells.usage)

    def settle(self) -> None:
        """Move every changed node to its cells."""
        if self._has_learned:
            self._recheck()
        for cells in self._unshelved.values():
            self._shelve(cells)
        self._unshelved.clear()

    def changed(self, cells: NodeCells) -> None:
        """Mark a node after a job started or ended; the next search moves it."""
        cells.is_current = False
        if cells.is_shelved:
            cells.is_shelved = False
            self._unshelved[cells.usage.order] = cells

    def current(self, cells: NodeCells) -> NodeCells:
        """Update what a node admits, if it is out of date; return the same cells."""
        if self._has_learned:
            self._recheck()
        if not cells.is_current:
            cells.gate = self._gate(cells.usage)
            cells.is_current = True
        return cells

    def fitting(self, cells: NodeCells) -> int:
        """Return the shapes of which a job could start on this node now, a bit for each in the order of `learn`."""
        usage, masks = cells.usage, self._masks
        slots = usage.slots - usage.slots_held
        if usage.closed or (slots < 1 and not usage.is_slot_per_device):
            return 0
        if self._has_learned or not cells.is_current:
            self.current(cells)
        fits = 0
        if slots > 0:
            fits = masks.on_cpu
            idle = None if cells.alone is None else idle_on(cells, cells.alone, slots)
            if cells.alone is not None and idle is not None:
                fits |= masks.alone(cells.alone, idle)
        for pool, devices in cells.groups:
            kind = pool.kind
            if self.known.is_shared(kind):
                for device in devices:
                    if not device.is_held and takes_sharers(device, has_slots=slots > 0):
                        if device.bits_version != masks.version:
                            self._find_bits(kind, device)
                        fits |= device.bits
        return fits and fits & masks.admitted(cells.policy, cells.gate)

    def beside(self, cells: NodeCells) -> int:
        """Return those of `fitting` that would be placed beside their base model."""
        self.current(cells)
        usage, masks = cells.usage, self._masks
        has_slots = usage.slots > usage.slots_held
        if usage.closed or not (has_slots or usage.is_slot_per_device):
            return 0
        fits = 0
        for pool, devices in cells.groups:
            for device in devices:
                if device.bases and takes_sharers(device, has_slots=has_slots):
                    if device.bits_version != masks.version:
                        self._find_bits(pool.kind, device)
                    fits |= device.beside_bits
        return fits and fits & masks.admitted(cells.policy, cells.gate)

    def state(self, cells: NodeCells) -> Hashable:
        """Return everything that decides which shapes fit a node now."""
        self.current(cells)
        usage = cells.usage
        return (
            cells.policy,
            cells.gate,
            usage.slots - usage.slots_held,
            usage.is_slot_per_device,
            tuple([(pool.kind, tuple(map(self._state, devices))) for pool, devices in cells.groups]),
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

    def enter(self, usage: NodeUsage) -> None:
        """Add a node."""
        hosts = sum(bit for names, bit in self.known.host_lists.items() if usage.node in names)
        policy = self._policy(usage.allow_jobs, usage.deny_jobs, usage.priority, hosts)
        cells = self.node_cells[usage.order] = NodeCells(usage, policy, self._cpu_pool(policy, usage))
        by_kind: dict[DeviceKind, list[DeviceUsage]] = {}
        for device in usage.devices:
            device.admits = amount_at(self.known.vram_amounts, device.whole_bytes)
            by_kind.setdefault(self._kind(device), []).append(device)
        if by_kind:
            cells.alone = self._alone_pool(policy, tuple(by_kind))
            cells.groups = [(self._shared_pool(policy, kind), devices) for kind, devices in by_kind.items()]
        self.changed(cells)

    def copy(self, cells: NodeCells, usage: NodeUsage) -> NodeCells:
        """Return a cells for a copy of its node, without adding it."""
        made = NodeCells(usage, cells.policy, cells.cpu)
        made.alone = cells.alone
        for device, copied in zip(cells.usage.devices, usage.devices, strict=True):
            copied.admits = device.admits
        if len(cells.groups) == 1:
            made.groups = [(cells.groups[0][0], usage.devices)]
        else:
            copies = {id(of): copied for of, copied in zip(cells.usage.devices, usage.devices, strict=True)}
            made.groups = [(pool, [copies[id(device)] for device in devices]) for pool, devices in cells.groups]
        return made

    def measured(self, cells: NodeCells) -> None:
        """Mark a node after a measurement changed its capacity."""
        usage = cells.usage
        cells.cpu = self._cpu_pool(cells.policy, usage)
        for device in usage.devices:
            device.admits = amount_at(self.known.vram_amounts, device.whole_bytes)
        self.changed(cells)

    def leave(self, usage: NodeUsage) -> None:
        """Remove a node."""
        cells = self.node_cells.pop(usage.order)
        gate, places = cells.shelved
        for index, at in places:
            index.remove(at, gate, usage.order)
        self._unshelved.pop(usage.order, None)

    def _recheck(self) -> None:
        """Mark the nodes whose cells change because of shapes learned since."""
        self._has_learned = False
        amounts = self.known.vram_amounts
        for cells in self.node_cells.values():
            is_other = cells.is_bare or self._gate(cells.usage) != cells.gate
            for device in cells.usage.devices:
                admits = amount_at(amounts, device.whole_bytes)
                is_other |= admits != device.admits
                device.admits = admits
            if is_other:
                self.changed(cells)

    def _gate(self, usage: NodeUsage) -> Gate:
        # As `ram_left` and `cores_left`; the smallest amount is 0. It is asked for every decision.
        ram, cores = self.known.ram_amounts, self.known.core_amounts
        ram_bytes = inf if usage.ram_bytes is None else usage.ram_bytes - usage.ram_held_bytes
        cores_left = inf if usage.cores is None else usage.cores - usage.cores_held
        return (
            ram[bisect_right(ram, ram_bytes) - 1] if ram_bytes > 0 else 0,
            cores[bisect_right(cores, cores_left) - 1] if cores_left > 0 else 0,
        )

    def _shelve(self, cells: NodeCells) -> None:
        self.current(cells)
        order = cells.usage.order
        gate, places = cells.gate, [] if cells.usage.closed or cells.usage.is_hidden else self._places(cells)
        old_gate, old_places = cells.shelved
        gone, come = old_places, places
        if gate == old_gate:
            # Cells that stay the same are not touched.
            gone = [place for place in old_places if place not in places]
            come = [place for place in places if place not in old_places]
        for index, at in gone:
            index.remove(at, old_gate, order)
        for index, at in come:
            index.add(at, gate, order)
        cells.shelved = gate, places
        cells.is_shelved = True

    def _places(self, cells: NodeCells) -> list[CellPlace]:
        usage, masks = cells.usage, self._masks
        slots = usage.slots - usage.slots_held
        admitted = masks.admitted(cells.policy, cells.gate)
        places: list[CellPlace] = []
        cells.is_bare = False
        if slots > 0:
            if masks.on_cpu & admitted:
                places.append((cells.cpu.left.at(usage.jobs), slices_left(usage) or 0.0))
            else:
                cells.is_bare = True
            idle = None if cells.alone is None else idle_on(cells, cells.alone, slots)
            if cells.alone is not None and idle is not None:
                if masks.alone(cells.alone, idle) & admitted:
                    places.append((cells.alone.nodes, idle))
                else:
                    cells.is_bare = True
        if slots > 0 or usage.is_slot_per_device:
            for pool, devices in cells.groups:
                if self.known.is_shared(pool.kind):
                    places += self._shared_places(cells, pool, devices, admitted, has_slots=slots > 0)
                else:
                    cells.is_bare = True
        return places

    def _shared_places(
        self, cells: NodeCells, pool: SharedPool, devices: list[DeviceUsage], admitted: int, *, has_slots: bool
    ) -> Iterable[CellPlace]:
        kind, masks = pool.kind, self._masks
        # Equal devices of one node are there once.
        found: dict[CellPlace, None] = {}
        for device in devices:
            if not takes_sharers(device, has_slots=has_slots):
                continue
            room = room_bytes(device)
            if masks.shared(kind, room) & admitted:
                found[pool.room.at(device.jobs), room] = None
            else:
                cells.is_bare = True
            for base in device.bases:
                if masks.beside(kind, base, room) & admitted:
                    found[pool.beside_base(base).at(device.jobs), room] = None
                else:
                    cells.is_bare = True
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

    def _cpu_pool(self, policy: NodePolicy, usage: NodeUsage) -> CpuPool:
        has_devices = bool(usage.devices)
        is_known = usage.ram_bytes is not None or usage.cores is not None
        pool = self.cpu_pools.get((policy, has_devices, is_known))
        if pool is None:
            pool = CpuPool(policy, has_devices=has_devices, is_known=is_known)
            self.cpu_pools[policy, has_devices, is_known] = pool
        if is_known:
            whole = slices_of(
                inf if usage.ram_bytes is None else usage.ram_bytes, inf if usage.cores is None else usage.cores
            )
            pool.most_slices = max(pool.most_slices, whole or 0.0)
        return pool


def idle_on(cells: NodeCells, pool: AlonePool, slots: int) -> IdleDevices | None:
    """Return the idle devices of a node with this many free slots; `None` if there are none."""
    groups = cells.groups
    if len(groups) == 1:
        amounts: Amounts = (_idle_amounts(groups[0][1]),)
        count = len(amounts[0])
    else:
        amounts = tuple([_idle_amounts(devices) for _, devices in groups])
        count = sum(map(len, amounts))
    if not count:
        return None
    return pool.idle(amounts, min(count, slots) if cells.usage.is_slot_per_device else count)


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
