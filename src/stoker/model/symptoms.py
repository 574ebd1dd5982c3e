"""What may be wrong with a machine or one of its devices, in a word, with the reason and what helps."""

from __future__ import annotations

from enum import StrEnum

from stoker.model.frozen import frozen

SYSTEM_A = "system A"
"""What a machine whose worker is one of system A has in the place of a version."""


def is_skewed(version: str, of_coordinator: str) -> bool:
    """Return True if a worker's version is not the coordinator's. Those of system A have none of ours to compare."""
    return version not in (of_coordinator, SYSTEM_A)


class Ailment(StrEnum):
    """By the word that stands in events and lists."""

    SILENT = "silent"
    """Heard of within a day, but not lately."""
    FLAPPING = "flapping"
    """It comes and goes."""
    SLOW = "slow"
    """Much slower than others with the same work."""
    FATAL_ONLY = "fatal-only"
    """Nothing ends well there that ends well elsewhere."""
    SKEWED = "skewed"
    """Its program is another version than the coordinator's, or says none."""
    DISK = "disk"
    """Its disk is nearly full."""
    FAILING = "failing"
    """A device on which different jobs fail as they do on broken hardware."""


@frozen
class Symptom:
    """One thing that is wrong now."""

    machine: str
    device: str = ""
    """A UUID; empty: it is about the whole machine."""
    ailment: Ailment
    message: str
    """What was seen, with numbers."""
    hint: str
    """The command that helps."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.machine, self.device, self.ailment.value)
