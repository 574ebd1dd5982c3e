"""What people and their programs see: jobs, attempts, events, machines, status, explanations.

All of it is somebody's word: a submitter's, a worker's, a coordinator's. What is shown as part of a line is made safe
to show as it is read, and numbers that no honest side says are no answer.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from stoker.core.job import JobState
from stoker.core.text import outside
from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.job_messages import Bytes, JobId, Priority

_MOST_COUNT = 1 << 100


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = "no time that can be"
        raise ValueError(message)
    return value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _usable(value: int) -> int:
    if abs(value) > _MOST_COUNT:
        message = "a number beyond all use"
        raise ValueError(message)
    return value


Line = Annotated[str, AfterValidator(outside)]
"""Part of a line: nothing in it breaks the line, and no terminal obeys it."""
Seconds = Annotated[float, AfterValidator(_finite)]
Guess = Annotated[float, AfterValidator(_known)]
"""Seconds that were estimated or told by somebody: beyond all numbers means that nobody knows."""
ViewCount = Annotated[int, AfterValidator(_usable)]
State = Annotated[str, AfterValidator(lambda value: JobState(value).value)]


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
    """How many grants it had."""
    machine: Line = ""
    """Where it runs, or ran last."""
    devices: tuple[Line, ...] = ()
    submitter: Line = ""
    submitted_s: Seconds
    changed_s: Seconds
    started_s: Seconds | None = None
    ended_s: Seconds | None = None
    step: int | None = None
    of: int | None = None
    metrics: dict[Line, float] = {}
    says: str = ""
    why: str = ""
    """Of a pending job, what it waits for; of a failed one, its cause and message."""
    result: Line = ""
    """The bundle's tree digest."""


class AttemptView(WireMessage):
    """One try at a job."""

    number: ViewCount
    epoch: ViewCount
    generation: ViewCount
    machine: Line
    incarnation: Line
    devices: tuple[Line, ...] = ()
    granted_s: Seconds
    started_s: Seconds | None = None
    ended_s: Seconds | None = None
    ending: Line = ""
    """completed, failed, released, declined, expired, cancelled; empty while it runs."""
    cause: Line = ""
    message: str = ""
    hint: str = ""
    exit_code: ViewCount | None = None
    facts: dict[str, Any] = {}
    """Of one that completed, where it ran: interpreter and packages, devices, peaks."""


class JobDetails(WireMessage):
    """Everything about one job."""

    job: JobView
    args: dict[str, Any] = {}
    requirements: dict[str, Any] = {}
    code: dict[str, str] = {}
    folder: str = ""
    project: str = ""
    code_tree: str = ""
    """What a program runs in a copy of; empty: it runs in the folder itself."""
    commit: str = ""
    inputs: tuple[dict[str, Any], ...] = ()
    """Data that was ordered: `wire.orders.JobInput`, one by one."""
    environment: tuple[dict[str, Any], ...] = ()
    """Ways to its interpreter that were ordered: `wire.orders.EnvironmentChoice`, one by one."""
    after: tuple[Line, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    counts: dict[Line, ViewCount] = {}
    """Attempts by cause, as they count against budgets."""
    events: tuple[dict[str, Any], ...] = ()
    """The newest, oldest first."""
    bundle: dict[str, Any] = {}
    error: dict[str, Any] = {}


class JobPage(WireMessage):
    """A page of jobs, newest first."""

    jobs: tuple[JobView, ...]
    next: str = ""
    """Hand this back for the page after; empty: that was the last."""
    total: ViewCount | None = None
    """How many there are, where a counter knows it."""


class SymptomView(WireMessage):
    """Something that is wrong with a machine or one of its devices."""

    machine: Line
    device: Line = ""
    symptom: Line
    since_s: Seconds
    message: Line = ""
    hint: Line = ""
    """The command that helps."""


class MachineView(WireMessage):
    """A machine as the coordinator knows it."""

    name: Line
    state: Line
    """ready, busy, drained, cordoned, paused, left, silent, gone."""
    why: str = ""
    until_s: Seconds | None = None
    incarnation: Line = ""
    version: Line = ""
    last_seen_s: Seconds
    slots: ViewCount
    held: ViewCount
    jobs: tuple[Line, ...] = ()
    cores: ViewCount | None = None
    ram_bytes: ViewCount | None = None
    """What it offers: the smaller of what was found and what was declared; nothing where nobody knows."""
    devices: tuple[dict[str, Any], ...] = ()
    capability: dict[str, Any] = {}
    drift: tuple[Line, ...] = ()
    environments: dict[str, Any] = {}
    """What it says of Python environments: `wire.leasing.Holdings`, without its trees."""
    trees: ViewCount = 0
    """How many trees of code and data it has."""
    symptoms: tuple[SymptomView, ...] = ()
    report: dict[str, Any] = {}
    """What its worker last found out: `at_s`, `offset_s` (its clock less ours), `version`, `protocol`, `findings`."""
    is_skewed: bool = False
    """Its program is another version than the coordinator's."""
    ends_s: Seconds | None = None
    """When it goes away, as its worker announced; nothing: no end is known."""
    certificate_until_s: Seconds | None = None
    """Of a machine that joined: when its certificate ends, unless it is renewed."""


class FleetStatus(WireMessage):
    """The whole fleet in one look."""

    version: Line
    protocol: ViewCount
    generation: ViewCount
    started_s: Seconds
    server_s: Seconds
    database: Line
    """Its sort and place, without secrets."""
    jobs: dict[Line, ViewCount]
    """By state."""
    machines: dict[Line, ViewCount]
    lease_s: Seconds
    heartbeat_s: Seconds
    settling_s: Seconds = 0.0
    """How much longer nothing expires, after a start."""
    symptoms: tuple[SymptomView, ...] = ()


class ExpectedView(WireMessage):
    """Where and when the scheduler is expected to start a waiting job."""

    machine: Line = ""
    """Empty: the start is further away than the forecast goes."""
    devices: tuple[Line, ...] = ()
    starts_s: Guess | None = None
    """`None`: a job before it has no estimate."""
    ends_s: Guess | None = None
    not_before_s: Guess | None = None
    """Of a start that is further away: the time that the forecast reached."""
    why: Line = ""
    """What decides that it is this job's turn: `oldest`, `longest_first`, `base_is_here`."""


class HeldBackView(WireMessage):
    """A machine that has room for a waiting job now, and why the job does not start there."""

    machine: Line
    reason: Line
    """`faster_machine`, `order`, `kept`, …"""
    text: Line
    ends_s: Guess | None = None
    """When the job would end if it started there now."""


class ShareOfUser(WireMessage):
    """How a user stands beside the others with running or ready jobs."""

    user: Line
    share: Guess | None = None
    """Of the recent usage of these users."""
    fair_share: Guess | None = None
    """What the weights give."""
    usage_s: Guess | None = None
    """In seconds of the whole fleet; usage of a day ago counts half."""
    jobs: ViewCount
    devices: ViewCount


class ScheduleView(WireMessage):
    """The state of the scheduler, to simulate what comes."""

    schedule: dict[str, Any]
    """`scheduler.snapshot.Snapshot.to_dict()`."""
    names: dict[Line, Line] = {}
    """The names of the first ready jobs, by their number in the schedule."""
    blocked: ViewCount = 0
    """Pending jobs that are not ready: they wait for another job, or for their next try."""


class JobExplanation(WireMessage):
    """Why a job is where it is."""

    job: JobView
    verdict: Line
    """One line: `waits, 1st in line`, `runs on desk`, `never on this fleet: …`."""
    never: Line = ""
    """Of a pending job: why no machine that is known now could take it, were it idle; empty if one could."""
    after: dict[Line, Line] = {}
    """Of a pending job: the jobs that have to complete first and have not, by name, with their states."""
    together: tuple[Line, ...] = ()
    """Jobs that run in one process with it, or would if it started now: they share its base."""
    place_in_line: ViewCount | None = None
    ahead: ViewCount | None = None
    starts_s: Guess | None = None
    """When it may start, from measured durations; nothing if nobody knows."""
    based_on: Line = ""
    """What that is an estimate from: `median of 12 runs of tabular/gbt`."""
    machines: tuple[dict[str, Any], ...] = ()
    """One row per node: `NodeVerdict.to_dict()` and what holds it now, until when."""
    changes: tuple[Line, ...] = ()
    """What would let it start now."""
    declines: tuple[dict[str, Any], ...] = ()
    expected: ExpectedView | None = None
    """Of a job that waits: where and when it starts, by a forecast of the scheduler."""
    held_back: tuple[HeldBackView, ...] = ()
    """Of a job that waits: machines with room for it, and why it does not start there."""
    share: ShareOfUser | None = None
    """Of the job's submitter."""
    chosen: Line = ""
    """Of a job that has a machine: why it was granted to that one."""


# What a prune of the fleet's results is asked, and what it would do or did.

RetentionSeconds = Annotated[float, Field(ge=0, le=1e10)]
MOST_LISTED = 1000
"""Results that an answer names; the others are counted."""


class PruneRequest(StrictRequest):
    """Which results and logs may go; without `is_wanted` nothing does, and the answer says what would."""

    keep_last: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Of each job, so many of its newest results stay."""
    older_than_s: RetentionSeconds | None = None
    max_bytes: Bytes | None = None
    """Of all results together; to come to it the oldest go, a job's newest last."""
    logs_older_than_s: RetentionSeconds | None = None
    trees_unused_s: RetentionSeconds | None = None
    """Code and data that no waiting or running job needs, and that nobody wanted for so long; usually a week."""
    is_wanted: bool = False
    by: Annotated[str, Field(max_length=200)] = ""


class PrunedResult(WireMessage):
    """One result that goes."""

    job: Line
    name: Line
    attempt: ViewCount
    archive_sha256: Line
    size_bytes: ViewCount
    freed_bytes: ViewCount
    """Nothing, where another result has the same bytes."""
    at_s: float
    why: Line


class PruneView(WireMessage):
    """What goes, or went."""

    is_done: bool
    results: tuple[PrunedResult, ...] = ()
    result_count: ViewCount = 0
    before_bytes: ViewCount = 0
    """Of all results."""
    after_bytes: ViewCount = 0
    kept: dict[Line, ViewCount] = {}
    """Why some stay although it is their turn."""
    logs: ViewCount = 0
    """Attempts whose files go."""
    log_bytes: ViewCount = 0
    orphans: ViewCount = 0
    """Archives that nothing names: of attempts that were lost, of checkpoints that were overtaken."""
    orphan_bytes: ViewCount = 0
    uploads: ViewCount = 0
    trees: ViewCount = 0
    """Of code and data, that no job needs any more."""
    tree_bytes: ViewCount = 0
    freed_bytes: ViewCount = 0
    stuck: tuple[Line, ...] = ()
    """What could not be removed, and why."""


# Small questions and answers that are neither an order nor a lease: about jobs, machines, files and uploads.
#
# Bodies of people's requests refuse unknown fields; answers pass over them.

MOST_FILE_BYTES = 8 * 1024 * 1024
"""In one piece of a mirrored file, and of an upload."""

MOST_NAMED_JOBS = 10_000
"""In one request that names them one by one."""

NOTHING_GIVEN = "nothing is given to read: the coordinator was started without --cluster and --manifest"
"""What reading again says where there is no file."""

By = Annotated[str, Field(max_length=200)]


class JobRequest(StrictRequest):
    """Cancel, requeue, pin or unpin a job; who wants it is recorded."""

    by: By = ""


class PriorityRequest(StrictRequest):
    """Put a job elsewhere in the line."""

    priority: Priority
    by: By = ""


class JobsRequest(JobRequest):
    """Cancel or requeue many jobs in one go: the points of a sweep."""

    jobs: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=MOST_NAMED_JOBS)]
    """Whole ids. One that nobody knows refuses them all."""


class JobsPriorityRequest(PriorityRequest):
    """Put many jobs elsewhere in the line, in one go."""

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
    """What an operator's request did, job by job or machine by machine."""

    changed: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()
    data: dict[str, Any] = {}


class MachineList(WireMessage):
    """Every machine that the coordinator knows, by name."""

    machines: tuple[MachineView, ...] = ()


class EventPage(WireMessage):
    """Events of one job, oldest first."""

    events: tuple[dict[str, Any], ...] = ()
    next: int = 0
    """Hand this back as `after` for what follows."""


class FileView(WireMessage):
    """One mirrored file of an attempt."""

    path: str
    size_bytes: int


class FileList(WireMessage):
    """What is mirrored of one attempt's folder."""

    attempt: int
    files: tuple[FileView, ...] = ()
    is_over: bool = False
    """The attempt has ended: nothing will be added."""


class FileOffset(WireMessage):
    """How much of a mirrored file, or of an upload, lies with the coordinator."""

    offset: int


class UploadRequest(StrictRequest):
    """Bytes on their way to the coordinator's store, under their digest."""

    digest: JobId
    """SHA-256 of the bytes."""
    size_bytes: Bytes


class UploadResponse(WireMessage):
    """Where an upload goes on."""

    id: str
    offset: int = 0
    is_known: bool = False
    """The bytes lie there already: there is nothing to send."""


class LeaderRow(WireMessage):
    """One completed job in a leaderboard."""

    place: ViewCount
    job: Line
    """Its id."""
    name: Line
    label: Line = ""
    recipe: Line = ""
    machine: Line = ""
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
    """Which ones could be asked for."""
