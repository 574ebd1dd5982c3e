"""Devices: what one accelerator is, how far it can be used, and how much of its memory may be shared out.

Only nouns and integer arithmetic. Finding devices is `hardware`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stoker.model.frozen import fresh, frozen

MIB = 1024**2


class Backend(StrEnum):
    """What a program speaks to an accelerator through."""

    CUDA = "cuda"
    ROCM = "rocm"
    METAL = "metal"
    WEBGPU = "webgpu"
    ONEAPI = "oneapi"
    OPENCL = "opencl"
    OPENGL = "opengl"


class MemoryType(StrEnum):
    """Whose memory a device works in."""

    DISCRETE = "discrete"
    """Its own."""
    UNIFIED = "unified"
    """The machine's, with everybody else."""

    @property
    def usable_percent(self) -> int:
        """How much of it jobs that share a device may be promised together."""
        return 85 if self is MemoryType.DISCRETE else 60


def usable_bytes(total_bytes: int, memory_type: MemoryType) -> int:
    """Give what jobs that share a device may be promised together, in whole MiB: 24564 MiB give 20879."""
    return total_bytes // MIB * memory_type.usable_percent // 100 * MIB


class Verdict(StrEnum):
    """An answer that may also be unknown."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@frozen
class Answer:
    """A verdict with its reason."""

    verdict: Verdict
    why: str = ""

    @property
    def is_yes(self) -> bool:
        return self.verdict is Verdict.YES

    @property
    def is_no(self) -> bool:
        return self.verdict is Verdict.NO

    def to_dict(self) -> dict[str, str]:
        return {"verdict": str(self.verdict), "why": self.why}


@frozen
class Device:
    """One accelerator as it was found. `None` and empty texts mean: nobody could say."""

    uuid: str
    """Its identity. Where the vendor has none, one is made that is unique on this host."""
    backend: Backend
    name: str
    index: int | None = None
    """A local alias, which shifts when another card goes away."""
    memory_type: MemoryType = MemoryType.DISCRETE
    total_bytes: int | None = None
    free_bytes: int | None = None
    driver: str = ""
    capability: str = ""
    """The vendor's word for its generation: `9.0`, `gfx1100`."""
    pci: str = ""
    installed: Answer
    """The machine has it."""
    visible: Answer
    """Programs started from here may see it: no variable and no permission hides it."""
    usable: Answer
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
