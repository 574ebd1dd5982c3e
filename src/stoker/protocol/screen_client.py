"""The part of a coordinator's client that screens and reports use. Blocks. Thread-safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.protocol.refusals import no_coordinator_there
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
from stoker.protocol.telemetry_messages import TelemetryReport, TelemetryView, TimelineView
from stoker.protocol.transport import CoordinatorClient, FleetEvent, Query, listen, part
from stoker.protocol.view_messages import ChangeRequest, DoneView, JobPage, PriorityRequest

PAGE = 100
"""How many jobs a page has by default."""
_SIMULATE_S = 60.0
_CHECK_S = 90.0


class ScreenClient(CoordinatorClient):
    """The routes that answer with what screens show: lists, runs, sweeps, machines over time."""

    # -- lists and changes

    def jobs(self, *, sort: str = "", after: str = "", limit: int = PAGE, **filters: str) -> JobPage:
        """Return a page of jobs, newest first or in the order `sort`; `after` is the `next` of the page before.

        Filters: `state`, `name`, `recipe`, `machine`, `submitter`, `sweep`, `q` (a part of name or label), `ids`.
        """
        query: Query = {**filters, "sort": sort, "after": after, "limit": limit}
        page = self._get("/v1/jobs", JobPage, query)
        if after and page.next == after:
            raise no_coordinator_there(self.url, "its next page of jobs is the same page again")
        return page

    def overview(self, *, max_age_s: float = 0.0) -> Overview:
        """Return the state of everything; with `max_age_s` perhaps as another screen got it, so long ago at most."""
        return self._get("/v1/overview", Overview, {"max_age_s": max_age_s or None})

    def changes(self, after: int, *, frame: int = 0, wait_s: float = 0.0) -> ChangedRows:
        """Return the rows that changed after an event; wait for so long if there are none.

        With the `frame` of the answer before, progress is included that was made since.
        """
        query: Query = {"after": after, "frame": frame or None, "wait_s": wait_s or None}
        return self._get("/v1/changes", ChangedRows, query, waits_s=wait_s)

    def stream(self, after: int | None = None, *, beat_s: float = 30.0) -> Iterator[FleetEvent | None]:
        """Return frames of changed rows, as they come, across restarts of the coordinator.

        The kind of each is `hello`, `rows`, `beat` or `resync`; the data of all but the first are a `ChangedRows`.
        Yields None after every `beat_s` of silence. Without `after` it begins with what changes now.
        """
        return listen(self.transport, after, beat_s=beat_s, path="/v1/stream")

    def change_job(self, ref: str, verb: str, *, by: str = "", priority: int | None = None) -> DoneView:
        """`cancel` or `requeue` a job, or all points of a sweep by its bare name; `priority` needs a number."""
        body = ChangeRequest(by=by) if priority is None else PriorityRequest(by=by, priority=priority)
        return self._ask(f"/v1/jobs/{part(ref)}/{verb}", DoneView, body, is_repeatable=verb != "requeue")

    # -- one job's run

    def series(
        self,
        ref: str,
        names: Sequence[str] = (),
        *,
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        attempt: int | None = None,
    ) -> SeriesView:
        """Return metrics of a job, the most telling without `names`, between two steps, of one attempt or of all."""
        query = {"names": ",".join(names) or None, "first": first, "last": last, "points": points, "attempt": attempt}
        return self._get(f"/v1/jobs/{part(ref)}/series", SeriesView, query)

    def stages(self, ref: str, *, attempt: int | None = None) -> StageGraph:
        """Return the stages of a job's last attempt, or of one, laid out."""
        return self._get(f"/v1/jobs/{part(ref)}/stages", StageGraph, {"attempt": attempt})

    def log(self, ref: str, request: LogRequest | None = None) -> LogPage:
        """Return lines that a job printed: the last ones, those from a number on, or those after a page."""
        query = {} if request is None else request.model_dump(exclude_none=True)
        return self._get(f"/v1/jobs/{part(ref)}/log", LogPage, query)

    def config(self, ref: str) -> ConfigView:
        """Return the configuration of a job."""
        return self._get(f"/v1/jobs/{part(ref)}/config", ConfigView)

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        """Return how a job's code differs from that of `parent`, or of the job of its name before it."""
        return self._get(f"/v1/jobs/{part(ref)}/code", CodeDiff, {"parent": parent})

    def card(self, ref: str) -> ResultCard:
        """Return the model card of a job's result."""
        return self._get(f"/v1/jobs/{part(ref)}/card", ResultCard)

    # -- several jobs together

    def sweeps(self, after: str = "", *, limit: int = 50) -> SweepList:
        """Return the newest sweeps; `after` is the `next` of the page before."""
        return self._get("/v1/sweeps", SweepList, {"after": after, "limit": limit})

    def sweep(self, name: str, metric: str = "", better: str = "") -> SweepView:
        """Return the trials of a sweep, ranked by a metric; without one, by the most telling.

        `better` is `smaller` or `larger`; empty: as the metric's name says.
        """
        return self._get(f"/v1/sweeps/{part(name)}", SweepView, {"metric": metric, "better": better})

    def compare(self, refs: Sequence[str], metric: str = "", better: str = "") -> ComparisonView:
        """Return jobs side by side, what differs first, each at its best step of a metric."""
        return self._get("/v1/compare", ComparisonView, {"ref": tuple(refs), "metric": metric, "better": better})

    def adapters(self) -> AdapterBoard:
        """Return adapters by base model, the lowest loss first."""
        return self._get("/v1/adapters", AdapterBoard)

    def models(self, after: str = "", *, limit: int = 50, digest: str = "", job: str = "") -> ModelPage:
        """Return results with their lineage, the newest first; `after` is the `next` of the page before.

        With the beginning of a digest, or the whole id of a job, only those.
        """
        return self._get("/v1/models", ModelPage, {"after": after, "limit": limit, "digest": digest, "job": job})

    def simulate(self, request: SimulateRequest) -> SimulationView:
        """Return when all jobs are done, as the fleet is and with machines added or removed."""
        return self._ask("/v1/simulate", SimulationView, request, waits_s=_SIMULATE_S)

    # -- jobs again

    def repeat_form(self, ref: str) -> RepeatForm:
        """Return which values of a job can be different if it is submitted again."""
        return self._get(f"/v1/jobs/{part(ref)}/again", RepeatForm)

    def repeat(self, ref: str, request: RepeatJobRequest) -> RepeatView:
        """Submit a job again with other values, or check that."""
        return self._ask(f"/v1/jobs/{part(ref)}/again", RepeatView, request, waits_s=_CHECK_S)

    # -- machines over time

    def report_telemetry(self, report: TelemetryReport) -> DoneView:
        """Send what a worker measured on its machine."""
        return self._ask(f"/v1/machines/{part(report.worker)}/telemetry", DoneView, report)

    def telemetry(
        self, name: str, *, from_s: float | None = None, to_s: float | None = None, points: int | None = None
    ) -> TelemetryView:
        """Return the telemetry of a machine, by default of the last hour."""
        query = {"from": from_s, "to": to_s, "points": points}
        return self._get(f"/v1/machines/{part(name)}/telemetry", TelemetryView, query)

    def timeline(self, *, from_s: float | None = None, to_s: float | None = None, machine: str = "") -> TimelineView:
        """Return which attempts ran where, by default in the last hour."""
        return self._get("/v1/machines/timeline", TimelineView, {"from": from_s, "to": to_s, "machine": machine})
