"""The jobs and machines of a fleet for a screen, asked of its coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from stoker.api.monitor import JobQuery, Monitor, SeriesQuery, SpanQuery
from stoker.core.errors import Refused
from stoker.protocol.client import FleetClient
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
from stoker.protocol.sent_messages import RepeatForm, RepeatJobRequest, RepeatView
from stoker.protocol.telemetry_messages import TelemetryView, TimelineView
from stoker.protocol.view_messages import (
    DoneView,
    FileList,
    JobDetails,
    JobExplanation,
    JobPage,
    MachineRequest,
    MachineView,
)

_MOST_WAIT_S = 60.0
"""That a coordinator holds a request open."""


class FleetMonitor(Monitor):
    """The jobs and machines of one coordinator. An error of the coordinator is raised as the same error."""

    is_fleet = True

    def __init__(self, client: FleetClient, *, by: str = "") -> None:
        """Ask through `client`; changes are recorded as made by `by`, where the coordinator knows no better."""
        # A screen shows a lost connection and asks again itself.
        self._client = client.more_patient(0.0)
        self._by = by
        self.name = urlsplit(client.url).hostname or client.url

    def overview(self) -> Overview:
        found = self._client.overview()
        self.name = found.name or self.name
        return found

    def jobs(self, query: JobQuery) -> JobPage:
        return self._client.jobs(
            state=query.state,
            q=query.name,
            recipe=query.recipe,
            machine=query.machine,
            submitter=query.submitter,
            sweep=query.sweep,
            sort=query.sort,
            after=query.after,
            limit=query.limit,
        )

    def job(self, ref: str) -> JobDetails:
        return self._client.job(ref)

    def explain(self, ref: str) -> JobExplanation:
        return self._client.explain(ref)

    def series(self, ref: str, query: SeriesQuery) -> SeriesView:
        return self._client.series(
            ref, query.names, first=query.first, last=query.last, points=query.points, attempt=query.attempt
        )

    def stages(self, ref: str) -> StageGraph:
        return self._client.stages(ref)

    def log(self, ref: str, request: LogRequest) -> LogPage:
        return self._client.log(ref, request)

    def config(self, ref: str) -> ConfigView:
        return self._client.config(ref)

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        return self._client.code_diff(ref, parent)

    def files(self, ref: str) -> FileList:
        return self._client.files(ref)

    def card(self, ref: str) -> ResultCard:
        return self._client.card(ref)

    def sweep(self, name: str, metric: str = "", better: str = "") -> SweepView:
        return self._client.sweep(name, metric, better)

    def compare(self, refs: Sequence[str], metric: str = "", better: str = "") -> ComparisonView:
        return self._client.compare(refs, metric, better)

    def sweeps(self, limit: int = 50) -> SweepList:
        return self._client.sweeps(limit=limit)

    def adapters(self) -> AdapterBoard:
        return self._client.adapters()

    def models(self, after: str = "", limit: int = 50, *, digest: str = "", job: str = "") -> ModelPage:
        return self._client.models(after, limit=limit, digest=digest, job=job)

    def simulate(self, request: SimulateRequest) -> SimulationView:
        return self._client.simulate(request)

    def machines(self) -> tuple[MachineView, ...]:
        return self._client.machines()

    def machine(self, name: str) -> MachineView:
        return self._client.machine(name)

    def telemetry(self, name: str, query: SpanQuery | None = None) -> TelemetryView:
        asked = query or SpanQuery()
        return self._client.telemetry(name, from_s=asked.from_s, to_s=asked.to_s, points=asked.points)

    def timeline(self, query: SpanQuery, machine: str = "") -> TimelineView:
        return self._client.timeline(from_s=query.from_s, to_s=query.to_s, machine=machine)

    def changes(self, after: int, wait_s: float, frame: int = 0) -> ChangedRows:
        return self._client.changes(after, frame=frame, wait_s=max(0.0, min(wait_s, _MOST_WAIT_S)))

    def cancel(self, ref: str) -> DoneView:
        return self._client.change_job(ref, "cancel", by=self._by)

    def requeue(self, ref: str) -> DoneView:
        return self._client.change_job(ref, "requeue", by=self._by)

    def repeat_form(self, ref: str) -> RepeatForm:
        return self._client.repeat_form(ref)

    def repeat(self, ref: str, request: RepeatJobRequest) -> RepeatView:
        return self._client.repeat(ref, request)

    def set_priority(self, ref: str, priority: int) -> DoneView:
        return self._client.change_job(ref, "priority", by=self._by, priority=priority)

    def set_machine(self, name: str, verb: str, *, why: str = "", for_s: float | None = None) -> DoneView:
        if verb not in ("drain", "cordon", "pause", "open"):
            raise Refused(f"unknown change {verb!r} of a machine", hint="drain, cordon, pause or open")
        return self._client.change_machine(name, verb, MachineRequest(why=why, for_s=for_s, by=self._by))
