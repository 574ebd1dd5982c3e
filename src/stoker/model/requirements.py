"""Requirements: what a job asks of the machine it is put on. Only nouns."""

from __future__ import annotations

from enum import StrEnum

from stoker.model.devices import Backend
from stoker.model.frozen import frozen
from stoker.model.resources import GIB

DEFAULT_RAM_BYTES = 4 * GIB
MOST_PRIORITY = 1_000_000
"""Of a job, and below zero, too."""
MOST_EXPECTED_S = 366 * 86400.0
"""The longest duration that a submitter may state."""


class Wish(StrEnum):
    """How a job stands to accelerators."""

    NEVER = "cpu"
    """It computes on the CPU."""
    PREFER = "prefer"
    """A device if one fits, else the CPU."""
    REQUIRE = "require"
    """A device, or it does not start."""


@frozen
class Requirements:
    """What one job needs. Zero means: nothing declared."""

    wish: Wish = Wish.NEVER
    backend: Backend = Backend.CUDA
    device_count: int = 1
    """How many devices, if it gets any."""
    vram_bytes: int = 0
    """On each device, never summed over several."""
    ram_bytes: int = DEFAULT_RAM_BYTES
    cores: int = 0
    may_share: bool = False
    """It may run beside others on its device, within `vram_bytes`."""
    base: str = ""
    """What it shares with its like on one device: the digest of a base model. Charged once per device."""
    base_bytes: int = 0
    """How much of `vram_bytes` that base is."""
    base_ram_bytes: int = 0
    """How much of `ram_bytes` the process takes that works for all jobs of one base on one device, or on the CPU."""
    transfer_mb: float = 0.0
    """What has to go to the device and back, for the cost rule; zero: unknown."""
    mflop: float = 0.0
    """What is computed there, for the cost rule; zero: unknown."""


@frozen
class WantedJob:
    """A job as placement sees it: its names, its wishes about machines, its requirements."""

    name: str
    model: str = ""
    """The recipe or model; allow and deny lists match it or the name."""
    requirements: Requirements
    priority: int = 0
    allowed_hosts: tuple[str, ...] = ()
    """Empty: all."""
    preferred_hosts: tuple[str, ...] = ()
    """Better than others if they fit."""
    environment: str = ""
    """What its Python environments amount to, by one digest; empty: it has none of its own."""
    code: str = ""
    """The word for its code (`code_word`), where some machine asks about that; else empty."""


def code_word(tree: str, commit: str) -> str:
    """Give the word by which a machine that runs only certain code denies other programs. No job can be called so."""
    return f"code:{tree}:{commit}"


def environment_word(digest: str) -> str:
    """Give the word by which a machine that can't have an environment denies the jobs that need it.

    No job can be called so.
    """
    return f"env:{digest}"
