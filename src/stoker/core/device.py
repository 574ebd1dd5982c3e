"""Devices: what one accelerator is, how far it can be used, and how much of its memory may be shared out.

Only nouns and integer arithmetic. `devices` detects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stoker.core.frozen import fresh, frozen

MIB = 1024**2


class Backend(StrEnum):
    """Interface between programs and an accelerator."""

    CUDA = "cuda"
    ROCM = "rocm"
    METAL = "metal"
    WEBGPU = "webgpu"
    ONEAPI = "oneapi"
    OPENCL = "opencl"
    OPENGL = "opengl"


CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
HIP_VARIABLE = "HIP_VISIBLE_DEVICES"
ROCR_VARIABLE = "ROCR_VISIBLE_DEVICES"


@frozen
class DeviceVendor:
    """How the devices of one backend are named and selected outside of Stoker."""

    label: str
    """The backend, as its vendor writes it."""
    type_words: tuple[str, ...] = ()
    """Words in the types and names of its devices."""
    variables: tuple[str, ...] = ()
    """Variables that select the devices of a program."""
    variable_prefixes: tuple[str, ...] = ()
    """Prefixes of all variables of its libraries."""


VENDORS: Mapping[Backend, DeviceVendor] = {
    Backend.CUDA: DeviceVendor(
        label="CUDA",
        variables=(CUDA_ORDER_VARIABLE, CUDA_VARIABLE),
        variable_prefixes=("CUDA_", "NVIDIA_"),
    ),
    Backend.ROCM: DeviceVendor(
        label="ROCm",
        type_words=(
            "amd", "radeon", "instinct", "mi100", "mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi325x",
        ),
        variables=(HIP_VARIABLE, ROCR_VARIABLE),
        variable_prefixes=("HIP_", "ROCR_", "HSA_", "GPU_"),
    ),
    Backend.METAL: DeviceVendor(label="Metal", type_words=("apple", "m1", "m2", "m3", "m4", "metal")),
    Backend.ONEAPI: DeviceVendor(label="oneAPI", type_words=("intel", "arc")),
}  # fmt: skip
COMPUTE_BACKENDS = tuple(VENDORS)
"""Backends with devices of their own: a job may require one of these. The others use devices of these backends."""


class MemoryType(StrEnum):
    """Whose memory a device works in."""

    DISCRETE = "discrete"
    """Its own."""
    UNIFIED = "unified"
    """The machine's, shared with all processes."""

    @property
    def usable_percent(self) -> int:
        """How much of it jobs that share a device may be promised together."""
        return 85 if self is MemoryType.DISCRETE else 60


def usable_bytes(total_bytes: int, memory_type: MemoryType) -> int:
    """Return what jobs that share a device may be promised together, in whole MiB: 24564 MiB give 20879."""
    return total_bytes // MIB * memory_type.usable_percent // 100 * MIB


class TriState(StrEnum):
    """An answer that may also be unknown."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@frozen
class TriStateAnswer:
    """A verdict with its reason."""

    verdict: TriState
    why: str = ""

    @property
    def is_yes(self) -> bool:
        return self.verdict is TriState.YES

    @property
    def is_no(self) -> bool:
        return self.verdict is TriState.NO

    def to_dict(self) -> dict[str, str]:
        return {"verdict": str(self.verdict), "why": self.why}


UNKNOWN = TriStateAnswer(verdict=TriState.UNKNOWN)


@frozen
class Device:
    """One accelerator as detected. `None` and empty texts mean unknown."""

    uuid: str
    """Its identity. Where the vendor has none, one is made that is unique on this host."""
    backend: Backend
    name: str = ""
    index: int | None = None
    """A local alias, which shifts when another card goes away."""
    memory_type: MemoryType = MemoryType.DISCRETE
    total_bytes: int | None = None
    free_bytes: int | None = None
    driver: str = ""
    capability: str = ""
    """The vendor's word for its generation: `9.0`, `gfx1100`."""
    pci: str = ""
    installed: TriStateAnswer = UNKNOWN
    """The machine has it."""
    visible: TriStateAnswer = UNKNOWN
    """Programs started from here may see it: no variable and no permission hides it."""
    usable: TriStateAnswer = UNKNOWN
    """A program has worked on it, or what would stop one is known."""
    is_fake: bool = False
    sources: Mapping[str, str] = fresh(factory=dict)
    """Which probe said what: field → probe."""

    @property
    def may_be_used(self) -> bool:
        """Whether work may be put on it: nothing is known that hides or stops it."""
        return not (self.visible.is_no or self.usable.is_no)

    @property
    def usable_bytes(self) -> int | None:
        """What jobs that share it may be promised together."""
        return None if self.total_bytes is None else usable_bytes(self.total_bytes, self.memory_type)

    def to_dict(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "backend": str(self.backend),
            "name": self.name,
            "index": self.index,
            "memory_type": str(self.memory_type),
            "total_bytes": self.total_bytes,
            "free_bytes": self.free_bytes,
            "driver": self.driver,
            "capability": self.capability,
            "pci": self.pci,
            "installed": self.installed.to_dict(),
            "visible": self.visible.to_dict(),
            "usable": self.usable.to_dict(),
            "is_fake": self.is_fake,
            "sources": dict(self.sources),
        }


# Resources that a stage asks for, as a vector: taken all together or not at all.

GIB = 1024**3


class Resource(StrEnum):
    """What can run out on one machine, in the fixed order in which shortages are reported."""

    GPU = "gpu"
    CPU = "cpu"
    NETWORK = "network"
    DISK = "disk"
    MEMORY = "memory"


@frozen
class Needs:
    """What one stage holds while it runs. Zero memory means nothing declared."""

    cpu: int = 1
    gpu: int = 0
    network: int = 0
    disk: int = 0
    memory_gib: float = 0.0
    vram_gib: float = 0.0
    """On each of its devices."""
    gpu_backend: str = ""
    """Backend of its devices, one of `COMPUTE_BACKENDS`; empty: any."""
    ranks: int = 1
    """Number of processes, brought up together: a gang if more than one. The other fields are for all of them."""
    shares: bool = False
    """It may run beside others on its devices, within `vram_gib`; otherwise its devices are exclusive."""
    base_gib: float = 0.0
    """The part of `vram_gib` that a shared process holds once, for any number of members."""
    base_memory_gib: float = 0.0
    """The same of `memory_gib`."""
    most: int = 0
    """Maximum number of members at once; zero: as many as fit."""
    peaks: tuple[str, ...] = ()
    """Names under which measured memory beside the base is remembered, with its estimate; empty: not remembered."""
    foretold_percent: float = 100.0
    """Correction of a member's estimate by earlier measurements."""
    share_key: str = ""
    """Share key of its shared process, set before it starts. Cores, too, are held once by all members."""
    state_gib: float = 0.0
    """The part of `vram_gib`, or without a device of `memory_gib`, that a member always holds beside the base."""
    pass_gib: float = 0.0
    """What a member takes beside that in a pass of some of the members. Zero: a pass always has all of them."""
    in_pass: int = 0
    """Maximum number of members in one pass of the shared process, set before it starts; zero: all of them."""

    def may_use(self, device: Device) -> bool:
        """Return True if a device is of the required backend."""
        return self.gpu_backend in ("", device.backend)

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)

    @property
    def base_bytes(self) -> int:
        return int(self.base_gib * GIB)

    @property
    def base_memory_bytes(self) -> int:
        return int(self.base_memory_gib * GIB)

    @property
    def vram_bytes(self) -> int:
        return int(self.vram_gib * GIB)

    @property
    def state_bytes(self) -> int:
        return int(self.state_gib * GIB)

    @property
    def pass_bytes(self) -> int:
        return int(self.pass_gib * GIB)


@frozen
class Capacity:
    """What one machine, or one run on it, may hand out. Devices are not part of it: other processes share them."""

    cpu: int
    network: int = 4
    disk: int = 2
    memory_bytes: int = 0
    """Zero means no limit."""
