"""What a worker and its coordinator tell each other: hello, claim, start, renew, and the ways in which an attempt ends.

TTLs travel as durations. A worker counts from before it sent the request, on a clock that also counts suspend; the
coordinator waits longer than that by its grace, so neither needs the other's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema

from stoker.core.frozen import field_names
from stoker.core.job import OF_THE_QUEUE, JobSpec
from stoker.core.leases import MOST_LEFT_S, AttemptToken
from stoker.core.text import LONGEST_NAME
from stoker.protocol.codec import WireMessage
from stoker.protocol.job_messages import JobBody, JobId

Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""As `core.text.is_node_name` has it."""
Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
"""What every database can hold."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LeftSeconds = Annotated[Seconds, Field(le=MOST_LEFT_S)]
"""For how long a machine stays."""
Code = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_. -]+$")]
"""A word for programs, such as a cause."""
ExitCode = Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)]
Fact = Annotated[str, Field(max_length=200)]
Word = Annotated[str, Field(min_length=8, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")]
Rows = Annotated[int, Field(ge=1, le=10_000)]
"""Of a terminal; its columns alike."""


class MachineInventory(WireMessage):
    """What a worker has, so that others may get it there and jobs find it."""

    trees: Annotated[tuple[JobId, ...], Field(max_length=10_000)] = ()
    platform: Fact = ""
    """`linux-aarch64`."""
    libc: Fact = ""
    """`glibc 2.36`."""
    pythons: Annotated[tuple[Fact, ...], Field(max_length=100)] = ()
    """Versions that environments can be made with; the preferred one first."""
    environments: Annotated[tuple[JobId, ...], Field(max_length=1000)] = ()
    """Digests (`EnvironmentChoice.digest`) of those that are ready."""
    impossible: dict[JobId, Annotated[str, Field(max_length=500)]] = Field(default_factory=dict)
    """Environment → why it can't be made here: no wheel of torch for aarch64 cp310."""
    builds_s: dict[JobId, Seconds] = Field(default_factory=dict)
    """Environment → how long its making took."""
    brings_bytes_per_s: Count = 0
    """How fast data came to it when it last did; 0: nobody knows."""


class Hello(WireMessage):
    """A worker's start: who it is and what its machine has."""

    worker: Name
    """The node's name: its host id."""
    incarnation: Word
    """Random per start. Leases belong to it; a new one ends what an old one held, at once."""
    boot_id: Fact = ""
    version: Fact = ""
    """Of the program."""
    capability: dict[str, Any]
    """`Capability.to_dict()`."""
    capability_digest: Fact
    slots: Annotated[int, Field(ge=1, le=4096)] | None = None
    """How many jobs at once; nothing: as the cluster file says, else one per device."""
    declared: dict[str, Any] = Field(default_factory=dict)
    """What whoever started it declared: `cores`, `ram_bytes`, `gpus` …; the smaller of this and detection wins."""
    holdings: MachineInventory | None = None
    accepts: Annotated[tuple[Fact, ...], Field(max_length=1000)] = ()
    """Trees and commits whose code alone it runs; none: any."""
    contents_at: Fact = ""
    """Where other machines of the fleet can get trees from it; empty: nowhere."""
    features: Annotated[tuple[Fact, ...], Field(max_length=100)] = ()
    """What it knows beside leases."""
    ends_in_s: LeftSeconds | None = None
    """In how long the machine goes away; None: no end is known."""


class Welcome(WireMessage):
    """The coordinator's answer to a hello."""

    worker: str
    generation: int
    heartbeat_s: float
    lease_s: float
    start_s: float
    claim_wait_s: float
    server_s: float
    """The coordinator's wall clock, to show the offset; nothing is decided by it."""
    version: str
    closed: str = ""
    """Why it will get nothing: drained, cordoned, paused."""
    drift: tuple[str, ...] = ()
    """Where the cluster file and detection disagree."""
    slots: int = 0
    """How many jobs at once it may hold; 0: as many as it asked for."""


class WorkerMeasurements(WireMessage):
    """What a worker measured just now."""

    ram_available_bytes: int | None = None
    ram_room_bytes: int | None = None
    """RAM that a job may take now: what is available less what the machine keeps for itself; None: it does not say."""
    disk_free_bytes: int | None = None
    free_bytes: dict[str, int] = Field(default_factory=dict)
    """Per device, what jobs of ours hold counted as free."""
    closed: dict[str, str] = Field(default_factory=dict)
    """Device → why nothing may be put on it; "" is the whole machine: its owner paused it, its disk is full."""


class Claim(WireMessage):
    """A worker asks for work."""

    request_id: Word
    """A repeat gets the same grants, so that a lost answer strands no job."""
    worker: Name
    incarnation: Word
    most: Annotated[int, Field(ge=0, le=256)] = 1
    """How many jobs; 0: it has room for none, and only listens for orders."""
    wait_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """How long the question may be held open while there is nothing."""
    stopping: Annotated[tuple[JobId, ...], Field(max_length=4096)] = ()
    """Jobs of its own that are ending already: it needs no order for them."""
    measured: WorkerMeasurements = Field(default_factory=WorkerMeasurements)
    ends_in_s: LeftSeconds | None = None
    """In how long the machine goes away, as its own clock says; None: as it said before."""


class CheckpointBody(WireMessage):
    """A checkpoint that lies with the coordinator: where the next attempt goes on."""

    scratch: JobId
    """Which scratch folder it belongs to: the stage's key."""
    tree: JobId
    archive_sha256: JobId
    size_bytes: Count
    step: Count | None = None


class Grant(WireMessage):
    """A lease on one job: all that a worker needs to try it.

    In JSON the job's fields are beside those of the lease, but for `OF_THE_QUEUE`; its id is `job`.
    """

    spec: JobBody
    job: JobId
    attempt: Count
    epoch: Count
    generation: Count
    devices: tuple[str, ...] = ()
    """UUIDs that placement gave it; none: it computes on the CPU."""
    is_shared: bool = False
    vram_bytes: int = 0
    base: str = ""
    """What it shares with its like on its device, and how much of `vram_bytes` that is."""
    base_bytes: int = 0
    ram_bytes: int = 0
    cores: int = 0
    checkpoint: CheckpointBody | None = None
    lease_s: float
    start_s: float

    def token(self) -> AttemptToken:
        return AttemptToken(job=self.job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)

    @model_validator(mode="before")
    @classmethod
    def _from_flat(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or "spec" in raw:
            return raw
        spec = {name: raw[name] for name in _GRANTED if name in raw}
        return {**raw, "spec": {**spec, "id": raw.get("job")}}

    @model_serializer(mode="wrap")
    def _to_flat(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        flat: dict[str, Any] = write(self)
        spec = flat.pop("spec")
        return {**flat, **{name: spec[name] for name in _GRANTED}}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        flat = handler.resolve_ref_schema(made)
        spec = handler.resolve_ref_schema(flat["properties"].pop("spec"))["properties"]
        flat["properties"] |= {name: spec[name] for name in _GRANTED}
        flat["required"] = ["name", "recipe", *(name for name in flat["required"] if name != "spec")]
        return made


_GRANTED = tuple(name for name in field_names(JobSpec) if name != "id" and name not in OF_THE_QUEUE)


class LeaseReport(WireMessage):
    """What a worker says of one of its leases with a heartbeat."""

    job: JobId
    attempt: int
    epoch: int
    generation: int
    is_alive: bool = True
    """Its process lives: the worker looked, by pid and start time."""
    step: int | None = None
    of: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    stage: str = ""
    says: str = ""
    """One line for people: the stage, what it waits for, its last line."""
    prepared: Count = 0
    """How far what it needs has come: bytes of code, data and checkpoint, lines and working seconds of an environment's
    making. While this grows, its start is waited for."""

    def token(self) -> AttemptToken:
        return AttemptToken(job=self.job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)


class Renewal(WireMessage):
    """One heartbeat of a worker, for all of its leases."""

    worker: Name
    incarnation: Word
    leases: Annotated[tuple[LeaseReport, ...], Field(max_length=4096)] = ()
    measured: WorkerMeasurements = Field(default_factory=WorkerMeasurements)
    holdings: MachineInventory | None = None
    """Whole, if it is another than was said last."""
    ends_in_s: LeftSeconds | None = None
    """In how long the machine goes away, as its own clock says; None: as it said before."""
    is_leaving: bool = False
    """The worker's last word: it ends in order, and holds nothing any more."""


class LeaseInstructionKind(StrEnum):
    """What the coordinator wants a worker to do with one of its leases."""

    CANCEL = "cancel"
    """Stop it, and confirm."""
    DROP = "drop"
    """It is no longer yours: stop it and drop its result."""
    RELEASE = "release"
    """Checkpoint, stop, give it back: the machine is drained or somebody else must run."""


class LeaseInstruction(WireMessage):
    """One such wish."""

    job: str
    epoch: int
    do: LeaseInstructionKind
    why: str = ""


class ExecCall(WireMessage):
    """An operator wants a command run beside one of its attempts (`exec_sessions`)."""

    id: str
    job: str
    attempt: int
    epoch: int
    generation: int
    argv: tuple[str, ...] = ()
    """Nothing: a shell."""
    is_tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = ""

    def token(self) -> AttemptToken:
        return AttemptToken(job=self.job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)


class ClaimResponse(WireMessage):
    """The answer to a claim: grants, or how many jobs wait for which reason; and early, what is wished of leases."""

    grants: tuple[Grant, ...] = ()
    waiting: dict[str, int] = Field(default_factory=dict)
    """Reason → jobs that wait and that this worker could not be given."""
    next_s: float | None = None
    """In how long a job that was put off, after a failure say, may be had again; nothing: none was."""
    orders: tuple[LeaseInstruction, ...] = ()
    """Told here as soon as they are known, and with every heartbeat until they are done."""
    execs: tuple[ExecCall, ...] = ()
    """Alike, until it has taken them up."""
    closed: str = ""
    generation: int


class RenewalResponse(WireMessage):
    """The answer to a heartbeat."""

    lease_s: float
    heartbeat_s: float
    generation: int
    server_s: float
    orders: tuple[LeaseInstruction, ...] = ()
    execs: tuple[ExecCall, ...] = ()
    closed: str = ""
    wants_holdings: bool = False
    """Started anew, it does not know what the machine has: it is told at once."""


class LeaseTokenMessage(WireMessage):
    """Every write of an attempt carries its token."""

    attempt: Annotated[Count, Field(ge=1)]
    epoch: Annotated[Count, Field(ge=1)]
    generation: Count

    def token(self, job: str) -> AttemptToken:
        return AttemptToken(job=job, attempt=self.attempt, epoch=self.epoch, generation=self.generation)


class Start(LeaseTokenMessage):
    """The job's process runs."""

    run: str = ""
    """The attempt's folder on the worker, for people."""


class Decline(LeaseTokenMessage):
    """The worker looked again and will not start it. Costs no attempt."""

    reason: Code
    message: Annotated[str, Field(max_length=2000)] = ""
    lasts: bool = False
    """It would decline again, until something is done there: it is not asked for a good while."""


class Release(LeaseTokenMessage):
    """Given back, attempt not charged, checkpoint kept."""

    why: Annotated[str, Field(max_length=2000)] = ""


class Finish(LeaseTokenMessage):
    """It completed; its bundle lies with the coordinator."""

    tree: JobId
    """The bundle's tree digest."""
    archive_sha256: JobId
    size_bytes: Count
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: Seconds = 0.0
    code: dict[str, str] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    """What is worth knowing of where it ran: interpreter, devices, peaks."""


class Fail(LeaseTokenMessage):
    """It failed."""

    cause: Annotated[Code, Field(max_length=40)]
    """A `model.retry.Cause`."""
    message: Annotated[str, Field(max_length=4000)] = ""
    hint: Annotated[str, Field(max_length=2000)] = ""
    error: dict[str, Any] = Field(default_factory=dict)
    exit_code: ExitCode = 1
    seconds: Seconds = 0.0


class CancelConfirmed(LeaseTokenMessage):
    """The worker stopped it and saw that nothing of it runs."""

    why: str = ""


class PointCheckpoint(LeaseTokenMessage):
    """The job goes on from here, should this attempt not finish. The bytes lie with the coordinator already."""

    checkpoint: CheckpointBody


class WriteResponse(WireMessage):
    """What a write of an attempt did."""

    job: str
    state: str
    is_repeat: bool = False
    """It had been said before, in the same words; nothing changed."""
