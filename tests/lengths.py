"""How much is tried: some examples and moments in `make test`, which is for everybody, all of them in `make soak`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import settings


def examples(some: int, everything: int) -> int:
    """Choose by the profile that is loaded when a module of tests is imported."""
    return some if settings().derandomize else everything


def moments() -> Iterator[int]:
    """Return the steps at which a process is killed: the first four, then every third; all of them in `make soak`."""
    return itertools.chain(range(4), itertools.count(4, examples(3, 1)))
