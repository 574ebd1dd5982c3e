"""What became of a run: of each node and of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from stoker.core.clock import Clock
from stoker.core.device import Capacity
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.retry import FailureCause
from stoker.engine.device_gate import DeviceGate
from stoker.engine.key_leases import KeyLeases
from stoker.engine.permits import MemoryGate
from stoker.engine.result_cache import Cache, NodeProduct
from stoker.engine.run_history import History
from stoker.engine.runners.stage_runner import StageRunner
from stoker.engine.stage import Stage

if TYPE_CHECKING:
    from stoker.engine.runners.shared.shared_runner import SharedProcessRunner


@frozen
class Engine:
    """What the executor works with; the same for every run of a process."""

    cache: Cache
    history: History
    leases: KeyLeases
    runner_for: Callable[[Stage], StageRunner]
    capacity: Capacity
    memory: MemoryGate
    open_devices: Callable[[Callable[[], None]], DeviceGate]
    """Returns the device gate of one run; it calls back when a waiting stage may start."""
    clock: Clock
    shared_runner: Callable[[], SharedProcessRunner | None] = lambda: None
    """Returns the runner of stages that share a process; None: each has a process of its own."""
    announce: Callable[[Sequence[Stage]], None] = lambda _: None
    """Receives the stages of a plan before the first one runs, without those that share a process."""
    forked_runner: Callable[[], StageRunner] | None = None
    """Returns the runner, in another process, of an inline stage whose code this process does not have any more."""


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
    solo: bool = False
    """Each stage in a process of its own, also those that could share one."""


class NodeEnding(StrEnum):
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

    ending: NodeEnding
    key: Digest | None = None
    products: tuple[NodeProduct, ...] = ()
    has_bytes: bool = True
    seconds: float = 0.0
    cause: FailureCause | None = None
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

    def count(self, ending: NodeEnding) -> int:
        """Count ends; a fan-out counts by its instances."""
        return sum(1 for result in self.nodes.values() if result.ending is ending and result.instances is None)

    @property
    def hits(self) -> int:
        return self.count(NodeEnding.HIT)

    @property
    def ran(self) -> int:
        return self.count(NodeEnding.RAN)

    def failures(self) -> list[tuple[str, NodeResult]]:
        """Return the nodes that failed or diverged, in order."""
        bad = (NodeEnding.FAILED, NodeEnding.DIVERGED)
        return [(name, result) for name, result in self.nodes.items() if result.ending in bad]
