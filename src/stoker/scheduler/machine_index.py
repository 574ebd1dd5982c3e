"""All machines: what leases hold of them, and to which node type they belong.

Machines that differ in nothing but their names are of one node type: everything that is worked out about waiting work
is worked out for node types. What is measured on a machine (free memory) decides what fits there now, not its type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from stoker.core.device import GIB, MIB
from stoker.core.errors import InternalError
from stoker.core.frozen import changed
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.fit import NodeUsage, Placement, PlacementShape
from stoker.scheduler.job_types import JobType, JobTypes
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.node_tables import NodeTable, NodeTables
from stoker.scheduler.offers import MeasuredNode, NodeOffer, Sharing, idle, likeness

_RAM_STEP_BYTES = 64 * MIB
"""RAM that other programs hold changes by less all the time."""


class LeaseAllocation(NamedTuple):
    """What one live lease holds of a machine."""

    machine: str
    class_id: int
    devices: tuple[str, ...] = ()
    """UUIDs; none: it runs on the CPU."""
    is_shared: bool = False


class MachineLease:
    """A lease on a machine, and what is expected of it."""

    __slots__ = (
        "allocation", "cost_rate", "devices", "placed", "shape", "started_s", "type", "until_s", "usage_rate",
        "user", "work_rate",
    )  # fmt: skip

    def __init__(self, allocation: LeaseAllocation, job_type: JobType, shape: PlacementShape, user: str) -> None:
        self.allocation = allocation
        self.type = job_type
        self.shape = shape
        self.user = user
        self.placed: PlacedJob | None = None
        """None while the machine is not known."""
        self.started_s = 0.0
        self.until_s = 0.0
        """When it is expected to end."""
        self.cost_rate = 0.0
        """What it adds per second to the work that is left, in seconds of the fleet."""
        self.work_rate = 1.0
        """Its speed relative to a device of speed 1."""
        self.usage_rate = 0.0
        """The part of the fleet that it uses."""


class MatchableMachine:
    """One machine."""

    __slots__ = (
        "again_s",
        "asked_stamp",
        "beside_kept",
        "busy_until_s",
        "called_s",
        "closed",
        "closed_by_worker",
        "deferred",
        "drift",
        "empty",
        "ends_s",
        "ever",
        "ever_version",
        "fits",
        "fits_version",
        "free_bytes",
        "is_called",
        "is_counted",
        "is_doubted",
        "is_parked",
        "is_silent",
        "kept",
        "leases",
        "name",
        "offer",
        "refused",
        "reserved",
        "seen_bytes",
        "shares",
        "speed",
        "speeds",
        "table",
    )  # fmt: skip

    empty: NodeUsage | None
    reserved: NodeUsage | None
    beside_kept: int | None

    def __init__(
        self,
        offer: NodeOffer,
        room_bytes: int | None = None,
        drift: tuple[str, ...] = (),
        ends_s: float | None = None,
    ) -> None:
        self.name = offer.node
        self.offer = offer
        self.drift = drift
        """Where its declaration and what was detected disagree."""
        self.ends_s = ends_s
        """When it leaves; None: no end is known."""
        self.table: NodeTable
        self.seen_bytes = room_bytes
        """RAM, as it was measured last: what the machine would admit, and what our jobs were promised then."""
        self.free_bytes = [device.free_bytes for device in offer.devices]
        self.closed_by_worker: Mapping[str, str] = {}
        """What its own worker reports as closed, and why; "" is the whole machine."""
        self.closed = offer.closed
        """Why it gets nothing now."""
        self.is_doubted = self.is_silent = False
        """It declined something lately, or did not answer a call: others do not wait for it."""
        self.is_counted = False
        """Others may wait for it: it is not closed, and neither of these."""
        self.leases: list[MachineLease] = []
        self.speeds = {device.uuid: device.speed for device in offer.devices}
        self.speed = next(iter(self.speeds.values())) if len(set(self.speeds.values())) == 1 else None
        """Of all its devices, if they are alike."""
        self.shares = any(device.sharing is not Sharing.NEVER for device in offer.devices)
        self.fits, self.fits_version = 0, -1
        """The job types of which one could start here now, and what was known then; -1: something changed since."""
        self.ever, self.ever_version = 0, -1
        """The same if none of our jobs ran here."""
        self.empty = self.reserved = self.beside_kept = None
        """Its state as if none of our jobs ran here; without what it is kept for; the job types that take nothing of
        that. None: something changed since."""
        self.busy_until_s = self.called_s = 0.0
        """When the last of its jobs is expected to end; when it was last called."""
        self.kept: Any = None
        """For whom it is kept."""
        self.is_parked = self.is_called = False
        """It asked, got nothing and waits to be called; it was called, and has not asked since."""
        self.again_s: float | None = None
        """When it asks again at the latest: what it was refused for is expected to end."""
        self.asked_stamp = -1
        self.refused = self.deferred = 0
        """What fitted and was not granted when it last asked; and what a better machine that is free should have."""

    def change(self) -> None:
        """Note that what fits here now has to be found again."""
        self.fits_version = -1
        self.reserved = self.beside_kept = None

    def idle(self) -> NodeOffer:
        """Return it with nothing running on it, as it was measured last."""
        measured = self.measured()
        return changed(
            self.offer,
            ram_bytes=measured.ram_bytes,
            closed=measured.closed,
            devices=tuple(
                changed(device, free_bytes=free_bytes, closed=closed)
                for device, (free_bytes, closed) in zip(self.offer.devices, measured.devices, strict=True)
            ),
        )

    def measure(self, measured: WorkerMeasurements, held_bytes: int) -> bool:
        """Take in what its worker measured while its jobs were promised so much RAM; return whether that is news."""
        seen_bytes, free_bytes = self.seen_bytes, self.free_bytes
        room_bytes = measured.ram_available_bytes if measured.ram_room_bytes is None else measured.ram_room_bytes
        if room_bytes is not None:
            # Our own jobs have their part already.
            seen_bytes = max(0, room_bytes) // _RAM_STEP_BYTES * _RAM_STEP_BYTES + held_bytes
        if measured.free_bytes:
            free_bytes = [
                _clamped(measured.free_bytes.get(device.uuid, known), device.total_bytes)
                for device, known in zip(self.offer.devices, free_bytes, strict=True)
            ]
        if seen_bytes == self.seen_bytes and free_bytes == self.free_bytes and measured.closed == self.closed_by_worker:
            return False
        self.seen_bytes, self.free_bytes = seen_bytes, free_bytes
        self.set_closed_by_worker(measured.closed)
        return True

    def set_closed_by_worker(self, closed: Mapping[str, str]) -> None:
        """Set what the machine's own worker reports as closed."""
        self.closed_by_worker = closed
        self.closed = self.offer.closed or closed.get("", "")

    def measured(self) -> MeasuredNode:
        """Return what was measured: of RAM the smaller of what it has and what was seen."""
        known = [size for size in (self.offer.ram_bytes, self.seen_bytes) if size is not None]
        return MeasuredNode(
            min(known, default=None),
            self.closed,
            tuple(
                [
                    (free_bytes, device.closed or self.closed_by_worker.get(device.uuid, ""))
                    for device, free_bytes in zip(self.offer.devices, self.free_bytes, strict=True)
                ]
            ),
        )


def _clamped(free_bytes: int | None, total_bytes: int) -> int | None:
    return None if free_bytes is None else max(0, min(free_bytes, total_bytes)) // MIB * MIB


_MOST_LOOKED_AT = 64
_HALF = 0.5


class MachineIndex:
    """All machines."""

    def __init__(self, index: NodeIndex, types: JobTypes, tables: NodeTables) -> None:
        self.index = index
        self._types = types
        self._tables = tables
        self.machines: dict[str, MatchableMachine] = {}
        self._absent: dict[str, list[MachineLease]] = {}
        """Leases on machines that are not known now."""
        self._by_id: dict[int, MachineLease] = {}
        """All leases, by the identity of their allocations."""
        self._by_likeness: dict[Hashable, NodeTable] = {}
        self._lists: dict[frozenset[str], int] = {}
        """Lists of hosts that jobs name, a bit for each."""
        self._lists_of: dict[str, int] = {}
        self._of_type: dict[int, dict[str, MatchableMachine]] = {}
        self.totals = 0, 0, 0
        """Devices, cores and bytes of RAM of all machines."""

    @property
    def has_absent(self) -> bool:
        """Whether there are leases on machines that are not known."""
        return bool(self._absent)

    def are_enough_for(self, count: int) -> bool:
        """Return whether there are as many machines as ready jobs; of a longer queue its whole work tells more."""
        return count <= len(self.machines)

    def absent(self, name: str) -> list[MachineLease]:
        """Return the leases on a machine that is not known."""
        return self._absent.get(name, [])

    def put(self, machine: MatchableMachine) -> bool:
        """Let a machine be as it says, with what its leases hold; return whether its lists name new words."""
        known = self.machines.get(machine.name)
        leases = self._absent.pop(machine.name, [])
        if known is not None:
            leases = known.leases
            self._uncount(known)
            machine.is_doubted, machine.is_silent = known.is_doubted, known.is_silent
            machine.kept = known.kept
            machine.set_closed_by_worker(known.closed_by_worker)
            self._add_totals(known, -1)
        machine.leases = leases
        machine.busy_until_s = _last_end_s(leases)
        self.machines[machine.name] = machine
        self._add_totals(machine, 1)
        self._count(machine)
        has_new_words = self.index.put(machine.idle())
        for lease in leases:
            self._occupy(lease)
        return has_new_words

    def remove(self, name: str) -> MatchableMachine | None:
        """Forget a machine; its leases are remembered until they end."""
        machine = self.machines.pop(name, None)
        if machine is None:
            return None
        self._uncount(machine)
        self._add_totals(machine, -1)
        self.index.remove(name)
        for lease in machine.leases:
            lease.placed = None
        if machine.leases:
            self._absent[name] = machine.leases
        return machine

    def learn_hosts(self, shape: PlacementShape) -> list[tuple[MatchableMachine, NodeTable]]:
        """Tell machines apart by the hosts that a shape names; return those that moved, and from which node type."""
        named: set[str] = set()
        for hosts in (shape.allowed_hosts, shape.preferred_hosts):
            if hosts and hosts not in self._lists:
                self._lists[hosts] = 1 << len(self._lists)
                for name in hosts:
                    self._lists_of[name] = self._lists_of.get(name, 0) | self._lists[hosts]
                named |= hosts
        moved = [(self.machines[name], self.machines[name].table) for name in sorted(named & self.machines.keys())]
        for machine, _ in moved:
            self._uncount(machine)
            self._count(machine)
        return moved

    def measure(self, machine: MatchableMachine, measured: WorkerMeasurements) -> None:
        """Take in what a machine's worker measured."""
        was_closed = machine.closed
        held_bytes = self.index.usage(machine.name).ram_held_bytes
        if machine.measure(measured, held_bytes) and self.index.measure(machine.name, machine.measured()):
            machine.change()
            machine.empty, machine.ever_version = None, -1
        if bool(machine.closed) != bool(was_closed):
            self._recount(machine)

    def doubt(self, machine: MatchableMachine, *, is_doubted: bool) -> None:
        """Count on a machine no longer, or again, to take what fits it."""
        if machine.is_doubted != is_doubted:
            machine.is_doubted = is_doubted
            self._recount(machine)

    def set_silent(self, machine: MatchableMachine, *, is_silent: bool) -> None:
        """Count on a machine no longer, or again, to answer a call."""
        machine.is_silent = is_silent
        self._recount(machine)

    def fits(self, machine: MatchableMachine) -> int:
        """Return the job types of which one could start on a machine now."""
        version = len(self._types.types)
        if machine.fits_version != version:
            machine.fits = self._types.expand(self.index.fitting(machine.name))
            machine.fits_version = version
            machine.beside_kept = None
        return machine.fits

    def beside(self, machine: MatchableMachine) -> int:
        """Return those of `fits` that would share a device with their base model."""
        return self._types.expand(self.index.beside(machine.name))

    def next_room_s(self, table: NodeTable, one: JobType, bit: int, part: float, now_s: float) -> float:
        """Return when a job that takes this part of a machine is expected to have room on one of a node type.

        `bit` is of its placement, on devices or on the CPU. Machines that are kept for others are passed over. The
        first of its jobs to end makes room for a small one, the last for one that takes more than half of the machine.
        """
        found_s = inf
        for machine in islice(self._of_type.get(table.number, {}).values(), _MOST_LOOKED_AT):
            if machine.is_counted and (machine.kept is None or machine.kept.type is one):
                if self.fits(machine) & bit:
                    return now_s
                if not machine.leases:
                    # Other programs use it, for an unknown time.
                    continue
                of_machine = max if part > _HALF else min
                found_s = min(found_s, of_machine([lease.until_s for lease in machine.leases]))
        return max(now_s, found_s)

    def ever(self, machine: MatchableMachine) -> int:
        """Return the job types of which one could start on a machine if none of our jobs ran there."""
        version = len(self._types.types)
        if machine.ever_version != version:
            machine.ever = self.fits_as(self.empty(machine))
            machine.ever_version = version
        return machine.ever

    def empty(self, machine: MatchableMachine) -> NodeUsage:
        """Return a machine as if none of our jobs ran there."""
        if machine.empty is None:
            machine.empty = self.index.empty(machine.name)
        return machine.empty

    def fits_as(self, copied: NodeUsage) -> int:
        """Return the job types of which one could start on a machine in the state of this copy."""
        return self._types.expand(self.index.fitting_as(copied))

    def add(self, lease: MachineLease, placement: Placement | None = None) -> None:
        """Count what a lease holds."""
        machine = self.machines.get(lease.allocation.machine)
        self._by_id[id(lease.allocation)] = lease
        if machine is None:
            self._absent.setdefault(lease.allocation.machine, []).append(lease)
            return
        machine.leases.append(lease)
        machine.change()
        if placement is None:
            self._occupy(lease)
        else:
            lease.placed = self.index.take(machine.name, lease.shape, placement)

    def drop(self, allocation: LeaseAllocation) -> MachineLease:
        """Count it no more."""
        lease = self.find(allocation)
        self._by_id.pop(id(lease.allocation), None)
        machine, leases = self._leases_on(allocation.machine)
        leases.remove(lease)
        if machine is not None and machine.busy_until_s <= lease.until_s:
            machine.busy_until_s = _last_end_s(leases)
        if machine is None:
            if not leases:
                del self._absent[allocation.machine]
        elif lease.placed is not None:
            self.index.release(lease.placed)
            machine.change()
        return lease

    def find(self, allocation: LeaseAllocation) -> MachineLease:
        """Return the lease of an allocation: of several alike the one that holds this very object."""
        lease = self._by_id.get(id(allocation))
        if lease is None:
            alike = self._leases_on(allocation.machine)[1]
            lease = next((one for one in alike if one.allocation == allocation), None)
        if lease is None:
            message = f"a lease on {allocation.machine} was never granted"
            raise InternalError(message)
        return lease

    def expect(self, lease: MachineLease, until_s: float) -> None:
        """Set when a lease is expected to end."""
        lease.until_s = until_s
        machine = self.machines.get(lease.allocation.machine)
        if machine is not None:
            machine.busy_until_s = _last_end_s(machine.leases)

    def shift(self, back_s: float) -> None:
        """Move all times of leases and machines: the clock was set back."""
        for lease in self.leases():
            lease.started_s -= back_s
            lease.until_s -= back_s
        for machine in self.machines.values():
            machine.busy_until_s -= back_s if machine.leases else 0.0
            if machine.kept is not None:
                machine.kept = machine.kept._replace(until_s=machine.kept.until_s - back_s)
            if machine.ends_s is not None:
                self.set_end(machine, machine.ends_s - back_s)

    def set_end(self, machine: MatchableMachine, ends_s: float) -> None:
        """Set when a machine goes away."""
        self._uncount(machine)
        machine.ends_s = ends_s
        self._count(machine)

    def leases(self) -> Iterator[MachineLease]:
        """Return all leases."""
        for machine in self.machines.values():
            yield from machine.leases
        for leases in self._absent.values():
            yield from leases

    def speed_of(self, machine: MatchableMachine, lease: MachineLease) -> float:
        """Return how fast a lease's job runs, relative to a device of speed 1."""
        devices = lease.allocation.devices
        if not devices:
            return lease.type.cpu_speed
        return machine.speed or min([machine.speeds.get(uuid, 1.0) for uuid in devices])

    def _leases_on(self, name: str) -> tuple[MatchableMachine | None, list[MachineLease]]:
        machine = self.machines.get(name)
        return machine, machine.leases if machine is not None else self._absent.get(name, [])

    def _add_totals(self, machine: MatchableMachine, sign: int) -> None:
        devices, cores, ram_bytes = self.totals
        more = totals_of([machine.offer])
        self.totals = devices + sign * more[0], cores + sign * more[1], ram_bytes + sign * more[2]

    def _occupy(self, lease: MachineLease) -> None:
        one = lease.allocation
        lease.placed = self.index.occupy(one.machine, lease.shape, one.devices, is_shared=one.is_shared)

    def _recount(self, machine: MatchableMachine) -> None:
        counts = not (machine.closed or machine.is_doubted or machine.is_silent)
        if counts != machine.is_counted:
            self._tables.set_count(machine.table, machine.table.count + (1 if counts else -1))
            machine.is_counted = counts

    def _count(self, machine: MatchableMachine) -> None:
        offer = _unmeasured(machine.offer)
        # Machines that were bought as equals report a few megabytes more or less.
        rounded = changed(offer, ram_bytes=offer.ram_bytes and round(offer.ram_bytes / GIB))
        key = likeness(rounded), self._lists_of.get(machine.name, 0)
        table = self._by_likeness.get(key)
        if table is None:
            table = self._by_likeness[key] = self._tables.add_node_type(offer)
        machine.table = table
        self._of_type.setdefault(table.number, {})[machine.name] = machine
        self._represent(table)
        if machine.ends_s is None:
            table.staying += 1
        else:
            table.leaving[machine.name] = machine.ends_s
        self._tables.set_ends(table)
        machine.is_counted = False
        self._recount(machine)

    def _uncount(self, machine: MatchableMachine) -> None:
        self._of_type[machine.table.number].pop(machine.name, None)
        self._represent(machine.table)
        self._tables.set_ends(machine.table)
        if machine.ends_s is None:
            machine.table.staying -= 1
        else:
            machine.table.leaving.pop(machine.name, None)
        if machine.is_counted:
            self._tables.set_count(machine.table, machine.table.count - 1)
            machine.is_counted = False

    def _represent(self, table: NodeTable) -> None:
        """Let a machine of a node type stand for it: one that left it may be named by lists that name none of these."""
        members = self._of_type[table.number]
        if members and table.offer.node not in members:
            table.offer = _unmeasured(next(iter(members.values())).offer)


def totals_of(offers: Iterable[NodeOffer]) -> tuple[int, int, int]:
    """Return how many devices, cores and bytes of RAM machines have together."""
    offers = list(offers)
    return (
        sum(len(offer.devices) for offer in offers),
        sum(offer.cores or 0 for offer in offers),
        sum(offer.ram_bytes or 0 for offer in offers),
    )


def _unmeasured(offer: NodeOffer) -> NodeOffer:
    """Return an offer as of an open machine on which nothing runs, neither ours nor of others."""
    devices = tuple([changed(device, free_bytes=None) for device in offer.devices])
    return idle(changed(offer, closed="", devices=devices))


def _last_end_s(leases: Sequence[MachineLease]) -> float:
    return max([one.until_s for one in leases], default=0.0)
