"""What one witness says, before anybody has compared it with others. Only nouns, and the spelling of addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.model.capability import ProbeFinding
from stoker.model.devices import Answer, Backend, MemoryType
from stoker.model.frozen import fresh, frozen

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")


@frozen
class Sighting:
    """What one witness says of one device. `None` and empty texts mean: it did not say."""

    backend: Backend
    uuid: str = ""
    pci: str = ""
    """As `tidy_pci` spells it."""
    index: int | None = None
    """The device's place in the witness's own list."""
    minor: int | None = None
    """The number of its device file."""
    name: str = ""
    memory_type: MemoryType | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    """What the driver keeps of the total for itself; programs never see it."""
    free_bytes: int | None = None
    driver: str = ""
    capability: str = ""
    parent: str = ""
    """The UUID of the device that this one is a part of."""
    is_split: bool = False
    """It was divided into parts, and only those can be used."""
    lacks_driver: bool = False
    """No driver has it with which a program could compute there, and nobody keeps it for something else."""
    works: Answer | None = None
    """Whether a program has computed on it, or what is known to stop one."""


@frozen
class Statement:
    """All that one witness said."""

    witness: str
    sightings: tuple[Sighting, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """What programs can speak → its version."""
    findings: tuple[ProbeFinding, ...] = ()
    looked_for: frozenset[Backend] = frozenset()
    """Kinds of device that it would have named, had it seen one."""
    was_heard: bool = True
    """Whether it gave an answer that could be read; only then does the number of its sightings mean anything."""


def tidy_pci(text: str) -> str:
    """Spell a PCI address as the kernel does, `0000:01:00.0`, whatever the tool; empty if it is none."""
    found = _PCI.fullmatch(text.strip().lower())
    if found is None:
        return ""
    domain = (found[1] or "0").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}:{found[3]}.{found[4] or '0'}"
