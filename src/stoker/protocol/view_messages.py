"""Views of jobs, attempts, events, machines, status and explanations.

All of it is untrusted text of a submitter, a worker or a coordinator. Text that is shown in a line is made safe when it
is read, and numbers out of range are refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from stoker.core.frozen import field_names, frozen
from stoker.core.job import JobSpec, JobState
from stoker.core.text import outside
from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.job_messages import Bytes, JobFacts, JobId, Priority, SpecMessage

_MOST_COUNT = 1 << 100


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = "not a finite time"
        raise ValueError(message)
    return value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _usable(value: int) -> int:
    if abs(value) > _MOST_COUNT:
        message = "number out of range"
        raise ValueError(message)
    return value


Line = Annotated[str, AfterValidator(outside)]
"""Part of a line: without line breaks and control codes."""
FiniteSeconds = Annotated[float, AfterValidator(_finite)]
Guess = Annotated[float, AfterValidator(_known)]
"""Estimated or reported seconds; a non-finite number means unknown."""
ViewCount = Annotated[int, AfterValidator(_usable)]
State = Annotated[str, AfterValidator(lambda value: JobState(value).value)]


_OF_THE_VIEW = ("recipe", "mode", "label", "priority")
"""Fields of a spec that a `JobView` has, too."""


class JobView(WireMessage):
    """A job in a list."""

    id: str
    name: Line
    """`resnet/3` for a point of a sweep."""
    label: Line = ""
    recipe: Line
    mode: Line = ""
    state: State
    is_cancelling: bool = False
    priority: ViewCount
    epoch: ViewCount
    attempt: ViewCount
    """Number of grants so far."""
    machine: Line = ""
    """The machine on which it runs, or ran last."""
    devices: tuple[Line, ...] = ()
    submitter: Line = ""
    submitted_s: FiniteSeconds
    changed_s: FiniteSeconds
    started_s: FiniteSeconds | None = None
    ended_s: FiniteSeconds | None = None
    step: int | None = None
    of: int | None = None
    metrics: dict[Line, float] = {}
    says: str = ""
    why: str = ""
    """Why a pending job waits, or cause and message of a failed one."""
    result: Line = ""
    """The bundle's tree digest."""


class AttemptView(WireMessage):
    """One attempt of a job."""

    number: ViewCount
    epoch: ViewCount
    generation: ViewCount
    machine: Line
    incarnation: Line
    devices: tuple[Line, ...] = ()
    granted_s: FiniteSeconds
    started_s: FiniteSeconds | None = None
    ended_s: FiniteSeconds | None = None
    ending: Line = ""
    """completed, failed, released, declined, expired, cancelled; empty while it runs."""
    cause: Line = ""
    message: str = ""
    hint: str = ""
    exit_code: ViewCount | None = None
    facts: dict[str, Any] = {}
    """Of a completed attempt: interpreter and packages, devices, peaks."""


class JobDetails(SpecMessage):
    """Everything about one job.

    Of its spec, name, number, label, recipe, mode and priority are sent in `job`; `after`, `attempts` and `identity`
    are not sent.
    """

    spec: JobFacts
    spec_fields = tuple(
        name
        for name in field_names(JobSpec)
        if name not in ("id", "name", "number", *_OF_THE_VIEW, "after", "attempts", "identity")
    )
    job: JobView
    after: tuple[Line, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    counts: dict[Line, ViewCount] = {}
    """Attempts by cause, as charged to the retry budgets."""
    events: tuple[dict[str, Any], ...] = ()
    """The newest, oldest first."""
    bundle: dict[str, Any] = {}
    error: dict[str, Any] = {}

    @classmethod
    def spec_beside(cls, raw: dict[str, Any]) -> dict[str, Any]:
        view = raw.get("job")
        if isinstance(view, JobView):
            view = view.__dict__
        if not isinstance(view, dict):
            return {}
        name, _, number = str(view.get("name", "")).partition("/")
        shown = {one: view[one] for one in _OF_THE_VIEW if one in view}
        return {**shown, "id": view.get("id"), "name": name, "number": int(number) if number.isdecimal() else 0}


MARK_EVERY = 200
MOST_IDS = 200
MOST_PER_PAGE = 1000
_ShortText = Annotated[str, Field(max_length=300)]


class JobListRequest(BaseModel):
    """Which jobs to list, and in which order. What is empty does not matter."""

    state: _ShortText = Field("", description="One, or several separated by commas")
    name: _ShortText = Field("", description="The name, of a sweep all of its points")
    recipe: _ShortText = ""
    machine: _ShortText = ""
    submitter: _ShortText = ""
    sweep: _ShortText = Field("", description="A sweep's bare name: its points")
    q: _ShortText = Field("", description="A part of name or label, whatever its case")
    ids: Annotated[str, Field(max_length=MOST_IDS * 65)] = Field("", description="Whole ids, separated by commas")
    sort: Annotated[str, Field(max_length=20)] = Field(
        "", description="submitted (default), started, ended, name, priority or state; `-` before it reverses"
    )
    after: Annotated[str, Field(max_length=2000)] = Field("", description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=MOST_PER_PAGE)] = 100
    marks: bool = Field(False, description="Add cursors after every 200th job")

    def filters(self) -> dict[str, str]:
        """Return the filters."""
        words = ("state", "name", "recipe", "machine", "submitter", "sweep", "q", "ids")
        return {word: value for word in words if (value := getattr(self, word))}


class JobPage(WireMessage):
    """A page of jobs, newest first or in the order that was asked for."""

    jobs: tuple[JobView, ...]
    next: str = ""
    """Cursor of the next page; empty: this is the last."""
    total: ViewCount | None = None
    """Number of all jobs of the list; None: unknown. With filters only the first page has it."""
    counts: dict[Line, ViewCount] = {}
    """Number of jobs by state under the same filters, whatever state was asked for. With filters only on the first."""
    is_counts_cut: bool = False
    """Only the newest jobs were counted."""
    marks: tuple[str, ...] = ()
    """Cursors after every thousandth job, if asked for and if that is quick."""


class SymptomView(WireMessage):
    """A problem of a machine or one of its devices."""

    machine: Line
    device: Line = ""
    symptom: Line
    since_s: FiniteSeconds
    message: Line = ""
    hint: Line = ""
    """The command to run."""


class MachineHolder(WireMessage):
    """A job on a machine, and what it reserved there."""

    job: str
    """Its id."""
    name: Line
    devices: tuple[Line, ...] = ()
    """UUIDs; none: it runs on the CPU."""
    memory_bytes: ViewCount | None = None
    """Of each of its devices; None: it declared none, and has them alone."""
    ram_bytes: ViewCount | None = None
    """None: unknown."""
    is_shared: bool = False
    """Other jobs may have the same devices."""
    started_s: FiniteSeconds | None = None


class MachineView(WireMessage):
    """A machine as the coordinator knows it."""

    name: Line
    state: Line
    """ready, busy, drained, cordoned, paused, left, silent, gone."""
    why: str = ""
    until_s: FiniteSeconds | None = None
    incarnation: Line = ""
    version: Line = ""
    last_seen_s: FiniteSeconds
    slots: ViewCount
    held: ViewCount
    jobs: tuple[Line, ...] = ()
    holders: tuple[MachineHolder, ...] = ()
    """Its jobs, with what each reserved."""
    cores: ViewCount | None = None
    ram_bytes: ViewCount | None = None
    """The smaller of detected and declared; None: unknown."""
    devices: tuple[dict[str, Any], ...] = ()
    host: dict[str, Any] = {}
    """What the computer itself is at, as `telemetry` of a device: processors and RAM; empty: not reported."""
    capability: dict[str, Any] = {}
    drift: tuple[Line, ...] = ()
    environments: dict[str, Any] = {}
    """Its Python environments: `MachineInventory` without its trees."""
    trees: ViewCount = 0
    """Number of trees of code and data in its cache."""
    symptoms: tuple[SymptomView, ...] = ()
    report: dict[str, Any] = {}
    """The last report of its worker: `at_s`, `offset_s` (its clock less ours), `version`, `protocol`, `findings`."""
    is_skewed: bool = False
    """Its version of Stoker differs from the coordinator's."""
    ends_s: FiniteSeconds | None = None
    """When it leaves, as announced by its worker; None: no end is known."""
    certificate_until_s: FiniteSeconds | None = None
    """Of a machine that joined: when its certificate expires unless renewed."""


class FleetStatus(WireMessage):
    """The state of the whole fleet."""

    version: Line
    protocol: ViewCount
    generation: ViewCount
    started_s: FiniteSeconds
    server_s: FiniteSeconds
    database: Line
    """Its kind and address, without secrets."""
    jobs: dict[Line, ViewCount]
    """By state."""
    machines: dict[Line, ViewCount]
    lease_s: FiniteSeconds
    heartbeat_s: FiniteSeconds
    settling_s: FiniteSeconds = 0.0
    """Time left after a start in which no lease expires."""
    symptoms: tuple[SymptomView, ...] = ()


class ExpectedView(WireMessage):
    """Where and when the scheduler is expected to start a pending job."""

    machine: Line = ""
    """Empty: the start is beyond the forecast's horizon."""
    devices: tuple[Line, ...] = ()
    starts_s: Guess | None = None
    """`None`: a job ahead of it has no estimate."""
    ends_s: Guess | None = None
    not_before_s: Guess | None = None
    """Of a start beyond the horizon: the horizon."""
    why: Line = ""
    """Why this job is next: `oldest`, `longest_first`, `base_is_here`."""


class HeldBackView(WireMessage):
    """A machine with free capacity for a pending job, and why the job does not start there."""

    machine: Line
    reason: Line
    """`faster_machine`, `order`, `kept`, …"""
    text: Line
    ends_s: Guess | None = None
    """When the job would end if it started there now."""


class ShareOfUser(WireMessage):
    """A user's share among all users with running or ready jobs."""

    user: Line
    share: Guess | None = None
    """Of the recent usage of these users."""
    fair_share: Guess | None = None
    """By the weights."""
    usage_s: Guess | None = None
    """In seconds of the whole fleet; usage of a day ago counts half."""
    jobs: ViewCount
    devices: ViewCount


class ScheduleView(WireMessage):
    """The state of the scheduler, as input of a simulation."""

    schedule: dict[str, Any]
    """`scheduler.snapshot.Snapshot.to_dict()`."""
    names: dict[Line, Line] = {}
    """The names of the first ready jobs, by their number in the schedule."""
    blocked: ViewCount = 0
    """Pending jobs that are not ready: they wait for another job or for a retry time."""


class ExplanationRow(WireMessage):
    """A machine, or one of its devices, for a job that waits."""

    machine: Line = ""
    """Empty: a device of the machine before."""
    device: Line = ""
    score: Line = ""
    why: str = ""


class JobExplanation(WireMessage):
    """Why a job is in its state."""

    job: JobView
    verdict: Line
    """One line: `pending, queue position 1`, `runs on desk`, `never on this fleet: …`."""
    never: Line = ""
    """Of a pending job: why no known machine could run it even when idle; empty if one could."""
    after: dict[Line, Line] = {}
    """Of a pending job: uncompleted jobs that it depends on, by name, with their states."""
    together: tuple[Line, ...] = ()
    """Jobs that share its process and base model, or would if it started now."""
    place_in_line: ViewCount | None = None
    ahead: ViewCount | None = None
    starts_s: Guess | None = None
    """Estimated start, from measured durations; None: unknown."""
    based_on: Line = ""
    """Source of the estimate: `median of 12 runs of tabular/gbt`."""
    machines: tuple[dict[str, Any], ...] = ()
    """One row per node: `NodeVerdict.to_dict()`, the leases on it, and until when."""
    changes: tuple[Line, ...] = ()
    """Changes that would let it start now."""
    declines: tuple[dict[str, Any], ...] = ()
    expected: ExpectedView | None = None
    """Of a pending job: where and when it starts, by the scheduler's forecast."""
    held_back: tuple[HeldBackView, ...] = ()
    """Of a pending job: machines with free capacity for it, and why it does not start there."""
    share: ShareOfUser | None = None
    """Of the job's submitter."""
    chosen: Line = ""
    """Of a granted job: why it was granted to its machine."""
    pools: dict[Line, Line] = {}
    """Of a pending job: each pool with what it does for the job, or why it does nothing."""
    lines: tuple[str, ...] = ()
    """What `stoker explain` prints besides the verdict: start, shares, pools, declines, changes."""
    rows: tuple[ExplanationRow, ...] = ()
    """The table that it prints of a pending job."""


# Pruning of the fleet's results: request and response.

RetentionSeconds = Annotated[float, Field(ge=0, le=1e10)]
MOST_LISTED = 1000
"""Results that a response lists; the others are counted."""


class PruneRequest(StrictRequest):
    """Which results and logs to delete; without `is_wanted` it is a dry run."""

    keep_last: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Number of newest results to keep per job."""
    older_than_s: RetentionSeconds | None = None
    max_bytes: Bytes | None = None
    """Limit for all results together; the oldest are deleted, a job's newest last."""
    logs_older_than_s: RetentionSeconds | None = None
    trees_unused_s: RetentionSeconds | None = None
    """Delete code and data that no live job needs and that were not requested for so long (default: 7d)."""
    is_wanted: bool = False
    by: Annotated[str, Field(max_length=200)] = ""


class PrunedResult(WireMessage):
    """One deleted result."""

    job: Line
    name: Line
    attempt: ViewCount
    archive_sha256: Line
    size_bytes: ViewCount
    freed_bytes: ViewCount
    """0 if another result has the same bytes."""
    at_s: float
    why: Line


class PruneView(WireMessage):
    """What was deleted, or would be."""

    is_done: bool
    results: tuple[PrunedResult, ...] = ()
    result_count: ViewCount = 0
    before_bytes: ViewCount = 0
    """Of all results."""
    after_bytes: ViewCount = 0
    kept: dict[Line, ViewCount] = {}
    """Results kept, by reason."""
    logs: ViewCount = 0
    """Attempts whose files are deleted."""
    log_bytes: ViewCount = 0
    orphans: ViewCount = 0
    """Unreferenced archives: of lost attempts and superseded checkpoints."""
    orphan_bytes: ViewCount = 0
    uploads: ViewCount = 0
    trees: ViewCount = 0
    """Of code and data that no job needs."""
    tree_bytes: ViewCount = 0
    freed_bytes: ViewCount = 0
    stuck: tuple[Line, ...] = ()
    """What could not be deleted, and why."""


# Requests and responses about jobs, machines, files and uploads.

MOST_FILE_BYTES = 8 * 1024 * 1024
"""In one piece of a mirrored file, and of an upload."""

MOST_NAMED_JOBS = 10_000
"""In one request that names them one by one."""

NOTHING_GIVEN = "nothing to reload: the coordinator was started without --cluster and --manifest"
"""The error of a reload without a file."""

By = Annotated[str, Field(max_length=200)]


class ChangeRequest(StrictRequest):
    """Cancel, requeue, pin or unpin a job; `by` is recorded."""

    by: By = ""


class PriorityRequest(StrictRequest):
    """Change a job's priority."""

    priority: Priority
    by: By = ""


class JobsRequest(ChangeRequest):
    """Cancel or requeue many jobs, such as the points of a sweep."""

    jobs: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=MOST_NAMED_JOBS)]
    """Whole ids. If one is unknown, all are refused."""


class JobsPriorityRequest(PriorityRequest):
    """Change the priority of many jobs."""

    jobs: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=MOST_NAMED_JOBS)]


class MachineRequest(StrictRequest):
    """Drain, cordon, pause, open or forget a machine, or some of its devices."""

    devices: Annotated[tuple[str, ...], Field(max_length=1024)] = ()
    """UUIDs; none: the whole machine."""
    why: Annotated[str, Field(max_length=2000)] = ""
    for_s: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None
    is_forced: bool = False
    """Forget it though its worker lives."""
    by: By = ""


class DoneView(WireMessage):
    """What an operator's request changed, job by job or machine by machine."""

    changed: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()
    data: dict[str, Any] = {}


class MachineList(WireMessage):
    """Machines, by name."""

    machines: tuple[MachineView, ...] = ()
    next: Line = ""
    """Cursor of the next page; empty: this is the last."""


class EventPage(WireMessage):
    """Events of one job, oldest first."""

    events: tuple[dict[str, Any], ...] = ()
    next: int = 0
    """Pass it as `after` for the next page."""


class FileView(WireMessage):
    """One mirrored file of an attempt."""

    path: str
    size_bytes: int


class FileList(WireMessage):
    """The mirrored files of an attempt's folder."""

    attempt: int
    files: tuple[FileView, ...] = ()
    is_over: bool = False
    """The attempt has ended; no bytes follow."""


class ResultFile(WireMessage):
    """One file of a result. `/v1/objects/SHA256` has its bytes."""

    path: str
    size_bytes: int
    sha256: str


class ResultFiles(WireMessage):
    """The files of a job's result, as `stoker get` writes them."""

    tree: str
    count: int = 0
    """Of all files."""
    size_bytes: int = 0
    files: tuple[ResultFile, ...] = ()
    """Of very many the first."""


SIZE_HEADER = "X-Stoker-Size"
"""Of a response with a piece of a mirrored file: the size of the file by now."""
OVER_HEADER = "X-Stoker-Over"
"""Of the same: `1` when the attempt has ended, so that nothing will be added."""
ATTEMPT_HEADER = "X-Stoker-Attempt"


@frozen
class FilePiece:
    """Some bytes of a mirrored file."""

    data: bytes
    offset: int
    attempt: int
    size_bytes: int
    """Of the whole file, by now."""
    is_over: bool
    """The attempt has ended: nothing will be added to it."""


class FileOffset(WireMessage):
    """How many bytes of a mirrored file or an upload the coordinator has."""

    offset: int


class UploadRequest(StrictRequest):
    """Start an upload of bytes to the coordinator's store, under their digest."""

    digest: JobId
    """SHA-256 of the bytes."""
    size_bytes: Bytes


class UploadResponse(WireMessage):
    """Where an upload continues."""

    id: str
    offset: int = 0
    is_known: bool = False
    """The bytes are stored already; nothing to send."""


class LeaderRow(WireMessage):
    """One completed job in a leaderboard, or a running one with what it reported last."""

    place: ViewCount
    job: Line
    """Its id."""
    name: Line
    label: Line = ""
    recipe: Line = ""
    machine: Line = ""
    state: Line = "completed"
    value: float
    metrics: dict[Line, float] = {}
    seconds: Guess | None = None
    """From its start to its end."""


class Leaderboard(WireMessage):
    """Completed jobs by one of their metrics, best first."""

    metric: Line = ""
    is_lower_better: bool = False
    rows: tuple[LeaderRow, ...] = ()
    metrics: tuple[Line, ...] = ()
    """Available metrics."""
