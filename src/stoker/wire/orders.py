"""Jobs on their way in: what is wanted, and what became of the wish."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from stoker.model.errors import BadInput
from stoker.model.leases import Partition
from stoker.model.requirements import DEFAULT_RAM_BYTES, Requirements, WantedJob, Wish
from stoker.wire.codec import said
from stoker.wire.protocol import Asked, Message

MOST_JOBS = 100_000
"""In one submission."""

JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Bytes = Annotated[int, Field(ge=0, le=1 << 60)]


class RequirementsBody(Asked):
    """What a job asks of its machine: `model.requirements.Requirements`, field by field."""

    wish: Wish = Wish.NEVER
    device_count: Annotated[int, Field(ge=1, le=1024)] = 1
    vram_bytes: Bytes = 0
    ram_bytes: Bytes = DEFAULT_RAM_BYTES
    cores: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    may_share: bool = False
    base: str = ""
    base_bytes: Bytes = 0
    transfer_mb: Annotated[float, Field(ge=0)] = 0.0
    mflop: Annotated[float, Field(ge=0)] = 0.0

    def requirements(self) -> Requirements:
        """Give them as placement reads them."""
        return Requirements(**{name: getattr(self, name) for name in type(self).model_fields})


class JobOrder(Asked):
    """One job as it is submitted: whole, checked and default-filled. Its id is made from what changes its result."""

    id: JobId
    name: Annotated[str, Field(min_length=1, max_length=200)]
    number: Annotated[int, Field(ge=0)] = 0
    """Of a sweep's points, from 1; 0: no sweep."""
    label: str = ""
    """`lr=0.001,seed=1`: a sweep point's folder."""
    point: dict[str, Any] = {}
    recipe: Annotated[str, Field(min_length=1, max_length=200)]
    schema_version: int = 1
    mode: str = ""
    args: dict[str, Any] = {}
    """As the recipe takes them; paths made whole."""
    identity: dict[str, Any] = {}
    """Those of `args` that belong to the id, files as their digests."""
    seed: int | None = None
    split_recipe: Any = None
    train_hosts: tuple[str, ...] = ()
    folder: str = ""
    """Where it was submitted: a program runs there."""
    code: dict[str, str] = {}
    """File or module → digest, as they were at submission; recorded with the result, no part of the id."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    requirements: RequirementsBody = RequirementsBody()
    allowed_hosts: tuple[str, ...] = ()
    prefer_hosts: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Names of jobs (of a sweep: all its points), in this submission or known already."""
    secrets: tuple[str, ...] = ()
    """Names of variables taken from the worker's own environment; never their values."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 1
    """How many failures of its own it may have, the first included."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    on_partition: Partition = Partition.STOP

    def wanted(self) -> WantedJob:
        """Give it as placement sees it."""
        return WantedJob(
            name=self.name,
            model=self.recipe,
            requirements=self.requirements.requirements(),
            priority=self.priority,
            allowed_hosts=self.allowed_hosts,
            preferred_hosts=self.prefer_hosts,
        )


def job_order(**fields: Any) -> JobOrder:
    """Make an order. `BadInput`, in one line, for what can't travel: a number beyond all use, text that is none."""
    try:
        return JobOrder(**fields)
    except ValidationError as error:
        raise BadInput(f"job {fields.get('name', '')!r} can't be submitted: {said(error)}") from None


class OnChangedCode(StrEnum):
    """What to do with completed jobs whose code is another now."""

    KEEP = "keep"
    RERUN = "rerun"


class HostPolicy(Asked):
    """What a submitted manifest says about a machine; needs the operate role. Absent fields say nothing."""

    name: str
    description: str | None = None
    priority: int | None = None
    allow_jobs: tuple[str, ...] | None = None
    deny_jobs: tuple[str, ...] | None = None


class Submission(Asked):
    """All jobs of one manifest or command line; accepted together or not at all."""

    key: Annotated[str, Field(max_length=200)] = ""
    """The same key with the same jobs gives the same answer again; with others it is a conflict."""
    jobs: Annotated[tuple[JobOrder, ...], Field(max_length=MOST_JOBS)]
    hosts: tuple[HostPolicy, ...] = ()
    submitter: Annotated[str, Field(max_length=200)] = ""
    """`user@host`, as the submitting program says."""
    source: str = ""
    """The manifest's path, or the command line."""
    on_changed_code: OnChangedCode = OnChangedCode.KEEP
    dry_run: bool = False
    """Say what would change, and change nothing."""


class Outcome(StrEnum):
    """What a submission did to one job."""

    NEW = "new"
    KNOWN = "known"
    """It stands as it stood."""
    CHANGED = "changed"
    """Priority, requirements, name or number are others now; its state is not."""
    REQUEUED = "requeued"
    """It had failed, and its code is another now; or a rerun was asked for."""
    KEPT = "kept"
    """It had completed, its code is another now, and its result was kept: say so loudly."""


class OrderOutcome(Message):
    """One job of a submission, afterwards."""

    id: str
    name: str
    number: int
    outcome: Outcome
    state: str
    changes: tuple[str, ...] = ()
    """Which fields are others now."""
    forecast: str = ""
    """Of a dry run, what would become of it: `waits, 3rd in line. desk: taken by resnet/1 for about 10m00s`."""


class Submitted(Message):
    """The answer to a submission; jobs in its order."""

    jobs: tuple[OrderOutcome, ...]
    counts: dict[str, int]
    """By outcome."""
    vanished: tuple[str, ...] = ()
    """Pending jobs that the same source had brought and now does not name; they stay until somebody cancels them."""
    dry_run: bool = False
