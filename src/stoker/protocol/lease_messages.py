"""Messages between worker and coordinator: hello, claim, start, renew, and the ends of an attempt.

Deadlines are sent as durations. A worker counts from before it sent the request, on a clock that also counts suspend;
the coordinator adds its grace period, so neither depends on the other's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from stoker.core.frozen import field_names
from stoker.core.job import OF_THE_QUEUE, JobSpec
from stoker.core.leases import MOST_LEFT_S, AttemptToken
from stoker.core.text import LONGEST_NAME
from stoker.protocol.codec import WireMessage
from stoker.protocol.job_messages import JobId, SpecMessage

Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""As in `core.text.is_node_name`."""
OptionalDigest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
"""The range of every database."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LeftSeconds = Annotated[Seconds, Field(le=MOST_LEFT_S)]
"""Time until a machine leaves."""
Code = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_. -]+$")]
"""A word for programs, such as a cause."""
ExitCode = Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)]
Fact = Annotated[str, Field(max_length=200)]
Word = Annotated[str, Field(min_length=8, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")]
Rows = Annotated[int, Field(ge=1, le=10_000)]
"""Rows or columns of a terminal."""


class MachineInventory(WireMessage):
    """What a worker has in its cache: trees that others may fetch, and environments."""

    trees: Annotated[tuple[JobId, ...], Field(max_length=10_000)] = ()
    platform: Fact = ""
    """`linux-aarch64`."""
    libc: Fact = ""
    """`glibc 2.36`."""
    pythons: Annotated[tuple[Fact, ...], Field(max_length=100)] = ()
    """Python versions for environments, the preferred one first."""
    environments: Annotated[tuple[JobId, ...], Field(max_length=1000)] = ()
    """Digests (`EnvironmentChoice.digest`) of environments that are ready."""
    impossible: dict[JobId, Annotated[str, Field(max_length=500)]] = Field(default_factory=dict)
    """Environment → why it can't be built here: no wheel of torch for aarch64 cp310."""
    builds_s: dict[JobId, Seconds] = Field(default_factory=dict)
    """Environment → its build time."""
    brings_bytes_per_s: Count = 0
    """Rate of the last data transfer to it; 0: unknown."""


class Hello(WireMessage):
    """A worker's registration: its name and what its machine has."""

    worker: Name
    """The node's name, its host id."""
    incarnation: Word
    """Random per start. Leases belong to it; a new incarnation ends the leases of an old one at once."""
    boot_id: Fact = ""
    version: Fact = ""
    """Of the program."""
    capability: dict[str, Any]
    """`Capability.to_dict()`."""
    capability_digest: Fact
    slots: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum concurrent jobs (default: that of the cluster file, else one per device)."""
    declared: dict[str, Any] = Field(default_factory=dict)
    """Declared with `--declare`: `cores`, `ram_bytes`, `gpus` …; the smaller of declared and detected applies."""
    holdings: MachineInventory | None = None
    accepts: Annotated[tuple[Fact, ...], Field(max_length=1000)] = ()
    """Trees and commits; it runs only their code (default: any)."""
    contents_at: Fact = ""
    """URL from which other machines can fetch trees; empty: none."""
    features: Annotated[tuple[Fact, ...], Field(max_length=100)] = ()
    """Supported features besides leases."""
    ends_in_s: LeftSeconds | None = None
    """Time until the machine leaves; None: no end is known."""


class Welcome(WireMessage):
    """The coordinator's response to a hello."""

    worker: str
    generation: int
    heartbeat_s: float
    lease_s: float
    start_s: float
    claim_wait_s: float
    server_s: float
    """The coordinator's wall clock, to show the offset; no decision uses it."""
    version: str
    closed: str = ""
    """Why it gets no jobs: drained, cordoned, paused."""
    drift: tuple[str, ...] = ()
    """Differences between cluster file and detection."""
    slots: int = 0
    """Maximum concurrent jobs; 0: as requested."""


class WorkerMeasurements(WireMessage):
    """Current measurements of a worker."""

    ram_available_bytes: int | None = None
    ram_room_bytes: int | None = None
    """RAM that a job may use now: available RAM less the system reserve; None: not reported."""
    disk_free_bytes: int | None = None
    free_bytes: dict[str, int] = Field(default_factory=dict)
    """Per device; memory held by our jobs counts as free."""
    closed: dict[str, str] = Field(default_factory=dict)
    """Device → why no job may start on it; "" is the whole machine: paused by its owner, disk full."""


class Claim(WireMessage):
    """A worker's request for jobs."""

    request_id: Word
    """A repeat gets the same grants, so that a lost response leaves no job behind."""
    worker: Name
    incarnation: Word
    most: Annotated[int, Field(ge=0, le=256)] = 1
    """Maximum number of grants; 0: only receive instructions."""
    wait_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """How long to hold the request open while there is no job."""
    stopping: Annotated[tuple[JobId, ...], Field(max_length=4096)] = ()
    """Its jobs that are stopping already: no instructions needed."""
    measured: WorkerMeasurements = Field(default_factory=WorkerMeasurements)
    ends_in_s: LeftSeconds | None = None
    """Time until the machine leaves, by its own clock; None: as reported before."""


class CheckpointBody(WireMessage):
    """A checkpoint stored by the coordinator, from which the next attempt resumes."""

    scratch: JobId
    """Its scratch folder: the stage's key."""
    tree: JobId
    archive_sha256: OptionalDigest = ""
    """Of the archive as which an earlier version sent it; empty: it was sent as a tree."""
    size_bytes: Count
    """Of the tree's files, or of the archive."""
    step: Count | None = None


class Grant(SpecMessage):
    """A lease on one job, with all that a worker needs to run it: of its spec, all but `OF_THE_QUEUE`."""

    spec_fields = tuple(name for name in field_names(JobSpec) if name != "id" and name not in OF_THE_QUEUE)
    job: JobId
    attempt: Count
    epoch: Count
    generation: Count
    devices: tuple[str, ...] = ()
    """UUIDs of assigned devices; none: it runs on the CPU."""
    is_shared: bool = False
    vram_bytes: int = 0
    base: str = ""
    """The base model that it shares with other jobs on its device; `base_bytes` of `vram_bytes` are for it."""
    base_bytes: int = 0
    ram_bytes: int = 0
    cores: int = 0
    checkpoint: CheckpointBody | None = None
    lease_s: float
    start_s: float

    def token(self) -> AttemptToken:
        return AttemptToken(job=self.job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)

    @classmethod
    def spec_beside(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return {"id": raw.get("job")}


class LeaseReport(WireMessage):
    """The state of one lease in a heartbeat."""

    job: JobId
    attempt: int
    epoch: int
    generation: int
    is_alive: bool = True
    """Its process lives, checked by pid and start time."""
    step: int | None = None
    of: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    stage: str = ""
    says: str = ""
    """One line for users: the stage, what it waits for, its last line."""
    prepared: Count = 0
    """Progress of its preparation: bytes of code, data and checkpoint, lines and seconds of an environment's build.
    While it grows, the start deadline is extended."""

    def token(self) -> AttemptToken:
        return AttemptToken(job=self.job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)


class Renewal(WireMessage):
    """One heartbeat of a worker, for all of its leases."""

    worker: Name
    incarnation: Word
    leases: Annotated[tuple[LeaseReport, ...], Field(max_length=4096)] = ()
    measured: WorkerMeasurements = Field(default_factory=WorkerMeasurements)
    holdings: MachineInventory | None = None
    """Complete, if it changed since the last report."""
    ends_in_s: LeftSeconds | None = None
    """Time until the machine leaves, by its own clock; None: as reported before."""
    is_leaving: bool = False
    """The worker's last request: it shuts down in order and holds no lease."""


class LeaseInstructionKind(StrEnum):
    """What a worker has to do with one of its leases."""

    CANCEL = "cancel"
    """Stop it, and confirm."""
    DROP = "drop"
    """The lease is lost: stop it and discard its result."""
    RELEASE = "release"
    """Checkpoint, stop and release it: the machine is drained or needed for another job."""


class LeaseInstruction(WireMessage):
    """An instruction for one lease."""

    job: str
    epoch: int
    do: LeaseInstructionKind
    why: str = ""


class ExecCall(WireMessage):
    """A request to run an operator's command inside an attempt (`operator_messages`)."""

    id: str
    job: str
    attempt: int
    epoch: int
    generation: int
    argv: tuple[str, ...] = ()
    """Empty: a shell."""
    is_tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = ""

    def token(self) -> AttemptToken:
        return AttemptToken(job=self.job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)


class ClaimResponse(WireMessage):
    """The response to a claim: grants, or pending jobs by reason; and instructions for leases."""

    grants: tuple[Grant, ...] = ()
    waiting: dict[str, int] = Field(default_factory=dict)
    """Reason → number of pending jobs that were not granted to this worker."""
    next_s: float | None = None
    """Time until a delayed job (a retry after a failure) is ready; None: there is none."""
    orders: tuple[LeaseInstruction, ...] = ()
    """Sent here as soon as they are known, and with every heartbeat until they are done."""
    execs: tuple[ExecCall, ...] = ()
    """Sent likewise until the worker has started them."""
    closed: str = ""
    generation: int


class RenewalResponse(WireMessage):
    """The response to a heartbeat."""

    lease_s: float
    heartbeat_s: float
    generation: int
    server_s: float
    orders: tuple[LeaseInstruction, ...] = ()
    execs: tuple[ExecCall, ...] = ()
    closed: str = ""
    stays: bool = False
    """The worker of a pool does not leave when it is idle: it belongs to the pool's minimum."""
    wants_holdings: bool = False
    """The coordinator restarted and lost the inventory: the worker sends it at once."""


class LeaseTokenMessage(WireMessage):
    """A report of an attempt, with its lease token."""

    attempt: Annotated[Count, Field(ge=1)]
    epoch: Annotated[Count, Field(ge=1)]
    generation: Count

    def token(self, job: str) -> AttemptToken:
        return AttemptToken(job=job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)


class LeaseWrite(LeaseTokenMessage):
    """A report that changes the attempt's job."""

    verb: ClassVar[str]
    """Last part of its route."""


class Start(LeaseWrite):
    """The job's process runs."""

    verb = "start"
    run: str = ""
    """The attempt's folder on the worker, for users."""


class Decline(LeaseWrite):
    """The worker checked the job and declines it. Charges no attempt."""

    verb = "decline"
    reason: Code
    message: Annotated[str, Field(max_length=2000)] = ""
    lasts: bool = False
    """It would decline again until the machine changes: not granted to it for a while."""


class Release(LeaseWrite):
    """Released; attempt not charged, checkpoint kept."""

    verb = "release"
    why: Annotated[str, Field(max_length=2000)] = ""


class Finish(LeaseWrite):
    """It completed; its result is stored by the coordinator."""

    verb = "finish"
    tree: JobId
    """The result's tree digest."""
    archive_sha256: OptionalDigest = ""
    """Of the archive as which it was sent; empty: it was sent as a tree."""
    size_bytes: Count
    """Of the tree's files, or of the archive."""
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: Seconds = 0.0
    code: dict[str, str] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    """Facts about the run: interpreter, devices, peaks."""


class Fail(LeaseWrite):
    """It failed."""

    verb = "fail"
    cause: Annotated[Code, Field(max_length=40)]
    """A `core.retry.FailureCause`."""
    message: Annotated[str, Field(max_length=4000)] = ""
    hint: Annotated[str, Field(max_length=2000)] = ""
    error: dict[str, Any] = Field(default_factory=dict)
    exit_code: ExitCode = 1
    seconds: Seconds = 0.0


class CancelConfirmed(LeaseWrite):
    """The worker stopped it and verified that no process of it runs."""

    verb = "cancelled"
    why: str = ""


class PointCheckpoint(LeaseWrite):
    """The checkpoint from which the job resumes if this attempt does not finish; already uploaded."""

    verb = "checkpoint"
    checkpoint: CheckpointBody


class WriteResponse(WireMessage):
    """The effect of an attempt's report."""

    job: str
    state: str
    is_repeat: bool = False
    """The same report was received before; nothing changed."""
