"""`Monitor`: everything that a screen shows and does, for the jobs of this machine or of a fleet.

The cockpit and the pages of one machine use it. One implementation reads this machine's job folders, one asks a
coordinator; both answer with the messages of `protocol.screen_messages`, so that screens can't tell them apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import BinaryIO

from stoker.core.errors import NotFound, Refused
from stoker.core.frozen import frozen
from stoker.protocol.screen_messages import (
    AdapterBoard,
    ChangedRows,
    CodeDiff,
    ComparisonView,
    ConfigView,
    LogPage,
    LogRequest,
    ModelPage,
    Overview,
    ResultCard,
    SeriesView,
    SimulateRequest,
    SimulationView,
    StageGraph,
    SweepList,
    SweepView,
)
from stoker.protocol.sent_messages import ManifestRequest, ManifestView, RepeatForm, RepeatJobRequest, RepeatView
from stoker.protocol.telemetry_messages import TelemetryView, TimelineView
from stoker.protocol.view_messages import (
    DoneView,
    FileList,
    JobDetails,
    JobExplanation,
    JobPage,
    MachineView,
)

MOST_POINTS = 4000


@frozen
class JobQuery:
    """Which jobs a table shows, and in which order. What is empty does not matter."""

    state: str = ""
    """One or several, separated by commas."""
    name: str = ""
    """A part of the name or label."""
    recipe: str = ""
    machine: str = ""
    submitter: str = ""
    sweep: str = ""
    sort: str = ""
    """`submitted` (default), `started`, `ended`, `name`, `priority` or `state`; `-` before it reverses the order."""
    after: str = ""
    limit: int = 100


@frozen
class SeriesQuery:
    """Which part of a job's metrics to return, and in how many points."""

    names: tuple[str, ...] = ()
    """Empty: the most telling ones."""
    first: int | None = None
    last: int | None = None
    """Steps, both included."""
    points: int = 1000
    attempt: int | None = None
    """None: all of them, the later value of a step counts."""


@frozen
class SpanQuery:
    """A span of wall-clock time, and in how many points to return it."""

    from_s: float | None = None
    """None: an hour before its end."""
    to_s: float | None = None
    """None: now."""
    points: int = 360


class Monitor(ABC):
    """The jobs and machines that a screen shows. Every method blocks, and may be called from any thread."""

    name: str
    is_fleet: bool

    @abstractmethod
    def overview(self) -> Overview:
        """Return the state of everything."""

    @abstractmethod
    def jobs(self, query: JobQuery) -> JobPage:
        """Return a page of jobs."""

    @abstractmethod
    def job(self, ref: str) -> JobDetails:
        """Return everything about one job."""

    @abstractmethod
    def explain(self, ref: str) -> JobExplanation:
        """Return why a job is in its state."""

    @abstractmethod
    def series(self, ref: str, query: SeriesQuery) -> SeriesView:
        """Return metrics of a job over its steps."""

    @abstractmethod
    def stages(self, ref: str) -> StageGraph:
        """Return the stages of a job, laid out."""

    @abstractmethod
    def log(self, ref: str, query: LogRequest) -> LogPage:
        """Return lines that a job printed."""

    @abstractmethod
    def config(self, ref: str) -> ConfigView:
        """Return the configuration of a job, each value with its origin."""

    @abstractmethod
    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        """Return how a job's code differs from that of `parent`, or of the run before it."""

    @abstractmethod
    def files(self, ref: str) -> FileList:
        """Return the files of a job's folder."""

    def open_file(self, ref: str, path: str) -> BinaryIO:
        """Open one of them to read. Caller closes. Raises `NotFound`."""
        raise Refused("files of a job can't be read here", hint=f"stoker get {ref}")

    def card(self, ref: str) -> ResultCard:
        """Return the model card of a job's result."""
        raise Refused("model cards can't be read here", hint=f"stoker get {ref}")

    @abstractmethod
    def sweep(self, name: str, metric: str = "", better: str = "") -> SweepView:
        """Return the trials of a sweep, ranked by a metric (default: the most telling).

        `better` is `smaller` or `larger`; empty: as the metric's name says.
        """

    def sweeps(self, limit: int = 50) -> SweepList:
        """Return the newest sweeps."""
        raise Refused("sweeps can't be listed here", hint="stoker jobs")

    @abstractmethod
    def compare(self, refs: Sequence[str], metric: str = "", better: str = "") -> ComparisonView:
        """Return jobs side by side, each at its best step of a metric."""

    def adapters(self) -> AdapterBoard:
        """Return adapters by base model, the lowest loss first."""
        raise Refused("adapters can't be listed here", hint="stoker adapters board adapters.toml")

    def models(self, after: str = "", limit: int = 50, *, digest: str = "", job: str = "") -> ModelPage:
        """Return results with their lineage, the newest first; by the beginning of a digest, or of a job by its id."""
        raise Refused("results can't be listed here", hint="stoker jobs")

    def simulate(self, request: SimulateRequest) -> SimulationView:
        """Return when all jobs are done, as the fleet is and with machines added or removed."""
        hint = "`stoker serve` starts a coordinator, and `stoker submit` queues jobs there"
        raise Refused("only the queue of a fleet can be simulated", hint=hint)

    @abstractmethod
    def machines(self) -> tuple[MachineView, ...]:
        """Return all machines."""

    def machine(self, name: str) -> MachineView:
        """Return one machine."""
        for found in self.machines():
            if found.name == name:
                return found
        raise NotFound(f"there is no machine {name!r}", hint="`stoker machines` lists them")

    def telemetry(self, name: str, query: SpanQuery | None = None) -> TelemetryView:
        """Return the present state of a machine's devices, alerts, and a span of time (default: the last hour)."""
        raise Refused(f"{name} has no telemetry here", hint=f"stoker machines show {name}")

    def timeline(self, query: SpanQuery, machine: str = "") -> TimelineView:
        """Return which attempts ran where in a span of time, on all machines or on one."""
        raise Refused("what ran where can't be read here", hint="stoker jobs")

    @abstractmethod
    def changes(self, after: int, wait_s: float, frame: int = 0) -> ChangedRows:
        """Return the rows that changed after an event; wait for so long if there are none.

        With the `frame` of the answer before, progress is included that was made since.
        """

    @abstractmethod
    def cancel(self, ref: str) -> DoneView:
        """Cancel a job, or by a sweep's name all of its points."""

    @abstractmethod
    def requeue(self, ref: str) -> DoneView:
        """Start a job that has ended again."""

    def repeat_form(self, ref: str) -> RepeatForm:
        """Return which values of a job can be different if it is run again."""
        raise Refused("jobs can't be changed here", hint=f"stoker submit --again {ref} key=value")

    def repeat(self, ref: str, request: RepeatJobRequest) -> RepeatView:
        """Submit a job again with other values, or return the command that runs it."""
        raise Refused("jobs can't be changed here", hint=f"stoker submit --again {ref} key=value")

    def submit_manifest(self, request: ManifestRequest) -> ManifestView:
        """Check a manifest that came as text, or submit it."""
        hint = "`stoker serve` starts a coordinator, and `stoker submit` queues jobs there"
        raise Refused("a manifest is for a fleet, and this is one machine", hint=hint)

    @abstractmethod
    def set_priority(self, ref: str, priority: int) -> DoneView:
        """Change the priority of a pending job."""

    @abstractmethod
    def set_machine(self, name: str, verb: str, *, why: str = "", for_s: float | None = None) -> DoneView:
        """`drain`, `cordon`, `pause` or `open` a machine."""
