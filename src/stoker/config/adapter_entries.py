"""The adapters file's nouns: the adapters that are wanted over one base, as the file says them.

Only what was read, under the names that a recipe's arguments have; what a value means is the recipe's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.frozen import fresh, frozen
from stoker.core.text import LONGEST_NAME, is_job_name

BEST = "best"
"""Where the best of several results lies."""
_TAKEN = (BEST, "compare")
"""Folders of ours beside those of adapters."""
LABEL_RULE = f"letters, digits, spaces, and - _ . = , inside; at most {LONGEST_NAME} of them; not {' or '.join(_TAKEN)}"


@frozen
class AdapterEntry:
    """One `[[adapter]]` table."""

    number: int
    """From 1, as it stands in the file."""
    label: str
    """Its own among those of the file: what its results' folder is called."""
    data: str
    """Where its examples lie, from the root on; or a name that the recipe knows."""
    checkpoint: str
    """The folder for its checkpoints, from the root on; nobody else's."""
    values: Mapping[str, Any]
    """What else it says, by the recipe's arguments."""


@frozen
class AdaptersFile:
    """Everything that one file wants."""

    path: str
    """From the root on."""
    shared: Mapping[str, Any] = fresh(factory=dict)
    """What stands at its top, for every adapter that says nothing else."""
    adapters: tuple[AdapterEntry, ...] = ()


def is_label(text: str) -> bool:
    """Return whether an adapter may be called so: it becomes a folder's name."""
    return text == text.strip() and text not in _TAKEN and is_job_name(text.replace(" ", "_"))
