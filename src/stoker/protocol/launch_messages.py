"""Messages about pools, allocations and demand, between launchers, operators and the coordinator.

A response has the nouns of `core.pool` themselves. Their texts come from backends and cluster files: those that are
shown in a line are made safe when they are read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from stoker.core.machine import Demand, Requirements, SchedulableJob
from stoker.core.pool import (
    Allocation,
    AllocationCause,
    AllocationState,
    LaunchRequest,
    Pool,
    PoolGpu,
    PoolShape,
    PoolState,
)
from stoker.protocol.codec import Checked, StrictRequest, WireMessage, adapter_of
from stoker.protocol.view_messages import By, FiniteSeconds, Line, ViewCount

MOST_AT_ONCE = 1000
"""Allocations, or pools, in one request."""
MOST_WATCH_S = 3600.0
MOST_WANTED = 3
"""Names of jobs that are stored with an allocation."""
_MOST_TEXT = 2000

AllocationId = Annotated[str, Field(pattern=r"^[0-9a-f]{6}$")]
RequestId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
PoolName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9-]+$")]
Epoch = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=_MOST_TEXT)]
Moment = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]

PoolShapeFacts = Annotated[PoolShape, Checked(is_open=True, gpus=tuple[Annotated[PoolGpu, Checked(is_open=True)], ...])]
PoolFacts = Annotated[Pool, Checked(is_rechecked=False, is_open=True, each=PoolShapeFacts, found=PoolShapeFacts | None)]
PoolStateFacts = Annotated[
    PoolState, Checked(is_rechecked=False, is_open=True, pool=PoolFacts, paused=Line, watcher=Line, problem=Line)
]
AllocationFacts = Annotated[
    Allocation,
    Checked(
        is_rechecked=False,
        is_open=True,
        id=AllocationId,
        backend_id=Line,
        reason=Line,
        wanted=tuple[Line, ...],
        message=Line,
        planned_s=FiniteSeconds,
    ),
]
DemandFacts = Annotated[
    Demand,
    Checked(
        is_rechecked=False,
        is_open=True,
        job=Annotated[
            SchedulableJob,
            Checked(is_rechecked=False, is_open=True, requirements=Annotated[Requirements, Checked(is_open=True)]),
        ],
        names=tuple[Line, ...],
        since_s=FiniteSeconds,
    ),
]
LaunchRequestFacts = Annotated[
    LaunchRequest,
    Checked(
        is_rechecked=False,
        is_open=True,
        id=RequestId,
        requester=Line,
        requested_s=FiniteSeconds,
        allocations=tuple[AllocationId, ...],
        message=Line,
        code=Line,
    ),
]
POOL_BODY: TypeAdapter[Pool] = adapter_of(PoolFacts)


class LaunchView(WireMessage):
    """Everything that a launcher decides by, at one moment."""

    fleet: Line
    """Part of the label of this fleet's allocations at backends; the same for as long as its database lives."""
    now_s: FiniteSeconds
    """By the coordinator's clock, as all times here."""
    urls: tuple[Line, ...] = ()
    """Where workers reach the coordinator, by each of its names; none: it serves only its own machine."""
    machines: ViewCount = 0
    """Machines of the fleet that take jobs now."""
    pools: tuple[PoolStateFacts, ...] = ()
    allocations: tuple[AllocationFacts, ...] = ()
    """All that have not ended, then the newest that have."""
    silent: tuple[AllocationId, ...] = ()
    """Allocations that serve, and whose worker sends no heartbeat."""
    demand: tuple[DemandFacts, ...] = ()
    """In the order of the queue."""
    requests: tuple[LaunchRequestFacts, ...] = ()
    """Of operators, the oldest first: open ones, and those that were closed lately."""


class WatchRequest(StrictRequest):
    """A launcher's request to watch pools, or to watch them for longer; for 0 s: no longer."""

    watcher: Annotated[str, Field(min_length=1, max_length=200)]
    """Unique for each start of a launcher."""
    pools: Annotated[tuple[PoolName, ...], Field(min_length=1, max_length=MOST_AT_ONCE)]
    for_s: Annotated[float, Field(ge=0, le=MOST_WATCH_S)]
    problem: Text = ""
    """Why it can't work with the backend of these pools now; empty: it can."""


class WatchResponse(WireMessage):
    """The epoch of each watched pool, which every write for it names."""

    epochs: dict[str, int]


class AllocationPlan(StrictRequest):
    """An allocation that a launcher is about to request of a backend."""

    id: AllocationId
    wanted: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=MOST_WANTED)] = ()
    """Names of jobs that it is for."""


class PlanRequest(StrictRequest):
    """Make allocations durable before a backend gets them."""

    epoch: Epoch
    plans: Annotated[tuple[AllocationPlan, ...], Field(min_length=1, max_length=MOST_AT_ONCE)]
    request: RequestId | Literal[""] = ""
    """The operator's request that they carry out."""


class PlanResponse(WireMessage):
    """The key of each allocation's ticket, in hexadecimal. A repeat gets the same keys."""

    tickets: dict[str, str]


class AllocationMove(StrictRequest):
    """What a launcher found out about an allocation. Fields that are left out stay as they are."""

    id: AllocationId
    state: AllocationState | None = None
    backend_id: Annotated[str, Field(max_length=200)] = ""
    reason: Text | None = None
    """The backend's own words about its state."""
    cause: AllocationCause | None = None
    """Of an end."""
    message: Text = ""
    may_start_s: Moment | None = None
    """With a reason: when the backend expects to start it; None: it does not say."""
    started_s: Moment | None = None
    ends_s: Moment | None = None
    is_signalled: bool = False
    """Its worker was signalled to end."""


class MoveRequest(StrictRequest):
    """Moves of some allocations of one pool."""

    epoch: Epoch
    moves: Annotated[tuple[AllocationMove, ...], Field(min_length=1, max_length=MOST_AT_ONCE)]


class PoolRequest(StrictRequest):
    """An operator's request about a pool."""

    why: Annotated[str, Field(max_length=500)] = ""
    by: By = ""


class MachinesRequest(StrictRequest):
    """An operator's request for machines of a pool."""

    id: RequestId
    """Chosen by the sender: a repeat changes nothing."""
    count: Annotated[int, Field(ge=0, le=MOST_AT_ONCE)] = 0
    """0: as many as waiting jobs need."""
    by: By = ""


class CloseMachinesRequest(StrictRequest):
    """Close a request for machines: withdrawn, or answered by the pool's launcher, which names its epoch."""

    epoch: Epoch | None = None
    message: Text = ""
    code: Annotated[str, Field(pattern=r"^[a-z_]{0,40}$")] = ""
    """Of the error because of which no machine starts; empty: no error."""
    by: By = ""


class StopRequest(StrictRequest):
    """Stop allocations."""

    ids: Annotated[tuple[AllocationId, ...], Field(max_length=MOST_AT_ONCE)] = ()
    """Empty: all of the pool."""
    by: By = ""
