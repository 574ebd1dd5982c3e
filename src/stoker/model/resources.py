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

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)


@frozen
class Capacity:
    """What one machine (or one run on it) may hand out."""

    cpu: int
    gpus: tuple[str, ...] = ()
    """Names of the devices; a grant names which."""
    network: int = 4
    disk: int = 2
    memory_bytes: int = 0
    """Zero means: not limited."""
