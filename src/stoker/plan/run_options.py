"""How a person wants a plan to run."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.digests import Digest
from stoker.model.frozen import fresh, frozen

MAX_IN_FLIGHT = 8


@frozen
class RunOptions:
    """How a person wants a plan to run."""

    max_in_flight: int = MAX_IN_FLIGHT
    keep_going: bool = False
    max_failures: int | None = None
    """With keep_going: give up after this many failures."""
    rerun: frozenset[str] = frozenset()
    """Nodes or stages to run although their results are known."""
    kept: Mapping[str, Digest] = fresh(factory=dict)
    """Nodes whose results an earlier job made, by their keys: they serve as they are if their bytes are whole."""
    grace_s: float = 10.0
    """Between asking to stop and killing."""
    deadline_s: float | None = None
    partition: str = ""
    solo: bool = False
    """Each stage in a process of its own, also those that could share one."""
