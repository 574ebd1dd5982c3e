"""Offers: what a node offers to jobs, and what its jobs hold of it.

`offer_of` makes the offer of a declared node, idle. `agree` compares a declaration with what was detected: the smaller
value counts, and every difference is a `Drift`; devices are matched by UUID, and a machine without a declaration offers
what was detected. `with_holders` adds what the ledger of this machine has reserved. `node_of` makes the declaration
of a detected machine. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from stoker.core.capability import Capability
from stoker.core.device import MIB, VENDORS, Backend, Device, MemoryType, usable_bytes
from stoker.core.frozen import changed, frozen
from stoker.core.machine import Gpu, Node
from stoker.core.text import LONGEST_NAME, format_size, is_node_name
from stoker.devices import admission
from stoker.devices.admission import MachineMemory, above_floor_bytes
from stoker.scheduler.score import speed_of

if TYPE_CHECKING:
    from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState

DRIFT_PERCENT = 5
"""Sizes that differ by more are reported: tools round, drivers reserve."""
_VENDOR_WORDS = frozenset({"nvidia", "geforce"})
_WORD = re.compile(r"[a-z0-9.]+")
_BAD_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class Sharing(StrEnum):
    """Whether jobs may share one device."""

    NEVER = "never"
    """The owner of the node forbids it."""
    ASKED = "asked"
    """Jobs that request it share."""
    ALWAYS = "always"
    """All jobs that declare their memory share."""


@frozen
class ResidentBase:
    """A base model on a device. Its memory counts once for all jobs that train on it."""

    base: str
    size_bytes: int
    jobs: int


@frozen
class ResidentProcess:
    """A process that serves all jobs of one base on one device, or on the CPU. Its RAM counts once."""

    base: str
    size_bytes: int
    device: str
    """The device's UUID; empty for the CPU."""
    jobs: int


@frozen
class DeviceOffer:
    """One device, and what our jobs hold of it."""

    uuid: str
    type: str
    """The declared type, or the detected name."""
    backend: Backend = Backend.CUDA
    memory_type: MemoryType = MemoryType.DISCRETE
    declared_speed: float | None = None
    total_bytes: int
    free_bytes: int | None = None
    """Measured, with what our own jobs hold counted as free; `None` if not measured."""
    sharing: Sharing = Sharing.ASKED
    slots: int | None = None
    """How many jobs may share it; `None`: as many as its memory takes."""
    closed: str = ""
    """Why it takes no jobs: cordoned, not usable. Empty if it does."""
    is_held: bool = False
    """One job has it alone."""
    jobs: int = 0
    promised_bytes: int = 0
    """What its jobs reserved together, bases included; also 0 if the job that has it alone declared no memory."""
    bases: tuple[ResidentBase, ...] = ()

    @property
    def whole_bytes(self) -> int:
        """The memory for a job that has it alone."""
        return admission.alone_bytes(self.total_bytes, self.memory_type, self.free_bytes)

    @property
    def usable_bytes(self) -> int:
        """The most that jobs which share it may reserve together, whatever other programs hold."""
        return usable_bytes(self.total_bytes, self.memory_type)

    @property
    def shared_bytes(self) -> int:
        """The most that jobs which share it may reserve together now: the smaller of usable and measured free."""
        return admission.shared_bytes(self.total_bytes, self.memory_type, self.free_bytes)

    def has_base(self, base: str, size_bytes: int) -> bool:
        """Return True if the base model is on the device already."""
        return any(one.base == base and one.size_bytes == size_bytes for one in self.bases)

    @property
    def speed(self) -> float:
        """Speed relative to an RTX 4090: the declared one, else that of its type."""
        return speed_of(self.type) if self.declared_speed is None else self.declared_speed


@frozen
class NodeOffer:
    """One node, and what our jobs hold of it."""

    node: str
    devices: tuple[DeviceOffer, ...] = ()
    slots: int = 1
    is_slot_per_device: bool = False
    """A slot is a device in use, or a job on the CPU; otherwise every job takes one."""
    ram_bytes: int | None = None
    """What jobs may hold together, which is less than the node has; `None`: unknown, and not checked, as `cores`."""
    cores: int | None = None
    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    denied_for: tuple[tuple[str, str], ...] = ()
    """Of the words in `deny_jobs`, those that no owner listed: the word, and why the node can't run such jobs."""
    priority: int = 0
    closed: str = ""
    """Why it takes no jobs: drained, paused by its owner. Empty if it does."""
    jobs: int = 0
    cpu_jobs: int = 0
    """Those of `jobs` that hold no device."""
    ram_held_bytes: int = 0
    """What its jobs reserved together; what they share counts once."""
    processes: tuple[ResidentProcess, ...] = ()
    """Processes that several jobs share."""
    cores_held: int = 0
    is_fake: bool = False
    """Its devices are simulated (STOKER_GPU_FAKE)."""

    @property
    def slots_held(self) -> int:
        if self.is_slot_per_device:
            return self.cpu_jobs + sum(1 for device in self.devices if device.jobs)
        return self.jobs


class MeasuredNode(NamedTuple):
    """What changes on a node without any job of ours. Fields as in `NodeOffer` and `DeviceOffer`."""

    ram_bytes: int | None
    closed: str = ""
    devices: tuple[tuple[int | None, str], ...] = ()
    """Of each device, in the node's order: its measured free memory, and why it is closed."""


@frozen
class Drift:
    """One difference between a declaration and the detected machine."""

    what: str
    """`cores`, `RAM`, or a device's UUID."""
    message: str
    declared: int | None = None
    """In bytes, or a number of cores; `None`: not declared."""
    found: int | None = None

    def to_dict(self) -> dict[str, object]:
        return {"what": self.what, "message": self.message, "declared": self.declared, "found": self.found}


@frozen
class AgreedOffer:
    """The offer of a machine by its declaration and its detection."""

    offer: NodeOffer
    drift: tuple[Drift, ...] = ()


def offer_of(node: Node) -> NodeOffer:
    """Return the offer of a declared node: idle, nothing measured."""
    by_default = Sharing.ALWAYS if node.may_share else Sharing.ASKED
    sharing = Sharing.NEVER if node.shares_devices is False else by_default
    is_counted = node.slots is not None or node.max_adapters > 1
    return NodeOffer(
        node=node.name,
        devices=tuple(_declared_device(gpu, sharing) for gpu in node.gpus),
        slots=node.most_jobs,
        is_slot_per_device=not is_counted,
        ram_bytes=None if node.ram_mb is None else above_floor_bytes(node.ram_mb * MIB),
        cores=node.cpu_cores,
        allow_jobs=node.allow_jobs,
        deny_jobs=node.deny_jobs,
        priority=node.priority,
    )


def agree(node: Node | None, capability: Capability) -> AgreedOffer:
    """Compare a declaration with a detection. Without a declaration, the machine offers what was detected."""
    if node is None:
        node = node_of(capability)
    by_uuid = {one.uuid.casefold(): one for one in capability.devices}
    pairs = [_agree_device(device, by_uuid) for device in offer_of(node).devices]
    declared = {gpu.uuid.casefold() for gpu in node.gpus}
    cores, cores_drift = _smaller_cores(node, capability)
    ram_bytes, ram_drift = _smaller_ram(node, capability)
    offer = changed(
        offer_of(node),
        devices=tuple(device for device, _ in pairs),
        ram_bytes=ram_bytes,
        cores=cores,
        is_fake=capability.is_fake,
    )
    drift = [*cores_drift, *ram_drift, *(note for _, notes in pairs for note in notes)]
    drift += [_undeclared(one) for uuid, one in by_uuid.items() if uuid not in declared and one.total_bytes is not None]
    return AgreedOffer(offer=offer, drift=tuple(drift))


def node_of(capability: Capability) -> Node:
    """Return the declaration of a detected machine: every device whose memory size is known, by UUID."""
    return Node(
        name=node_name(capability.hostname),
        host="localhost",
        gpus=tuple(
            Gpu(
                uuid=one.uuid,
                type=type_of(one.name),
                vram_mb=one.total_bytes // MIB,
                memory_type=one.memory_type,
            )
            for one in capability.devices
            if one.total_bytes is not None and one.total_bytes >= MIB
        ),
        cpu_cores=capability.cpu_cores,
        ram_mb=(capability.ram_total_bytes or 0) // MIB or None,
    )


def type_of(name: str) -> str:
    """Return the type of a device by its vendor's name: `NVIDIA GeForce RTX 4090` is `rtx-4090`."""
    words = _WORD.findall(name.lower())
    return "-".join([word for word in words if word not in _VENDOR_WORDS] or words) or "unknown"


def node_name(hostname: str) -> str:
    """Return the name of a machine in files: its host name without the characters that a name must not have."""
    name = _BAD_IN_NAME.sub("-", hostname).strip("-._")[:LONGEST_NAME]
    return name if is_node_name(name) else "machine"


def with_holders(offer: NodeOffer, devices: Iterable[DeviceState]) -> NodeOffer:
    """Return the offer with what the entries of the ledger hold of its devices."""
    states = {state.device.uuid.casefold(): state for state in devices}
    held = tuple(_held_device(device, states.get(device.uuid.casefold())) for device in offer.devices)
    ids = {holder.entry.id for state in states.values() for holder in state.holders}
    return changed(offer, devices=held, jobs=offer.jobs + len(ids))


def backend_of(type_name: str) -> Backend:
    """Return the backend of a declared device type: CUDA, unless it names another vendor."""
    words = set(type_name.lower().replace("-", " ").replace("_", " ").split())
    named = (backend for backend, vendor in VENDORS.items() if words.intersection(vendor.type_words))
    return next(named, Backend.CUDA)


def _declared_device(gpu: Gpu, sharing: Sharing) -> DeviceOffer:
    return DeviceOffer(
        uuid=gpu.uuid,
        type=gpu.type,
        backend=backend_of(gpu.type),
        memory_type=gpu.memory_type,
        declared_speed=gpu.speed,
        total_bytes=gpu.total_bytes,
        sharing=sharing,
    )


def _agree_device(declared: DeviceOffer, found_by: Mapping[str, Device]) -> tuple[DeviceOffer, list[Drift]]:
    found = found_by.get(declared.uuid.casefold())
    if found is None:
        why = "declared but not detected"
        note = Drift(
            what=declared.uuid, message=f"{declared.type} {declared.uuid}: {why}", declared=declared.total_bytes
        )
        return changed(declared, closed=why), [note]
    notes = []
    total_bytes = declared.total_bytes
    if found.total_bytes is not None:
        total_bytes = min(total_bytes, found.total_bytes)
        if _is_apart(declared.total_bytes, found.total_bytes):
            notes.append(_size_drift(f"{declared.type} {declared.uuid}", declared.total_bytes, found.total_bytes))
    is_unified = MemoryType.UNIFIED in (declared.memory_type, found.memory_type)
    if declared.memory_type is not found.memory_type:
        text = f"declared {declared.memory_type} memory, found {found.memory_type}: unified is used"
        notes.append(Drift(what=declared.uuid, message=f"{declared.type} {declared.uuid}: {text}"))
    agreed = changed(
        declared,
        backend=found.backend,
        memory_type=MemoryType.UNIFIED if is_unified else MemoryType.DISCRETE,
        total_bytes=total_bytes,
        free_bytes=None if found.free_bytes is None else min(found.free_bytes, total_bytes),
        closed=_why_closed(found),
    )
    return agreed, notes


def _why_closed(found: Device) -> str:
    if found.visible.is_no:
        return f"not visible{f': {found.visible.why}' if found.visible.why else ''}"
    if found.usable.is_no:
        return f"not usable{f': {found.usable.why}' if found.usable.why else ''}"
    return ""


def _smaller_cores(node: Node, capability: Capability) -> tuple[int, list[Drift]]:
    declared, found = node.cpu_cores, capability.cpu_cores
    if declared is None or not _is_apart(declared, found):
        return found if declared is None else min(declared, found), []
    message = f"declared {declared} cores, found {found}: the smaller is used"
    return min(declared, found), [Drift(what="cores", message=message, declared=declared, found=found)]


def _smaller_ram(node: Node, capability: Capability) -> tuple[int | None, list[Drift]]:
    """Return what jobs may hold: what the machine admits now (`devices.admission`), at most what is declared.

    Unknown values refuse no job. Where the total is unknown, the declaration stands for it.
    """
    declared = None if node.ram_mb is None else node.ram_mb * MIB
    total = capability.ram_total_bytes
    memory = MachineMemory(
        total_bytes=declared if total is None else total, available_bytes=capability.ram_available_bytes
    )
    known = [size for size in (declared, memory.most_bytes, memory.room_bytes) if size is not None]
    drift = []
    if declared is not None and total is not None and _is_apart(declared, total):
        drift = [_size_drift("RAM", declared, total)]
    return min(known, default=None), drift


def _undeclared(found: Device) -> Drift:
    message = f"{found.name} {found.uuid}: detected but not declared: not used"
    return Drift(what=found.uuid, message=message, found=found.total_bytes)


def _size_drift(what: str, declared: int, found: int) -> Drift:
    message = f"{what}: declared {format_size(declared)}, found {format_size(found)}: the smaller is used"
    return Drift(what=what.rpartition(" ")[2], message=message, declared=declared, found=found)


def _is_apart(declared: int, found: int) -> bool:
    return abs(declared - found) * 100 > DRIFT_PERCENT * max(declared, found)


def _held_device(device: DeviceOffer, state: DeviceState | None) -> DeviceOffer:
    if state is None:
        return device
    free_bytes = device.free_bytes
    if state.left_bytes is not None:
        free_bytes = min(device.total_bytes, state.left_bytes)
    return changed(
        device,
        free_bytes=free_bytes,
        is_held=state.is_taken,
        jobs=len(state.holders),
        promised_bytes=0 if state.is_taken else state.reserved_bytes,
        bases=_bases_of(state.holders),
    )


def _bases_of(holders: Iterable[DeviceHolder]) -> tuple[ResidentBase, ...]:
    counted = Counter((one.entry.base, one.entry.base_bytes) for one in holders if one.entry.base)
    return tuple(ResidentBase(base=base, size_bytes=size, jobs=jobs) for (base, size), jobs in counted.items())


@frozen
class NodeType:
    """Nodes that differ in nothing but their names, idle."""

    name: str
    """Their devices, or their cores: see `name_of`."""
    offer: NodeOffer
    """One of them, with no jobs on it."""
    count: int


def idle(offer: NodeOffer) -> NodeOffer:
    """Return a node without our jobs."""
    return changed(
        offer,
        devices=tuple(changed(device, is_held=False, jobs=0, promised_bytes=0, bases=()) for device in offer.devices),
        jobs=0,
        cpu_jobs=0,
        ram_held_bytes=0,
        processes=(),
        cores_held=0,
    )


def name_of(offer: NodeOffer) -> str:
    """Return what a node is: `8 × A100 80 GiB, shared`, `CPU 16 cores`."""
    if not offer.devices:
        return "CPU" if offer.cores is None else f"CPU {offer.cores} cores"
    parts: dict[str, int] = {}
    for device in offer.devices:
        text = f"{device.type} {device.total_bytes / 1024**3:.0f} GiB"
        parts[text] = parts.get(text, 0) + 1
    joined = " + ".join(f"{count} × {text}" if count > 1 else text for text, count in parts.items())
    is_shared = any(device.sharing is Sharing.ALWAYS for device in offer.devices)
    return f"{joined}, shared" if is_shared else joined


def likeness(offer: NodeOffer) -> object:
    """Return what nodes of one type have in common."""
    devices = tuple(_device_likeness(device) for device in offer.devices)
    lists = (offer.allow_jobs, offer.deny_jobs, offer.priority, offer.closed)
    return devices, offer.slots, offer.is_slot_per_device, offer.ram_bytes, offer.cores, lists


def _device_likeness(device: DeviceOffer) -> object:
    memory = (device.memory_type, device.total_bytes, device.free_bytes)
    return device.type, device.declared_speed, device.backend, memory, device.sharing, device.slots, device.closed
