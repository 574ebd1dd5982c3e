"""The one rule of placement: may a job of this shape start on this node now, and on which of its devices?

A `PlacementShape` is everything about a job that decides its placement; a million jobs have a few hundred shapes.
`NodeUsage` is the state of a node in the node index, changed in place as jobs start and end. It has the fields of the
`NodeOffer` that it was made of, so that the rule reads both.

Every decision about free capacity is made here: the node index only finds the node to check, explanations name what
this rule found, and "starts now if" applies this rule to a changed job or node. What fits on one device is the rule of
`devices.admission`, which the ledger of a machine applies, too. Memory is counted per device, never summed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from stoker.core.device import MIB, Backend
from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob, environment_word
from stoker.devices import admission
from stoker.devices.admission import DeviceBlock, added_bytes
from stoker.scheduler.offers import DeviceOffer, MeasuredNode, NodeOffer, ResidentBase, ResidentProcess, Sharing
from stoker.scheduler.score import (
    COST_RULE,
    CostRule,
    Key,
    PlacementRank,
    alone_score,
    cpu_score,
    shared_score,
    slices_needed,
    slices_of,
)

_TRIAL = re.compile(r"(.+)/\d+")


@frozen
class PlacementShape:
    """Everything about a job that decides its placement. Equal shapes are one shape."""

    wish: DevicePreference
    backend: Backend
    device_count: int
    vram_bytes: int
    ram_bytes: int
    cores: int
    may_share: bool
    base: str
    base_bytes: int
    base_ram_bytes: int
    """The part of `ram_bytes` that jobs which share its base hold once. A job must fit as if it were the first."""
    words: frozenset[str]
    """Those of its names that lists of nodes mention."""
    allowed_hosts: frozenset[str]
    """Empty: all hosts."""
    preferred_hosts: frozenset[str]
    is_advised_against: bool
    """The cost rule advises against devices."""

    @property
    def takes_devices(self) -> bool:
        return self.wish is not DevicePreference.NEVER

    @property
    def takes_cpu(self) -> bool:
        return self.wish is not DevicePreference.REQUIRE

    @property
    def increment_bytes(self) -> int:
        """What it takes of a device that has its base already."""
        return added_bytes(self.vram_bytes, self.base_bytes, self.base_bytes) if self.base else self.vram_bytes


def shape_of(
    wanted: SchedulableJob, *, listed: Iterable[str] | None = None, cost: CostRule | None = COST_RULE
) -> PlacementShape:
    """Return the shape of a job.

    `listed` are the words that lists mention (`None`: keep every name), `cost` is the rule that may advise against
    devices (`None`: no rule does).
    """
    asked = wanted.requirements
    names = names_of(wanted)
    keep = names if listed is None else names.intersection(listed)
    takes_devices = asked.wish is not DevicePreference.NEVER
    has_base = bool(asked.base) and (takes_devices or asked.base_ram_bytes > 0)
    return PlacementShape(
        wish=asked.wish,
        backend=asked.backend if takes_devices else Backend.CUDA,
        device_count=max(1, asked.device_count) if takes_devices else 0,
        # Reservations are in whole MiB, as usable memory is.
        vram_bytes=-(-asked.vram_bytes // MIB) * MIB if takes_devices else 0,
        ram_bytes=asked.ram_bytes,
        cores=asked.cores,
        may_share=asked.may_share and takes_devices,
        base=asked.base if has_base else "",
        base_bytes=min(asked.base_bytes // MIB * MIB, asked.vram_bytes) if has_base and takes_devices else 0,
        base_ram_bytes=min(asked.base_ram_bytes, asked.ram_bytes) if has_base else 0,
        words=keep,
        allowed_hosts=frozenset(wanted.allowed_hosts),
        preferred_hosts=frozenset(wanted.preferred_hosts),
        is_advised_against=cost is not None and _is_advised_against(cost, asked),
    )


def names_of(wanted: SchedulableJob) -> frozenset[str]:
    """Return the names of a job in lists: its own, that of the sweep it is a trial of (`name/3`), its model.

    A recipe also has its last word as a name, as on the command line: `lora` is `language/lora`. Nodes that can't have
    an environment deny its word; nodes that run only some code allow its word.
    """
    names = {wanted.name, wanted.model, wanted.model.rpartition("/")[2]}
    if wanted.environment:
        names.add(environment_word(wanted.environment))
    if wanted.code:
        names.add(wanted.code)
    trial = _TRIAL.fullmatch(wanted.name)
    if trial:
        names.add(trial[1])
    return frozenset(names - {""})


def _is_advised_against(cost: CostRule, asked: Requirements) -> bool:
    return asked.wish is DevicePreference.PREFER and cost.advise(asked.transfer_mb, asked.mflop).is_against


class SharingLike(Protocol):
    """The fields that decide whether a device is shared."""

    @property
    def usable_bytes(self) -> int: ...
    @property
    def sharing(self) -> Sharing: ...


class UnfitReason(StrEnum):
    """Why a job can't start on a node or on one of its devices."""

    CLOSED = "closed"
    HOST = "host_not_allowed"
    DENIED = "denied"
    NOT_ALLOWED = "not_on_allow_list"
    NO_DEVICE = "no_device"
    FEW_DEVICES = "too_few_devices"
    BACKEND = "other_backend"
    TOO_SMALL = "too_small"
    HELD = "held_alone"
    IN_USE = "in_use"
    DEVICE_SLOTS = "device_slots"
    ROOM = "room"
    RAM = "ram"
    CORES = "cores"
    SLOTS = "slots"


_REASON_OF = {block: UnfitReason(block.value) for block in DeviceBlock}


class DevicePlacement(NamedTuple):
    """One device for a job."""

    at: int
    """Its index among the node's devices."""
    is_shared: bool
    is_resident: bool
    """The job's base is there already."""
    score: float


class Placement(NamedTuple):
    """What a job would get on a node, and how good that is. Without devices it runs on the CPU."""

    devices: tuple[DevicePlacement, ...]
    key: Key


def choose(shape: PlacementShape, node: AnyNode) -> Placement | None:
    """Return the best placement of the job on this node now; `None` if it does not fit."""
    if policy_block(shape, node) or ram_left(node) < shape.ram_bytes or cores_left(node) < shape.cores:
        return None
    on_devices = _on_devices(shape, node) if shape.takes_devices else None
    on_cpu = _on_cpu(shape, node) if shape.takes_cpu else None
    if on_devices is None or on_cpu is None:
        return on_devices or on_cpu
    return on_devices if on_devices.key >= on_cpu.key else on_cpu


def policy_block(shape: PlacementShape, node: AnyNode) -> UnfitReason | None:
    """Return what forbids the job on this node whatever its free capacity. Deny beats allow."""
    if node.closed:
        return UnfitReason.CLOSED
    if shape.allowed_hosts and node.node not in shape.allowed_hosts:
        return UnfitReason.HOST
    return list_block(shape, allow_jobs=node.allow_jobs, deny_jobs=node.deny_jobs)


def list_block(shape: PlacementShape, *, allow_jobs: Sequence[str], deny_jobs: Sequence[str]) -> UnfitReason | None:
    """Return what forbids the job in the lists of a node."""
    if deny_jobs and not shape.words.isdisjoint(deny_jobs):
        return UnfitReason.DENIED
    if allow_jobs and shape.words.isdisjoint(allow_jobs):
        return UnfitReason.NOT_ALLOWED
    return None


def device_block(shape: PlacementShape, device: AnyDevice) -> UnfitReason | None:
    """Return why the job can't use this device now."""
    return _block(shape, device, is_shared=shares(shape, device))


def _block(shape: PlacementShape, device: AnyDevice, *, is_shared: bool) -> UnfitReason | None:
    if device.closed:
        return UnfitReason.CLOSED
    if device.backend is not shape.backend:
        return UnfitReason.BACKEND
    block = admission.block_on(
        shape.vram_bytes,
        needed_bytes(shape, device) if is_shared else shape.vram_bytes,
        is_shared=is_shared,
        most_bytes=device.shared_bytes if is_shared else device.whole_bytes,
        promised_bytes=device.promised_bytes,
        jobs=device.jobs,
        is_held=device.is_held,
        slots=device.slots,
    )
    return None if block is None else _REASON_OF[block]


def choose_device(shape: PlacementShape, device: AnyDevice, at: int) -> DevicePlacement | None:
    """Return the placement on one device, which has the index `at` on its node; `None` if it does not fit."""
    is_shared = shares(shape, device)
    if _block(shape, device, is_shared=is_shared) is not None:
        return None
    if not is_shared:
        return DevicePlacement(at, False, False, alone_score(shape.vram_bytes, device.total_bytes, device.speed))
    score = shared_score(room_bytes(device), needed_bytes(shape, device), device.speed, device.jobs)
    return DevicePlacement(at, True, is_resident(shape, device), score)


def shares(shape: PlacementShape, device: SharingLike) -> bool:
    """Return True if the job would share this device: the job or the node allows it, and its memory may be shared.

    A job of several devices shares none: its ranks go in step, and all would wait for the rank on a shared device.
    """
    if device.sharing is Sharing.NEVER or shape.device_count > 1:
        return False
    is_allowed = shape.may_share or device.sharing is Sharing.ALWAYS
    return admission.shares(shape.vram_bytes, device.usable_bytes, is_allowed=is_allowed)


def room_bytes(device: AnyDevice) -> int:
    """Return what is left for jobs that share the device."""
    return device.shared_bytes - device.promised_bytes


def needed_bytes(shape: PlacementShape, device: AnyDevice) -> int:
    """Return what the job would reserve on a shared device: only its increment if its base is there."""
    return shape.increment_bytes if is_resident(shape, device) else shape.vram_bytes


def is_resident(shape: PlacementShape, device: AnyDevice) -> bool:
    """Return True if the job's base model is on the device already."""
    return bool(shape.base) and device.has_base(shape.base, shape.base_bytes)


def ram_left(node: AnyNode) -> float:
    """Return the RAM that jobs may still reserve; infinite if unknown."""
    return inf if node.ram_bytes is None else max(0, node.ram_bytes - node.ram_held_bytes)


def cores_left(node: AnyNode) -> float:
    """Return the number of free cores; infinite if unknown."""
    return inf if node.cores is None else max(0, node.cores - node.cores_held)


def slices_left(node: AnyNode) -> float | None:
    """Return what is left for jobs on the CPU, in slices; `None` if unknown."""
    return slices_of(ram_left(node), cores_left(node))


def slots_left(node: AnyNode) -> int:
    """Return the number of free slots."""
    return node.slots - node.slots_held


def rank_of(shape: PlacementShape, node: AnyNode, *, on_devices: bool, is_fitting: bool) -> PlacementRank:
    """Return what is compared before the score."""
    is_preferred = node.node in shape.preferred_hosts
    return PlacementRank(is_wished(shape, on_devices=on_devices), is_preferred, node.priority, is_fitting)


def is_wished(shape: PlacementShape, *, on_devices: bool) -> bool:
    """Return True if the job prefers this kind of place. The cost rule reverses a preference, never a requirement."""
    return shape.wish is not DevicePreference.PREFER or on_devices is not shape.is_advised_against


def _on_devices(shape: PlacementShape, node: AnyNode) -> Placement | None:
    slots = slots_left(node)
    if slots < 1 and not node.is_slot_per_device:
        return None
    found: list[DevicePlacement] = []
    devices: Sequence[AnyDevice] = node.devices
    for at, device in enumerate(devices):
        # Most devices of a busy node; checked here to save the call.
        if not device.is_held:
            choice = choose_device(shape, device, at)
            if choice is not None:
                found.append(choice)
    if len(found) < shape.device_count:
        return None
    if len(found) > 1:
        # Stable: among equals the first device.
        found.sort(key=_by_residence_and_score)
    chosen = _within_slots(found, node, slots, shape.device_count) if node.is_slot_per_device else found
    chosen = chosen[: shape.device_count]
    if len(chosen) < shape.device_count:
        return None
    is_fitting = all(one.is_resident for one in chosen)
    # Ranks in step wait for the slowest.
    score = min(one.score for one in chosen)
    return Placement(tuple(chosen), Key(rank_of(shape, node, on_devices=True, is_fitting=is_fitting), score))


def _by_residence_and_score(choice: DevicePlacement) -> tuple[bool, float]:
    return not choice.is_resident, -choice.score


def _within_slots(found: list[DevicePlacement], node: AnyNode, slots: int, count: int) -> list[DevicePlacement]:
    """Return devices in order; idle ones only while slots are left for them."""
    chosen: list[DevicePlacement] = []
    for one in found:
        is_idle = not node.devices[one.at].jobs
        if slots or not is_idle:
            chosen.append(one)
            slots -= is_idle
        if len(chosen) == count:
            break
    return chosen


def _on_cpu(shape: PlacementShape, node: AnyNode) -> Placement | None:
    if slots_left(node) < 1:
        return None
    score = cpu_score(slices_left(node), slices_needed(shape.ram_bytes, shape.cores), node.jobs)
    return Placement((), Key(rank_of(shape, node, on_devices=False, is_fitting=not node.devices), score))


T = TypeVar("T", "DeviceUsage", "NodeUsage")


class DeviceUsage:
    """One device of a node, and what jobs use of it."""

    __slots__ = (
        "admits", "backend", "bases", "beside_bits", "bits", "bits_version", "closed", "is_held", "jobs", "offered",
        "promised_bytes", "shared_bytes", "sharing", "slots", "speed", "total_bytes", "usable_bytes", "uuid",
        "whole_bytes",
    )  # fmt: skip

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
        "_now", "allow_jobs", "closed", "cores", "cores_held", "cpu_jobs", "deny_jobs", "devices", "is_hidden",
        "is_slot_per_device", "jobs", "node", "offered", "order", "priority", "processes", "ram_bytes",
        "ram_held_bytes", "slots", "slots_held",
    )  # fmt: skip

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


AnyDevice = DeviceOffer | DeviceUsage
"""A device as the rule reads it."""
AnyNode = NodeOffer | NodeUsage
"""A node as the rule reads it."""


def _copy(of: T) -> T:
    made = object.__new__(type(of))
    for name in of.__slots__:
        setattr(made, name, getattr(of, name))
    return made
