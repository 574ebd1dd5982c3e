"""Offers: one node as placement sees it, with its devices, its slots and what is left of each.

Only nouns. An offer holds what the node has and what its jobs have taken of it, so that one value answers every
question of `fit`. `offer_of` makes one of a declared node alone; what was detected is laid beside it by
`hardware.declared`.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.model.devices import MIB, Backend, MemoryType, usable_bytes
from stoker.model.frozen import frozen
from stoker.model.nodes import Gpu, Node
from stoker.scheduler.speeds import speed_of


class Sharing(StrEnum):
    """Whether jobs may be on one device together."""

    NEVER = "never"
    """Its owner said no."""
    ASKED = "asked"
    """Those that ask for it may."""
    ALWAYS = "always"
    """All that say how much memory they need."""


@frozen
class ResidentBase:
    """A base model on a device, charged once for all jobs that train on it."""

    base: str
    size_bytes: int
    jobs: int


@frozen
class ResidentProcess:
    """A process in a node's RAM that works for all jobs of one base on one device, or on the CPU; charged once."""

    base: str
    size_bytes: int
    device: str
    """The UUID; empty: it computes on the CPU."""
    jobs: int


@frozen
class DeviceOffer:
    """One device, and what jobs of ours have of it."""

    uuid: str
    type: str
    """What it is called: the declared type, or the name it was found under."""
    backend: Backend = Backend.CUDA
    memory_type: MemoryType = MemoryType.DISCRETE
    total_bytes: int
    free_bytes: int | None = None
    """Measured, with what our own jobs hold counted as free; nothing if nobody measured."""
    sharing: Sharing = Sharing.ASKED
    slots: int | None = None
    """How many jobs may share it; nothing: as many as its memory takes."""
    closed: str = ""
    """Why nothing is put on it: cordoned, not usable."""
    is_held: bool = False
    """A job has it to itself."""
    jobs: int = 0
    promised_bytes: int = 0
    """What its jobs were promised together, bases included; zero also if the one that has it declared nothing."""
    bases: tuple[ResidentBase, ...] = ()

    @property
    def whole_bytes(self) -> int:
        """What a job that has it to itself gets.

        Measured free memory; unmeasured, everything, except that unified memory is never the device's alone.
        """
        if self.free_bytes is not None:
            return min(self.total_bytes, self.free_bytes)
        return self.total_bytes if self.memory_type is MemoryType.DISCRETE else self.usable_bytes

    @property
    def usable_bytes(self) -> int:
        """What jobs that share it may be promised together, whatever others hold."""
        return usable_bytes(self.total_bytes, self.memory_type)

    @property
    def shared_bytes(self) -> int:
        """What jobs that share it may be promised together now: the smaller of usable and measured free."""
        return min(self.usable_bytes, self.whole_bytes)

    def has_base(self, base: str, size_bytes: int) -> bool:
        """Say whether a base model is there already."""
        return any(one.base == base and one.size_bytes == size_bytes for one in self.bases)

    @property
    def speed(self) -> float:
        """How fast it is beside an RTX 4090."""
        return speed_of(self.type)


@frozen
class NodeOffer:
    """One node, and what jobs of ours have of it."""

    node: str
    devices: tuple[DeviceOffer, ...] = ()
    slots: int = 1
    is_slot_per_device: bool = False
    """A slot is a device in use, or a job on the CPU; otherwise every job takes one."""
    ram_bytes: int | None = None
    """What jobs may hold together; nothing: nobody knows, and it is not asked about."""
    cores: int | None = None
    allow_jobs: tuple[str, ...] = ()
    deny_jobs: tuple[str, ...] = ()
    denied_for: tuple[tuple[str, str], ...] = ()
    """Of the words in `deny_jobs`, those that nobody's list has: why the machine can't have such jobs."""
    priority: int = 0
    closed: str = ""
    """Why nothing is put on it: drained, paused by its owner."""
    jobs: int = 0
    cpu_jobs: int = 0
    """Those of `jobs` that hold no device."""
    ram_held_bytes: int = 0
    """What its jobs were promised together, what they share counted once."""
    processes: tuple[ResidentProcess, ...] = ()
    """Those that jobs share."""
    cores_held: int = 0
    is_fake: bool = False
    """Its devices were invented."""

    @property
    def slots_held(self) -> int:
        if self.is_slot_per_device:
            return self.cpu_jobs + sum(1 for device in self.devices if device.jobs)
        return self.jobs


def offer_of(node: Node) -> NodeOffer:
    """Offer a node as it is declared, idle, with nothing measured."""
    by_default = Sharing.ALWAYS if node.may_share else Sharing.ASKED
    sharing = Sharing.NEVER if node.shares_devices is False else by_default
    is_counted = node.slots is not None or node.max_adapters > 1
    return NodeOffer(
        node=node.name,
        devices=tuple(_device(gpu, sharing) for gpu in node.gpus),
        slots=node.most_jobs,
        is_slot_per_device=not is_counted,
        ram_bytes=None if node.ram_mb is None else node.ram_mb * MIB,
        cores=node.cpu_cores,
        allow_jobs=node.allow_jobs,
        deny_jobs=node.deny_jobs,
        priority=node.priority,
    )


def _device(gpu: Gpu, sharing: Sharing) -> DeviceOffer:
    return DeviceOffer(
        uuid=gpu.uuid,
        type=gpu.type,
        backend=backend_of(gpu.type),
        memory_type=gpu.memory_type,
        total_bytes=gpu.total_bytes,
        sharing=sharing,
    )


_OF_OTHER_MAKERS = (
    (Backend.ROCM, ("amd", "radeon", "instinct", "mi100", "mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi325x")),
    (Backend.METAL, ("apple", "m1", "m2", "m3", "m4", "metal")),
    (Backend.ONEAPI, ("intel", "arc")),
)


def backend_of(type_name: str) -> Backend:
    """Say what a declared device is spoken to through: CUDA, unless its type names another maker."""
    words = set(type_name.lower().replace("-", " ").replace("_", " ").split())
    for backend, makers in _OF_OTHER_MAKERS:
        if words.intersection(makers):
            return backend
    return Backend.CUDA
