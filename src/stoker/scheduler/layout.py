"""The layout: in which places of which pools each node stands, kept true as jobs come and go.

A job that comes or goes moves one node, and not before somebody searches: whoever only asks about single nodes does
not pay for it. A shape that asks for an amount nobody asked for before, or for hosts by a list nobody used before,
moves the nodes that it tells apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from typing import Any

from stoker.scheduler.fit import cores_left, ram_left, room_bytes, slices_left
from stoker.scheduler.known import Known
from stoker.scheduler.masks import Masks
from stoker.scheduler.node_state import DeviceUsage, NodeUsage
from stoker.scheduler.pools import AlonePool, Amounts, CpuPool, DeviceKind, Idle, Policy, SharedPool
from stoker.scheduler.score import slices_of
from stoker.scheduler.shapes import Shape
from stoker.scheduler.shelves import Gate, Shelf, amount_at

Place = tuple[Shelf[Any], Any]
"""A shelf of a pool, and where on it a node stands."""


class Home:
    """A node's pools, which stay, and where it belongs in them, which changes."""

    __slots__ = ("alone", "cpu", "gate", "groups", "is_bare", "is_current", "is_shelved", "policy", "seat", "shelved")

    def __init__(self, seat: NodeUsage, policy: Policy, cpu: CpuPool) -> None:
        self.seat = seat
        self.policy = policy
        self.cpu = cpu
        self.alone: AlonePool | None = None
        self.groups: list[tuple[SharedPool, list[DeviceUsage]]] = []
        self.gate: Gate = (-1, -1)
        self.is_current = False
        """Whether `gate` is so now."""
        self.shelved: tuple[Gate, list[Place]] = self.gate, []
        """Where it was put last."""
        self.is_shelved = True
        self.is_bare = True
        """Somewhere it could stand, no shape that was known could start."""


class Layout:
    """All nodes in their places. Where no shape that is known could start, no node stands."""

    def __init__(self) -> None:
        self.known = Known()
        self.homes: dict[int, Home] = {}
        self.alone_pools: dict[tuple[Policy, tuple[DeviceKind, ...]], AlonePool] = {}
        self.shared_pools: dict[tuple[Policy, DeviceKind], SharedPool] = {}
        self.cpu_pools: dict[tuple[Policy, bool, bool], CpuPool] = {}
        self._masks = Masks(self.known)
        self._policies: dict[tuple[Any, ...], Policy] = {}
        self._kinds: dict[tuple[Any, ...], DeviceKind] = {}
        self._has_learned = False
        self._unshelved: dict[int, Home] = {}

    @property
    def version(self) -> int:
        """Which pools there are: a new one makes another number."""
        return len(self.alone_pools) + len(self.shared_pools) + len(self.cpu_pools)

    def learn(self, shape: Shape) -> None:
        """Tell nodes apart by what this shape asks for."""
        self._masks.add(shape)
        self._has_learned = True
        for hosts in self.known.learn(shape):
            for home in [one for one in self.homes.values() if one.seat.node in hosts]:
                self.leave(home.seat)
                self.enter(home.seat)

    def settle(self) -> None:
        """Put every node that changed where it belongs now."""
        if self._has_learned:
            self._look_again()
        for home in self._unshelved.values():
            self._shelve(home)
        self._unshelved.clear()

    def changed(self, home: Home) -> None:
        """Note that a job came or went; the node is moved when somebody searches."""
        home.is_current = False
        if home.is_shelved:
            home.is_shelved = False
            self._unshelved[home.seat.order] = home

    def current(self, home: Home) -> Home:
        """Find out what a node admits now."""
        if self._has_learned:
            self._look_again()
        if not home.is_current:
            home.gate = self._gate(home.seat)
            home.is_current = True
        return home

    def fitting(self, home: Home) -> int:
        """Give the shapes of which a job could start on this node now, a bit for each in the order of learning."""
        self.current(home)
        seat, masks = home.seat, self._masks
        slots = seat.slots - seat.slots_held
        if seat.closed or (slots < 1 and not seat.is_slot_per_device):
            return 0
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
                    if takes_sharers(device, has_slots=slots > 0):
                        if device.bits_version != masks.version:
                            self._find_bits(kind, device)
                        fits |= device.bits
        return fits and fits & masks.admitted(home.policy, home.gate)

    def beside(self, home: Home) -> int:
        """Give those of `fitting` that would be put beside their base model."""
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

    def state(self, home: Home) -> Hashable:
        """Give everything that decides what fits a node now."""
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
        """Work out which shapes could share a device: only where a job came or went, or a shape was learned."""
        masks, room = self._masks, room_bytes(device)
        beside = 0
        for base in device.bases:
            beside |= masks.beside(kind, base, room)
        device.beside_bits = beside
        device.bits = beside | masks.shared(kind, room)
        device.bits_version = masks.version

    def enter(self, seat: NodeUsage) -> None:
        """Take a node in."""
        home = self.homes[seat.order] = self.as_if(seat)
        self.changed(home)

    def as_if(self, seat: NodeUsage) -> Home:
        """Give a home for a seat without letting it stand anywhere: what would be so if it did."""
        hosts = sum(bit for names, bit in self.known.host_lists.items() if seat.node in names)
        policy = self._policy(seat.allow_jobs, seat.deny_jobs, seat.priority, hosts)
        home = Home(seat, policy, self._cpu_pool(policy, seat))
        by_kind: dict[DeviceKind, list[DeviceUsage]] = {}
        for device in seat.devices:
            device.admits = amount_at(self.known.vram_amounts, device.whole_bytes)
            by_kind.setdefault(self._kind(device), []).append(device)
        if by_kind:
            home.alone = self._alone_pool(policy, tuple(by_kind))
            home.groups = [(self._shared_pool(policy, kind), devices) for kind, devices in by_kind.items()]
        return home

    def measured(self, home: Home) -> None:
        """Note that a node was measured, and has more or less than before."""
        seat = home.seat
        home.cpu = self._cpu_pool(home.policy, seat)
        for device in seat.devices:
            device.admits = amount_at(self.known.vram_amounts, device.whole_bytes)
        self.changed(home)

    def leave(self, seat: NodeUsage) -> None:
        """Let a node go."""
        home = self.homes.pop(seat.order)
        gate, places = home.shelved
        for shelf, at in places:
            shelf.remove(at, gate, seat.order)
        self._unshelved.pop(seat.order, None)

    def _look_again(self) -> None:
        """Judge nodes by what shapes ask for now; those stay for which that changes nothing."""
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
        known = self.known
        return amount_at(known.ram_amounts, ram_left(seat)), amount_at(known.core_amounts, cores_left(seat))

    def _shelve(self, home: Home) -> None:
        self.current(home)
        order = home.seat.order
        gate, places = home.gate, [] if home.seat.closed else self._places(home)
        old_gate, old_places = home.shelved
        gone, come = old_places, places
        if gate == old_gate:
            # What stays where it was is left there.
            gone = [place for place in old_places if place not in places]
            come = [place for place in places if place not in old_places]
        for shelf, at in gone:
            shelf.remove(at, old_gate, order)
        for shelf, at in come:
            shelf.add(at, gate, order)
        home.shelved = gate, places
        home.is_shelved = True

    def _places(self, home: Home) -> list[Place]:
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
        self, home: Home, pool: SharedPool, devices: list[DeviceUsage], admitted: int, *, has_slots: bool
    ) -> Iterable[Place]:
        kind, masks = pool.kind, self._masks
        # Equal devices of one node stand there once.
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

    def _policy(self, *said: Any) -> Policy:
        policy = self._policies.get(said)
        if policy is None:
            policy = self._policies[said] = Policy(*said)
        return policy

    def _kind(self, device: DeviceUsage) -> DeviceKind:
        said = device.backend, device.total_bytes, device.usable_bytes, device.speed, device.sharing
        kind = self._kinds.get(said)
        if kind is None:
            kind = self._kinds[said] = DeviceKind(*said)
        return kind

    def _alone_pool(self, policy: Policy, kinds: tuple[DeviceKind, ...]) -> AlonePool:
        pool = self.alone_pools.get((policy, kinds))
        if pool is None:
            pool = self.alone_pools[policy, kinds] = AlonePool(policy, kinds)
        return pool

    def _shared_pool(self, policy: Policy, kind: DeviceKind) -> SharedPool:
        pool = self.shared_pools.get((policy, kind))
        if pool is None:
            pool = self.shared_pools[policy, kind] = SharedPool(policy, kind)
        return pool

    def _cpu_pool(self, policy: Policy, seat: NodeUsage) -> CpuPool:
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


def idle_on(home: Home, pool: AlonePool, slots: int) -> Idle | None:
    """Give what is idle on a node with so many free slots."""
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
    """Say whether a device takes another job that shares it, memory apart."""
    if device.is_held or device.closed or not (has_slots or device.jobs):
        return False
    return device.slots is None or device.jobs < device.slots


def _idle_amounts(devices: list[DeviceUsage]) -> tuple[float, ...]:
    idle = [device.admits for device in devices if not device.jobs and not device.closed]
    if len(idle) > 1:
        idle.sort(reverse=True)
    return tuple(idle)
