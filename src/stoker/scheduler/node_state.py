"""What jobs use of a node: its state in the node index, changed in place as jobs start and end.

`NodeUsage` has the fields of the `NodeOffer` it was made of, so that `fit` reads both alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stoker.core.frozen import changed
from stoker.scheduler.fit import Placement, needed_bytes
from stoker.scheduler.offers import DeviceOffer, MeasuredNode, NodeOffer, ResidentBase, ResidentProcess
from stoker.scheduler.shapes import PlacementShape

T = TypeVar("T", "DeviceUsage", "NodeUsage")


class DeviceUsage:
    """One device of a node, and what jobs use of it."""

    __slots__ = (
        "admits",
        "backend",
        "bases",
        "beside_bits",
        "bits",
        "bits_version",
        "closed",
        "is_held",
        "jobs",
        "offered",
        "promised_bytes",
        "shared_bytes",
        "sharing",
        "slots",
        "speed",
        "total_bytes",
        "usable_bytes",
        "uuid",
        "whole_bytes",
    )

    def __init__(self, offered: DeviceOffer) -> None:
        self.offered = offered
        self.uuid = offered.uuid
        self.backend = offered.backend
        self.total_bytes = offered.total_bytes
        self.whole_bytes = offered.whole_bytes
        self.usable_bytes = offered.usable_bytes
        self.shared_bytes = offered.shared_bytes
        self.speed = offered.speed
        self.sharing = offered.sharing
        self.slots = offered.slots
        self.closed = offered.closed
        self.is_held = offered.is_held
        self.jobs = offered.jobs
        self.promised_bytes = offered.promised_bytes
        self.admits: float = 0
        """The largest amount that any shape requires and that it has for a job alone; set by `layout`."""
        self.bases = {(one.base, one.size_bytes): one.jobs for one in offered.bases}
        self.bits = self.beside_bits = 0
        """The shapes that could share it, and those of them beside their base model; computed by `layout`."""
        self.bits_version = -1
        """The number of shapes known at that computation; below 0 if a job started or ended since."""

    def has_base(self, base: str, size_bytes: int) -> bool:
        return (base, size_bytes) in self.bases

    def take(self, shape: PlacementShape, *, is_shared: bool) -> None:
        self.jobs += 1
        self.bits_version = -1
        if not is_shared:
            self.is_held = True
            self.promised_bytes = shape.vram_bytes
            return
        self.promised_bytes += needed_bytes(shape, self)
        if shape.base:
            base = (shape.base, shape.base_bytes)
            self.bases[base] = self.bases.get(base, 0) + 1

    def give_back(self, shape: PlacementShape, *, is_shared: bool) -> None:
        self.jobs -= 1
        self.bits_version = -1
        if not is_shared:
            self.is_held = False
            self.promised_bytes = 0
            return
        if shape.base:
            base = (shape.base, shape.base_bytes)
            self.bases[base] -= 1
            if not self.bases[base]:
                del self.bases[base]
        self.promised_bytes -= needed_bytes(shape, self)

    def measure(self, free_bytes: int | None, closed: str) -> bool:
        """Set what was measured; return True if anything changed."""
        if free_bytes == self.offered.free_bytes and closed == self.offered.closed:
            return False
        self.offered = offered = changed(self.offered, free_bytes=free_bytes, closed=closed)
        self.whole_bytes = offered.whole_bytes
        self.shared_bytes = offered.shared_bytes
        self.closed = closed
        self.bits_version = -1
        return True

    def copy(self) -> DeviceUsage:
        """Return a copy for what-if queries."""
        made = _copy(self)
        made.bases = dict(self.bases)
        return made

    def offer(self) -> DeviceOffer:
        """Return its offer as of now."""
        return changed(
            self.offered,
            is_held=self.is_held,
            jobs=self.jobs,
            promised_bytes=self.promised_bytes,
            bases=tuple(
                ResidentBase(base=base, size_bytes=size_bytes, jobs=jobs)
                for (base, size_bytes), jobs in sorted(self.bases.items())
            ),
        )


class NodeUsage:
    """One node, and what jobs use of it."""

    __slots__ = (
        "_now",
        "allow_jobs",
        "closed",
        "cores",
        "cores_held",
        "cpu_jobs",
        "deny_jobs",
        "devices",
        "is_hidden",
        "is_slot_per_device",
        "jobs",
        "node",
        "offered",
        "order",
        "priority",
        "processes",
        "ram_bytes",
        "ram_held_bytes",
        "slots",
        "slots_held",
    )

    def __init__(self, offered: NodeOffer, order: int) -> None:
        self.order = order
        self._now: NodeOffer | None = None
        self.node = offered.node
        self.is_hidden = False
        """A search for the best node leaves it out."""
        self.stand_as(offered)

    def stand_as(self, offered: NodeOffer) -> None:
        """Replace the state by that of an offer."""
        self.offered = offered
        self._now = offered
        self.devices = [DeviceUsage(device) for device in offered.devices]
        self.slots = offered.slots
        self.is_slot_per_device = offered.is_slot_per_device
        self.slots_held = offered.slots_held
        self.ram_bytes = offered.ram_bytes
        self.ram_held_bytes = offered.ram_held_bytes
        self.processes = {(one.base, one.size_bytes, one.device): one.jobs for one in offered.processes}
        self.cores = offered.cores
        self.cores_held = offered.cores_held
        self.jobs = offered.jobs
        self.cpu_jobs = offered.cpu_jobs
        self.allow_jobs = offered.allow_jobs
        self.deny_jobs = offered.deny_jobs
        self.priority = offered.priority
        self.closed = offered.closed

    def copy(self, changing: Iterable[int]) -> NodeUsage:
        """Return a copy for what-if queries; of its devices only those with these indices may be changed."""
        made = _copy(self)
        made.devices = list(self.devices)
        for at in changing:
            made.devices[at] = self.devices[at].copy()
        made.processes = dict(self.processes)
        return made

    def measure(self, measured: MeasuredNode) -> bool:
        """Set what was measured; return True if anything changed."""
        is_changed = self.ram_bytes != measured.ram_bytes or self.closed != measured.closed
        self.ram_bytes = measured.ram_bytes
        self.closed = measured.closed
        for device, (free_bytes, closed) in zip(self.devices, measured.devices, strict=True):
            is_changed |= device.measure(free_bytes, closed)
        if is_changed:
            self._now = None
        return is_changed

    def take(self, shape: PlacementShape, choice: Placement) -> None:
        """Reserve for a job what was chosen for it."""
        self._now = None
        self.jobs += 1
        self.ram_held_bytes += shape.ram_bytes
        if shape.base_ram_bytes:
            self._join(shape, self.devices[choice.devices[0].at].uuid if choice.devices else "")
        self.cores_held += shape.cores
        if not self.is_slot_per_device or not choice.devices:
            self.slots_held += 1
        if not choice.devices:
            self.cpu_jobs += 1
        for one in choice.devices:
            device = self.devices[one.at]
            if self.is_slot_per_device and not device.jobs:
                self.slots_held += 1
            device.take(shape, is_shared=one.is_shared)

    def give_back(self, shape: PlacementShape, uuids: tuple[str, ...], choice: Placement) -> None:
        """Release what a job reserved; devices that are gone since are skipped."""
        self._now = None
        self.jobs -= 1
        self.ram_held_bytes -= shape.ram_bytes
        if shape.base_ram_bytes:
            self._leave(shape, uuids[0] if uuids else "")
        self.cores_held -= shape.cores
        if not self.is_slot_per_device or not choice.devices:
            self.slots_held -= 1
        if not choice.devices:
            self.cpu_jobs -= 1
        for uuid, one in zip(uuids, choice.devices, strict=True):
            device = self._device(one.at, uuid)
            if device is None:
                continue
            device.give_back(shape, is_shared=one.is_shared)
            if self.is_slot_per_device and not device.jobs:
                self.slots_held -= 1

    def _join(self, shape: PlacementShape, device: str) -> None:
        """Count the RAM that a job shares with others once."""
        process = (shape.base, shape.base_ram_bytes, device)
        there = self.processes.get(process, 0)
        self.processes[process] = there + 1
        if there:
            self.ram_held_bytes -= shape.base_ram_bytes

    def _leave(self, shape: PlacementShape, device: str) -> None:
        process = (shape.base, shape.base_ram_bytes, device)
        there = self.processes.get(process, 1) - 1
        if there:
            self.processes[process] = there
            self.ram_held_bytes += shape.base_ram_bytes
        else:
            self.processes.pop(process, None)

    def _device(self, at: int, uuid: str) -> DeviceUsage | None:
        if at < len(self.devices) and self.devices[at].uuid == uuid:
            return self.devices[at]
        return next((device for device in self.devices if device.uuid == uuid), None)

    def offer(self) -> NodeOffer:
        """Return its offer as of now: the same object until a job starts or ends or a measurement changes."""
        if self._now is None:
            self._now = self._offer()
        return self._now

    def _offer(self) -> NodeOffer:
        return changed(
            self.offered,
            devices=tuple(device.offer() for device in self.devices),
            ram_bytes=self.ram_bytes,
            closed=self.closed,
            jobs=self.jobs,
            cpu_jobs=self.cpu_jobs,
            ram_held_bytes=self.ram_held_bytes,
            processes=tuple(
                ResidentProcess(base=base, size_bytes=size_bytes, device=device, jobs=jobs)
                for (base, size_bytes, device), jobs in sorted(self.processes.items())
            ),
            cores_held=self.cores_held,
        )


def _copy(of: T) -> T:
    made = object.__new__(type(of))
    for name in of.__slots__:
        setattr(made, name, getattr(of, name))
    return made
