"""What became of a run: of each node and of the whole."""

from __future__ import annotations

from enum import StrEnum

from stoker.model.digests import Digest
from stoker.model.errors import StokerError
from stoker.model.frozen import changeable, frozen
from stoker.model.retry import Cause
from stoker.plan.cache import Product


class Ending(StrEnum):
    """How a node ended."""

    HIT = "hit"
    RAN = "ran"
    FAILED = "failed"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"
    PRUNED = "pruned"


@changeable
class NodeResult:
    """One node's end."""

    ending: Ending
    key: Digest | None = None
    products: tuple[Product, ...] = ()
    has_bytes: bool = True
    seconds: float = 0.0
    cause: Cause | None = None
    message: str = ""
    hint: str = ""
    instances: int | None = None
    """Of a fan-out, how many it had; they have results of their own, and it did no work itself."""


@frozen
class RunResult:
    """The whole run. `error` is the first failure, or why it was stopped; None if everything has its result."""

    nodes: dict[str, NodeResult]
    final: str
    elapsed_s: float
    error: StokerError | None = None
    warnings: tuple[str, ...] = ()

    def count(self, ending: Ending) -> int:
        """Count ends; a fan-out counts by its instances."""
        return sum(1 for result in self.nodes.values() if result.ending is ending and result.instances is None)

    @property
    def hits(self) -> int:
        return self.count(Ending.HIT)

    @property
    def ran(self) -> int:
        return self.count(Ending.RAN)

    def failures(self) -> list[tuple[str, NodeResult]]:
        """Give the nodes that failed or diverged, in order."""
        bad = (Ending.FAILED, Ending.DIVERGED)
        return [(name, result) for name, result in self.nodes.items() if result.ending in bad]
