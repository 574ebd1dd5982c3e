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
    base_gib: float = 0.0
    """How much of `vram_gib` a company holds once, however many members it has."""
    base_memory_gib: float = 0.0
    """The same of `memory_gib`."""
    most: int = 0
    """How many members its company has at once; zero: as many as there is room for."""
    peaks: tuple[str, ...] = ()
    """Under which names it is remembered what a company took beside its base, and what was foretold; none: nowhere."""
    foretold_percent: float = 100.0
    """What those memories have made of what was foretold for a member."""
    company: str = ""
    """Whose like shares a process with it: filled in before it starts. Cores, too, are held once by all of them."""

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


@frozen
class Capacity:
    """What one machine (or one run on it) may hand out, its devices apart: those are shared with everybody on it."""

    cpu: int
    network: int = 4
    disk: int = 2
    memory_bytes: int = 0
    """Zero means: not limited."""
