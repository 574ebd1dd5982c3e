"""How many examples a property gets: some in `make test`, which is for everybody, and all of them in `make soak`."""

from __future__ import annotations

from hypothesis import settings


def examples(some: int, everything: int) -> int:
    """Choose by the profile that is loaded when a module of tests is imported."""
    return some if settings().derandomize else everything
