"""What screens show: an overview, pages of jobs, series, stages, sweeps, comparisons, logs, and changed rows.

The coordinator answers with these, and so does `stoker ui` for the jobs of one machine; the web pages and the cockpit
read nothing else. All text is untrusted, as in `view_messages`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from stoker.protocol.codec import StrictRequest, WireMessage
from stoker.protocol.view_messages import (
    FiniteSeconds,
    Guess,
    JobView,
    Line,
    MachineView,
    State,
    SymptomView,
    ViewCount,
)


class PendingReason(WireMessage):
    """Pending jobs that wait for the same reason."""

    reason: Line
    count: ViewCount
    jobs: tuple[Line, ...] = ()
    """The names of the first of them."""


class Overview(WireMessage):
    """The state of everything, on one screen."""

    name: Line
    """Of the fleet, or of this machine."""
    is_fleet: bool
    server_s: FiniteSeconds
    seq: ViewCount = 0
    """Of the last event that this includes: changes follow it."""
    version: Line = ""
    user: Line = ""
    role: Line = ""
    """Of the person who asked: `read`, `submit`, `operate`, `admin`."""
    jobs: dict[Line, ViewCount] = {}
    """Number of jobs by state."""
    machines: dict[Line, ViewCount] = {}
    devices: ViewCount = 0
    idle_devices: ViewCount = 0
    running: tuple[JobView, ...] = ()
    """The first of them, newest first."""
    pending: tuple[PendingReason, ...] = ()
    """The most frequent first."""
    failed: tuple[JobView, ...] = ()
    """Of the last day, newest first."""
    failed_count: ViewCount = 0
    symptoms: tuple[SymptomView, ...] = ()
    done_s: Guess | None = None
    """When all jobs are expected to be done; None: unknown, or nothing is left."""
    settling_s: FiniteSeconds = 0.0


class Series(WireMessage):
    """One metric of one job over its steps, thinned: of each part the first, last, lowest and highest value."""

    name: Line
    steps: tuple[ViewCount, ...] = ()
    values: tuple[float, ...] = ()
    times_s: tuple[FiniteSeconds, ...] = ()
    """Wall-clock time of each value."""
    total: ViewCount = 0
    """Number of values before thinning, in the range that was asked for."""
    is_lower_better: bool | None = None
    """None: unknown."""
    best_step: ViewCount | None = None
    best: float | None = None
    last_step: ViewCount | None = None
    last: float | None = None
    source: Line = ""
    """`reported` by the program, or read from `stdout`."""


class SeriesView(WireMessage):
    """Metrics of one job."""

    job: Line
    names: tuple[Line, ...] = ()
    """All that the job has, the most telling first."""
    series: tuple[Series, ...] = ()
    """Those that were asked for."""
    attempts: dict[Line, ViewCount] = {}
    """The first step of each attempt after the first, by its number."""
    started_s: FiniteSeconds | None = None


class StageNode(WireMessage):
    """One stage in a job's graph, with its place in a drawing."""

    name: Line
    title: Line = ""
    stage: Line = ""
    ending: Line = "waiting"
    """`hit`, `ran`, `failed`, `diverged`, `cancelled`, `pruned`, `running` or `waiting`."""
    why: str = ""
    message: str = ""
    seconds: Guess | None = None
    step: ViewCount | None = None
    of: ViewCount | None = None
    instances: ViewCount | None = None
    """Of a fan-out, or of a stage that many trials have: how many stages this node stands for."""
    endings: dict[Line, ViewCount] = {}
    """Of several stages: their number by ending."""
    layer: ViewCount = 0
    """Its column: behind every stage that it needs."""
    place: ViewCount = 0
    """Its row in the column."""


class StageGraph(WireMessage):
    """The stages of a job, laid out in layers."""

    job: Line
    nodes: tuple[StageNode, ...] = ()
    edges: tuple[tuple[ViewCount, ViewCount], ...] = ()
    """From the index of a node to that of one that needs it."""
    left_out: ViewCount = 0
    """Number of nodes that are not shown."""


class SettingView(WireMessage):
    """One value of a job's configuration, and where it comes from."""

    path: Line
    value: Any = None
    origin: Line = ""
    layers: tuple[tuple[Line, Any], ...] = ()
    """Every layer that sets it, the winner last."""


class ConfigView(WireMessage):
    """The configuration of a job."""

    job: Line
    settings: tuple[SettingView, ...] = ()


class CodeDiff(WireMessage):
    """How a job's code differs from that of an earlier one."""

    job: Line
    parent: Line = ""
    """Empty: there is none to compare with."""
    files: tuple[Line, ...] = ()
    text: str = ""
    """A unified diff, cut if it is long."""
    is_cut: bool = False
    note: Line = ""


class LogLineView(WireMessage):
    """A line that a stage printed."""

    number: ViewCount
    text: str
    node: Line = ""
    is_cut: bool = False
    """Only its beginning is here."""


MOST_LOG_LINES = 2000


class LogRequest(BaseModel):
    """Which lines of a job's output to return: the last ones, those from a number on, or those after a page."""

    node: Annotated[str, Field(max_length=300, description="Empty: of all stages")] = ""
    attempt: Annotated[int, Field(ge=1, le=2**31 - 1, description="Omitted: the last one")] | None = None
    start: Annotated[int, Field(ge=0, le=2**53, description="Number of the first line")] | None = None
    after: Annotated[str, Field(max_length=60, description="`next` of a page: the lines that follow it")] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_LOG_LINES)] = 500
    search: Annotated[str, Field(max_length=300, description="Only lines that hold it, whatever its case")] = ""


class LogPage(WireMessage):
    """Some lines of a job's output."""

    job: Line
    lines: tuple[LogLineView, ...] = ()
    nodes: tuple[Line, ...] = ()
    """Everything that has a log."""
    first: ViewCount = 0
    """Number of the first line that is kept."""
    total: ViewCount = 0
    """Number of the next line."""
    unfinished: tuple[LogLineView, ...] = ()
    """The last lines of logs, as far as they are printed: no line has their numbers yet."""
    next: Line = ""
    """`after` of the request for what follows these lines."""
    is_anew: bool = False
    """The lines were numbered anew since `after`: these are the last ones, in place of those before."""
    is_over: bool = False
    """Nothing follows."""
    matches: ViewCount | None = None
    """Number of lines that hold the searched text."""
    note: Line = ""
    """What is missing, if the output is too long to be searched."""


class ResultCard(WireMessage):
    """The model card of a job's result: a text that the job wrote, in Markdown."""

    job: Line
    digest: Line = ""
    """Of the result's tree; empty: it has none."""
    path: Line = ""
    """In the result; empty: it has no card."""
    text: str = ""
    is_cut: bool = False
    """Only its beginning is here."""
    note: Line = ""
    """Why there is no text."""


class SweepParameter(WireMessage):
    """One varied parameter of a sweep."""

    name: Line
    is_number: bool
    is_log: bool = False
    """Its values are spread over orders of magnitude."""
    low: float | None = None
    high: float | None = None
    values: tuple[Line, ...] = ()
    """Of one that is not a number: its values in order."""
    importance: Annotated[float, Field(ge=0)] | None = None
    """Its part of what the metric depends on."""


class SweepTrial(WireMessage):
    """One trial of a sweep."""

    job: Line
    """What commands call it."""
    number: ViewCount
    label: Line = ""
    state: State
    parameters: dict[Line, Any] = {}
    metrics: dict[Line, float] = {}
    """The best value of the sweep's metric, and the others at that step."""
    best_step: ViewCount | None = None
    step: ViewCount | None = None
    of: ViewCount | None = None
    seconds: Guess | None = None
    place: ViewCount | None = None
    """Among the trials that can be compared, from 1."""


class SweepView(WireMessage):
    """A sweep: what was varied and what came out."""

    name: Line
    metric: Line = ""
    is_lower_better: bool = True
    metrics: tuple[Line, ...] = ()
    """Others by which it can be ranked."""
    jobs: dict[Line, ViewCount] = {}
    """Number of trials by state."""
    parameters: tuple[SweepParameter, ...] = ()
    trials: tuple[SweepTrial, ...] = ()
    """The best first; at most a thousand."""
    total: ViewCount = 0
    importance_by: Line = ""
    """`random forest` (permutation importance) or `rank correlation`; empty: too few trials."""
    note: Line = ""


class SweepSummary(WireMessage):
    """A sweep in a list."""

    name: Line
    recipe: Line = ""
    submitter: Line = ""
    jobs: dict[Line, ViewCount] = {}
    """Number of trials by state."""
    total: ViewCount = 0
    submitted_s: FiniteSeconds | None = None
    """Of its newest trial."""
    changed_s: FiniteSeconds | None = None


class SweepList(WireMessage):
    """Sweeps, the newest first."""

    sweeps: tuple[SweepSummary, ...] = ()
    next: Line = ""
    """Cursor of the next page; empty: this is the last."""
    total: ViewCount = 0
    note: Line = ""


class ComparedValue(WireMessage):
    """One fact of several jobs beside each other."""

    section: Line
    name: Line
    values: tuple[str, ...] = ()
    """In the order of the jobs; empty: it has none."""
    differs: bool = False


class ComparedBest(WireMessage):
    """One of several jobs where its metric is best."""

    step: ViewCount | None = None
    """None: it has no curve, and these are its last values."""
    metrics: dict[Line, float] = {}
    """The best value, and the other metrics at that step."""


class ComparisonView(WireMessage):
    """Jobs side by side, what differs first."""

    jobs: tuple[JobView, ...] = ()
    facts: tuple[ComparedValue, ...] = ()
    metrics: tuple[Line, ...] = ()
    """With curves in more than one of them."""
    metric: Line = ""
    """What decides which step is the best; empty: they have none."""
    is_lower_better: bool = True
    bests: tuple[ComparedBest, ...] = ()
    """In the order of the jobs."""


class AdapterRow(WireMessage):
    """One adapter of a leaderboard."""

    job: Line
    """What commands call it."""
    label: Line = ""
    state: State
    place: ViewCount
    """By loss, over all data."""
    place_on_data: ViewCount
    """Among adapters with the same data and settings."""
    rank: ViewCount | None = None
    """Of its matrices."""
    alpha: float | None = None
    data: Line = ""
    val_loss: float | None = None
    train_loss: float | None = None
    epoch: float | None = None
    step: ViewCount | None = None
    result: Line = ""
    """The digest of its tree."""
    parameters: dict[Line, Any] = {}
    """Settings in which adapters of this base differ."""


class AdapterBase(WireMessage):
    """The adapters of one base model, the lowest loss first."""

    base: Line
    adapters: tuple[AdapterRow, ...] = ()
    total: ViewCount = 0


class AdapterBoard(WireMessage):
    """Adapters by base model."""

    bases: tuple[AdapterBase, ...] = ()
    note: Line = ""


class LineageInput(WireMessage):
    """Something that a result was made from."""

    name: Line
    digest: Line = ""
    job: Line = ""
    """Of a result: the job that made it."""


class ModelRow(WireMessage):
    """A result, and what it was made from."""

    digest: Line
    """Of its tree."""
    job: Line
    """The id of the job that made it."""
    name: Line
    label: Line = ""
    recipe: Line = ""
    machine: Line = ""
    submitter: Line = ""
    attempt: ViewCount = 0
    made_s: FiniteSeconds
    size_bytes: ViewCount = 0
    is_pinned: bool = False
    is_pruned: bool = False
    """Its bytes were deleted."""
    metrics: dict[Line, float] = {}
    data: tuple[LineageInput, ...] = ()
    code: tuple[LineageInput, ...] = ()
    parents: tuple[LineageInput, ...] = ()
    """Results of jobs that this one came after."""
    commit: Line = ""
    environment: Line = ""


class ModelPage(WireMessage):
    """Results, the newest first."""

    models: tuple[ModelRow, ...] = ()
    next: Line = ""
    """Cursor of the next page; empty: this is the last."""


class MachinesLike(StrictRequest):
    """Machines to add to a simulation."""

    like: Annotated[str, Field(min_length=1, max_length=200)]
    """A machine of the fleet, or a kind such as `rtx-4090`."""
    count: Annotated[int, Field(ge=1, le=1000)] = 1


class SimulateRequest(StrictRequest):
    """What to change in a simulation of the fleet."""

    add: Annotated[tuple[MachinesLike, ...], Field(max_length=20)] = ()
    remove: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=1000)] = ()
    """Machines that leave."""
    remove_after_s: Annotated[float, Field(ge=0, le=366 * 86400)] = 0.0
    """When they leave, from now."""
    fail: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """Fraction of attempts that fail and are tried again."""


class PriorityWaits(WireMessage):
    """How long jobs of one priority wait."""

    priority: ViewCount
    jobs: ViewCount
    median_s: FiniteSeconds
    p95_s: FiniteSeconds
    max_s: FiniteSeconds


class SimulatedStart(WireMessage):
    """Where and when a job starts in a simulation."""

    machine: Line = ""
    """Empty: no machine fits."""
    starts_s: Guess | None = None
    ends_s: Guess | None = None
    is_guess: bool = False
    """Durations before it are unknown, or its own is."""


class SimulatedJob(WireMessage):
    """A pending job in a simulation, without and with the change."""

    job: Line
    now: SimulatedStart
    changed: SimulatedStart | None = None


class SimulationForecast(WireMessage):
    """When all jobs are done."""

    done_s: Guess | None = None
    """None: some jobs fit no machine."""
    machines: ViewCount
    jobs: ViewCount
    unfinished: ViewCount = 0
    """Jobs that wait for ever: machines that could take them leave."""
    omitted: ViewCount = 0
    """Jobs that no machine could take even when idle; they are not simulated."""
    is_guess: bool = False
    """Durations of some jobs are unknown."""
    waits: tuple[PriorityWaits, ...] = ()
    """The highest priority first."""
    step_s: FiniteSeconds = 0.0
    waiting: tuple[ViewCount, ...] = ()
    """Number of waiting jobs at the beginning of each step."""
    failures: ViewCount = 0
    """Attempts that failed, or were lost with their machine."""


class SimulationView(WireMessage):
    """The fleet as it is, and with a change."""

    at_s: FiniteSeconds
    now: SimulationForecast
    changed: SimulationForecast | None = None
    """None: nothing was changed."""
    added: tuple[Line, ...] = ()
    removed: tuple[Line, ...] = ()
    blocked: ViewCount = 0
    """Pending jobs that wait for others, and are not simulated."""
    jobs: tuple[SimulatedJob, ...] = ()
    """The first pending ones in order of start."""
    kinds: tuple[Line, ...] = ()
    """What can be added: machines of the fleet, then known kinds."""
    note: Line = ""


class ChangedRows(WireMessage):
    """Rows that changed since an event. One frame of `GET /v1/stream`."""

    seq: ViewCount
    frame: ViewCount = 0
    """Number of this frame: progress is no event, so `GET /v1/changes` is asked for what followed both."""
    server_s: FiniteSeconds
    jobs: tuple[JobView, ...] = ()
    gone: tuple[Line, ...] = ()
    """Ids of jobs that were deleted."""
    machines: tuple[MachineView, ...] = ()
    counts: dict[Line, ViewCount] = {}
    """All jobs by state."""
    resync: bool = False
    """Too much changed: ask for everything again."""
