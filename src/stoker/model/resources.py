"""Resources that a stage asks for, as a vector: taken all together or not at all."""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen

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
    """What one stage holds while it runs. Zero memory means: nothing declared."""

    cpu: int = 1
    gpu: int = 0
    network: int = 0
    disk: int = 0
    memory_gib: float = 0.0
    vram_gib: float = 0.0
    """On each of its devices."""
    ranks: int = 1
    """As how many processes it runs, brought up together: a gang if more than one. All else is for all of them."""
    shares: bool = False
    """It may run beside others on its devices, within `vram_gib`; else it has them to itself."""

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)

    @property
    def vram_bytes(self) -> int:
        return int(self.vram_gib * GIB)


@frozen
class Capacity:
    """What one machine (or one run on it) may hand out, its devices apart: those are shared with everybody on it."""

    cpu: int
    network: int = 4
    disk: int = 2
    memory_bytes: int = 0
    """Zero means: not limited."""
