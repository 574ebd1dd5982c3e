"""Pools and allocations: machines that can be started when jobs wait, and what was requested of their backends.

    planned ─▶ submitted ─▶ waiting ─▶ started ─▶ serving ─▶ draining ─▶ ended
       │  ╲                                                               ▲
       ▼   ▶ doubtful (the answer was lost) ─▶ adopted, or ended ─────────┘
    refused

Only nouns, and which moves are allowed. A pool is a kind of machine with a backend behind it: a batch system, a list of
SSH hosts, or this machine. An allocation is one thing requested there: a Slurm job, a Ray job, a Kubernetes Job, a
worker on an SSH host. Its worker is an ordinary machine of the fleet with the name `POOL-ID`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stoker.core.frozen import fresh, frozen

LABEL = "stoker"
"""First part of an allocation's name at its backend."""
ID_CHARACTERS = 6
LONGEST_POOL_NAME = 40
DEFAULT_IDLE_S = 300.0
DEFAULT_WALL_S = 4 * 3600.0
SSH_WALL_S = 30 * 86400.0
"""Of a node over SSH, which has no time limit of its own: as long as certificates live."""
DEFAULT_BACKLOG = 2
DEFAULT_PATIENCE_S = 10.0
_LEAST_DRAIN_S = 120.0


class PoolBackend(StrEnum):
    """What starts the workers of a pool."""

    LOCAL = "local"
    """Child processes on the launcher's own machine."""
    SSH = "ssh"
    SLURM = "slurm"
    RAY = "ray"
    KUBERNETES = "kubernetes"


@frozen
class PoolGpu:
    """One declared device of a pool's machines. A pool knows no UUID before a machine of it has started."""

    type: str
    vram_mb: int
    """In MiB, as in the cluster file."""


@frozen
class PoolShape:
    """What each machine of a pool has."""

    cpu_cores: int = 1
    ram_mb: int | None = None
    gpus: tuple[PoolGpu, ...] = ()
    slots: int | None = None
    """Jobs at once on each machine; None: one for each device, or one."""


@frozen
class Pool:
    """A kind of machine that can be started."""

    name: str
    backend: PoolBackend
    via: str = ""
    """The host with the backend's commands, over SSH, or the one of an SSH pool; empty: this machine."""
    each: PoolShape = PoolShape()
    wall_s: float = DEFAULT_WALL_S
    """The time limit of an allocation."""
    min: int = 0
    max: int = 1
    """Allocations at once."""
    idle_s: float = DEFAULT_IDLE_S
    """A worker without a job for this long exits."""
    backlog: int = DEFAULT_BACKLOG
    """Allocations that wait in the backend's queue at once."""
    patience_s: float = DEFAULT_PATIENCE_S
    """How long jobs wait before an allocation is requested for them."""
    drain_s: float | None = None
    """Time before the end in which jobs save their checkpoints; None: from the time limit."""
    options: Mapping[str, str] = fresh(factory=dict)
    """Further options of the backend, passed through."""
    setup: tuple[str, ...] = ()
    """Shell commands before the worker starts."""
    python: str = ""
    """A Python there that has Stoker; empty: Stoker is brought along."""
    folder: str = ""
    """A folder that the launcher and the pool's machines share; empty: the launcher's own."""
    is_automatic: bool = True
    """False: its machines start only by `stoker launch NAME`."""
    cost_per_hour: float = 0.0
    max_hours: float | None = None
    """Hours per day, of all allocations together."""

    @property
    def end_margin_s(self) -> float:
        """How long before the time limit a worker stops: for checkpoints to be saved and sent."""
        least_s = _LEAST_DRAIN_S if self.drain_s is None else self.drain_s
        return min(least_s, self.wall_s / 4)


class AllocationState(StrEnum):
    """Where an allocation stands."""

    PLANNED = "planned"
    """Its row is durable; the backend may not know of it yet."""
    DOUBTFUL = "doubtful"
    """The backend's answer was lost: it may have been submitted."""
    SUBMITTED = "submitted"
    WAITING = "waiting"
    """In the backend's queue."""
    STARTED = "started"
    """The backend runs it; its worker has not joined yet."""
    SERVING = "serving"
    """Its worker has joined the fleet."""
    DRAINING = "draining"
    """Its worker takes no more jobs."""
    REFUSED = "refused"
    """The backend did not accept it."""
    ENDED = "ended"


class AllocationCause(StrEnum):
    """Why an allocation ended."""

    FINISHED = "finished"
    """Its worker exited by itself: idle, or its time was over."""
    CANCELLED = "cancelled"
    """By the launcher or an operator of the fleet."""
    CANCELLED_THERE = "cancelled_there"
    """By somebody at the backend."""
    PREEMPTED = "preempted"
    """By the backend: for other work, at its time limit, with its node."""
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    NEVER_JOINED = "never_joined"
    NOT_SUBMITTED = "not_submitted"
    """The backend never had it."""
    REFUSED = "refused"


FREE_CAUSES = frozenset({AllocationCause.CANCELLED, AllocationCause.CANCELLED_THERE, AllocationCause.PREEMPTED})
"""Endings that cost the jobs of an allocation's machine nothing: they are preempted, not lost."""
_ON_ITS_WAY = frozenset(
    {AllocationState.PLANNED, AllocationState.DOUBTFUL, AllocationState.SUBMITTED, AllocationState.WAITING}
)
_OVER = frozenset({AllocationState.REFUSED, AllocationState.ENDED})
_ORDER = (
    AllocationState.PLANNED,
    AllocationState.DOUBTFUL,
    AllocationState.SUBMITTED,
    AllocationState.WAITING,
    AllocationState.STARTED,
    AllocationState.SERVING,
    AllocationState.DRAINING,
    AllocationState.ENDED,
)


def may_move(old: AllocationState, new: AllocationState) -> bool:
    """Return True if an allocation may go from one state to another: forwards, or from doubt into any live state."""
    if old in _OVER:
        return False
    if new is AllocationState.REFUSED:
        return old in (AllocationState.PLANNED, AllocationState.DOUBTFUL)
    if new is AllocationState.WAITING and old is AllocationState.STARTED:
        # The backend may put a job back into its queue before the job has done anything.
        return True
    return _ORDER.index(new) > _ORDER.index(old)


@frozen
class Allocation:
    """One thing requested of a backend."""

    id: str
    pool: str
    epoch: int = 0
    """The pool's when it was planned."""
    state: AllocationState = AllocationState.PLANNED
    backend_id: str = ""
    """As the backend names it; `12_3` for a member of an array."""
    reason: str = ""
    """The backend's own words about its state."""
    wanted: tuple[str, ...] = ()
    """Names of jobs that it was requested for; the first few."""
    planned_s: float = 0.0
    submitted_s: float | None = None
    started_s: float | None = None
    serving_s: float | None = None
    ends_s: float | None = None
    """When its time limit ends it."""
    ended_s: float | None = None
    cause: AllocationCause | None = None
    message: str = ""
    grants: int = 0
    """Jobs that its worker was granted."""

    @property
    def machine(self) -> str:
        """The name of its worker."""
        return f"{self.pool}-{self.id}"

    @property
    def name(self) -> str:
        """Its name at the backend."""
        return f"{LABEL}-{self.pool}-{self.id}"

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def is_on_its_way(self) -> bool:
        """Return True if it has not started yet."""
        return self.state in _ON_ITS_WAY

    @property
    def is_idle_room(self) -> bool:
        """Return True if it will bring a machine that the fleet does not see yet."""
        return self.is_on_its_way or self.state is AllocationState.STARTED


@frozen
class PoolState:
    """A pool with what the coordinator keeps about it."""

    pool: Pool
    is_declared: bool = True
    """False: the cluster file no longer has it, and some of its allocations have not ended."""
    paused: str = ""
    """Why it starts nothing; empty: it does."""
    watcher: str = ""
    """Who starts its workers now; empty: nobody."""
    epoch: int = 0
    """Rises with every change of the watcher; a write of an older one is refused."""
    watched_until_s: float = 0.0
    resumed_s: float = 0.0
    """When an operator last resumed it: what happened before no longer counts against it."""
