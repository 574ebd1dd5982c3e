"""What jobs of one recipe may have in common: a base, held once by the process that works for all of them. Only nouns.

A recipe says it of checked arguments (`@recipe(shares=…)`), without running anything, so that a job can be placed
beside its like on machines that whoever submits it has never seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.model.frozen import frozen


@frozen
class SharedBase:
    """What one job shares, and how much memory that and its own part take."""

    word: str
    """What the base is and how it is held, by content: as the stage says it that works together (`Together.key`)."""
    base_bytes: int
    """On a device: of the base, once."""
    member_bytes: int
    """On a device: of this job, beside the base."""
    base_ram_bytes: int
    """The same two where it computes on the CPU."""
    member_ram_bytes: int
    about: str = ""
    """What people are told of the base."""


Shares = Callable[[Any, Callable[[str], str]], SharedBase | None]
"""Says of a recipe's checked arguments, and by a function that digests the file at a path, what such a job shares."""
