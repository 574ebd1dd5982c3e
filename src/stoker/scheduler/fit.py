"""The one rule of placement: may a job of this shape start on this node now, and on which of its devices?

Every decision about free capacity is made here: the node index only finds the node to check, explanations name what
this rule found, and "starts now if" applies this rule to a changed job or node. It reads a `NodeOffer`, or anything
that has the same fields.

What fits on one device is the rule of `devices.device_fit`, which the ledger of a machine applies, too. Memory is
counted per device, never summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple, Protocol

from stoker.core.device import Backend
from stoker.core.machine import DevicePreference
from stoker.devices import device_fit
from stoker.devices.device_fit import DeviceBlock
from stoker.scheduler.offers import Sharing
from stoker.scheduler.score import Key, PlacementRank, alone_score, cpu_score, shared_score, slices_needed, slices_of
from stoker.scheduler.shapes import PlacementShape


class SharingLike(Protocol):
    """The fields that decide whether a device is shared."""

    @property
    def usable_bytes(self) -> int: ...
    @property
    def sharing(self) -> Sharing: ...


class DeviceLike(SharingLike, Protocol):
    """The fields of a device that the rule reads; `DeviceOffer` documents them."""

    @property
    def backend(self) -> Backend: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def whole_bytes(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def speed(self) -> float: ...
    @property
    def slots(self) -> int | None: ...
    @property
    def closed(self) -> str: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def jobs(self) -> int: ...
    @property
    def promised_bytes(self) -> int: ...

    def has_base(self, base: str, size_bytes: int, /) -> bool: ...


class NodeLike(Protocol):
    """The fields of a node that the rule reads; `NodeOffer` documents them."""

    @property
    def node(self) -> str: ...
    @property
    def devices(self) -> Sequence[DeviceLike]: ...
    @property
    def slots(self) -> int: ...
    @property
    def is_slot_per_device(self) -> bool: ...
    @property
    def slots_held(self) -> int: ...
    @property
    def ram_bytes(self) -> int | None: ...
    @property
    def ram_held_bytes(self) -> int: ...
    @property
    def cores(self) -> int | None: ...
    @property
    def cores_held(self) -> int: ...
    @property
    def jobs(self) -> int: ...
    @property
    def allow_jobs(self) -> Sequence[str]: ...
    @property
    def deny_jobs(self) -> Sequence[str]: ...
    @property
    def priority(self) -> int: ...
    @property
    def closed(self) -> str: ...


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


def choose(shape: PlacementShape, node: NodeLike) -> Placement | None:
    """Return the best placement of the job on this node now; `None` if it does not fit."""
    if policy_block(shape, node) or ram_left(node) < shape.ram_bytes or cores_left(node) < shape.cores:
        return None
    on_devices = _on_devices(shape, node) if shape.takes_devices else None
    on_cpu = _on_cpu(shape, node) if shape.takes_cpu else None
    if on_devices is None or on_cpu is None:
        return on_devices or on_cpu
    return on_devices if on_devices.key >= on_cpu.key else on_cpu


def policy_block(shape: PlacementShape, node: NodeLike) -> UnfitReason | None:
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


def device_block(shape: PlacementShape, device: DeviceLike) -> UnfitReason | None:
    """Return why the job can't use this device now."""
    return _block(shape, device, is_shared=shares(shape, device))


def _block(shape: PlacementShape, device: DeviceLike, *, is_shared: bool) -> UnfitReason | None:
    if device.closed:
        return UnfitReason.CLOSED
    if device.backend is not shape.backend:
        return UnfitReason.BACKEND
    block = device_fit.block_on(
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


def choose_device(shape: PlacementShape, device: DeviceLike, at: int) -> DevicePlacement | None:
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
    return device_fit.shares(shape.vram_bytes, device.usable_bytes, is_allowed=is_allowed)


def room_bytes(device: DeviceLike) -> int:
    """Return what is left for jobs that share the device."""
    return device.shared_bytes - device.promised_bytes


def needed_bytes(shape: PlacementShape, device: DeviceLike) -> int:
    """Return what the job would reserve on a shared device: only its increment if its base is there."""
    return shape.increment_bytes if is_resident(shape, device) else shape.vram_bytes


def is_resident(shape: PlacementShape, device: DeviceLike) -> bool:
    """Return True if the job's base model is on the device already."""
    return bool(shape.base) and device.has_base(shape.base, shape.base_bytes)


def ram_left(node: NodeLike) -> float:
    """Return the RAM that jobs may still reserve; infinite if unknown."""
    return inf if node.ram_bytes is None else max(0, node.ram_bytes - node.ram_held_bytes)


def cores_left(node: NodeLike) -> float:
    """Return the number of free cores; infinite if unknown."""
    return inf if node.cores is None else max(0, node.cores - node.cores_held)


def slices_left(node: NodeLike) -> float | None:
    """Return what is left for jobs on the CPU, in slices; `None` if unknown."""
    return slices_of(ram_left(node), cores_left(node))


def slots_left(node: NodeLike) -> int:
    """Return the number of free slots."""
    return node.slots - node.slots_held


def rank_of(shape: PlacementShape, node: NodeLike, *, on_devices: bool, is_fitting: bool) -> PlacementRank:
    """Return what is compared before the score."""
    is_preferred = node.node in shape.preferred_hosts
    return PlacementRank(is_wished(shape, on_devices=on_devices), is_preferred, node.priority, is_fitting)


def is_wished(shape: PlacementShape, *, on_devices: bool) -> bool:
    """Return True if the job prefers this kind of place. The cost rule reverses a preference, never a requirement."""
    return shape.wish is not DevicePreference.PREFER or on_devices is not shape.is_advised_against


def _on_devices(shape: PlacementShape, node: NodeLike) -> Placement | None:
    slots = slots_left(node)
    if slots < 1 and not node.is_slot_per_device:
        return None
    found: list[DevicePlacement] = []
    for at, device in enumerate(node.devices):
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


def _within_slots(found: list[DevicePlacement], node: NodeLike, slots: int, count: int) -> list[DevicePlacement]:
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


def _on_cpu(shape: PlacementShape, node: NodeLike) -> Placement | None:
    if slots_left(node) < 1:
        return None
    score = cpu_score(slices_left(node), slices_needed(shape.ram_bytes, shape.cores), node.jobs)
    return Placement((), Key(rank_of(shape, node, on_devices=False, is_fitting=not node.devices), score))
