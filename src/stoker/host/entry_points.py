"""Functions and values by name: how one process tells another what to run."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def entry_point(name: str) -> Any:
    """Import what `module:name` names, or `module:name.within`. Raises `ImportError`, `AttributeError`."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
