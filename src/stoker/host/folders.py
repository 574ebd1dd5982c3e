"""Small things about folders that several rooms need."""

from __future__ import annotations

import os

from stoker.host.durable import translated

PASSED_THROUGH = 0o711
"""The mode of a folder that other users pass through and do not list: whoever knows no name in it finds nothing."""


def names_in(folder: str) -> list[str]:
    """Give the names in a folder, sorted; none if it can't be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def make_passed_through(folder: str) -> None:
    """Make a folder that other users may pass through and not list."""
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, PASSED_THROUGH)
