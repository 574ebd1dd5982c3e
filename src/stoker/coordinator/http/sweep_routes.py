"""Routes about several jobs together: sweeps, comparisons, adapters, results, a simulation of all that are pending.

Metrics are read from the mirrors of attempts, everything else from rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path, Query, Response

from stoker.coordinator.http.access import Who, owner_of
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import RouteTable, answer
from stoker.coordinator.queue.queue_state import choices_in
from stoker.coordinator.queue.read_sweeps import ResultRow, SweepTrialRow, TrainingRow
from stoker.core.errors import NotFound
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.jobs.comparison import JobFacts
from stoker.jobs.job_curves import curve_files
from stoker.jobs.job_diff import ComparisonSide, side_of, side_of_spec
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.program import RECIPE, flat
from stoker.jobs.trial_bests import TrialBests
from stoker.jobs.trials import read_trials
from stoker.protocol.job_messages import INPUT_BODY
from stoker.protocol.screen_messages import (
    AdapterBoard,
    ComparisonView,
    LineageInput,
    ModelPage,
    ModelRow,
    SimulateRequest,
    SimulationView,
    SweepList,
    SweepView,
)
from stoker.protocol.view_messages import JobDetails
from stoker.views import model_views
from stoker.views.model_views import MOST_PER_PAGE, code_of, data_of, environment_of, finite_metrics
from stoker.views.simulation_view import simulate_change
from stoker.views.sweep_view import (
    MOST_SIDES,
    SweepFacts,
    SweepTrialFacts,
    best_trials,
    comparison_measure,
    comparison_view,
    direction_of,
    find_bests,
    measure_of,
    sweep_view,
)

READS_AT_ONCE = 1
"""Of the file threads: workers send their logs meanwhile."""
LONGEST_S = 1.5
"""For the curves of one answer; the others are read for the next one."""
_FOLDERS_TRIED = 5
_MOST_ATTEMPTS = 20
_MOST_ADAPTERS = 1000

SweepName = Annotated[str, Path(description="A sweep's bare name", min_length=1, max_length=300)]
PageAfter = Annotated[str, Query(max_length=30, pattern="^[0-9]{0,18}$", description="`next` of a page")]
MetricName = Annotated[str, Query(max_length=300, description="What to rank by; empty: the most telling")]
Better = Annotated[str, Query(pattern="^(smaller|larger)?$", description="Which values; empty: by the metric's name")]


class SweepRoutes:
    """Routes about several jobs together."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._bests = TrialBests()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self.router = RouteTable("sweeps")
        add = self.router.add
        add("/v1/sweeps", self.all, response_model=SweepList)
        add("/v1/sweeps/{name}", self.sweep, response_model=SweepView)
        add("/v1/compare", self.compare, response_model=ComparisonView)
        add("/v1/adapters", self.adapters, response_model=AdapterBoard)
        add("/v1/models", self.models, response_model=ModelPage)
        add("/v1/simulate", self.simulate, methods=["POST"], response_model=SimulationView)

    async def all(self, after: PageAfter = "", limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Response:
        """List sweeps, the newest first, with the number of trials by state."""
        before = int(after) if after else None
        return answer(await self._context.read(self._context.reader.sweeps, limit=limit, before=before))

    async def sweep(self, name: SweepName, metric: MetricName = "", better: Better = "") -> Response:
        """Return the trials of a sweep, best first, each at its best step, and what the metric depends on."""
        rows = await self._context.read(self._context.reader.sweep, name)
        async with self._reads:
            return await self._context.keep(lambda: answer(self._sweep(name, rows, metric, better)))

    async def compare(
        self,
        ref: Annotated[list[str], Query(min_length=1, max_length=MOST_SIDES, description="Jobs")],
        metric: MetricName = "",
        better: Better = "",
    ) -> Response:
        """Return jobs side by side: configuration, code, data, environment and metrics, what differs first.

        Each with its best step of a metric, and the other metrics there.
        """
        refs = list(dict.fromkeys(ref))
        stories = [await self._context.read(self._context.reader.story, one) for one in refs]
        async with self._reads:
            return await self._context.keep(lambda: answer(self._compare(stories, metric, better)))

    async def adapters(self) -> Response:
        """Return adapters by base model, the lowest loss first, of jobs that train one each."""
        read = self._context.reader.trainings
        return await self._context.read(
            lambda: answer(_board(read(model_views.RECIPE, model_views.STATES, limit=_MOST_ADAPTERS)))
        )

    async def models(
        self,
        after: PageAfter = "",
        limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 50,
        digest: Annotated[str, Query(pattern="^[0-9a-f]{0,64}$", description="Of a result, or its beginning")] = "",
        job: Annotated[str, Query(max_length=64, description="Only results of a job, by its whole id")] = "",
    ) -> Response:
        """Return results by digest, the newest first, with data, code and results that they are made from."""
        read, before_id = self._context.reader.results, int(after) if after else None
        return await self._context.read(
            lambda: answer(_models(read(before_id=before_id, digest=digest, job=job, limit=limit + 1), limit))
        )

    async def simulate(self, asked: SimulateRequest, who: Who) -> Response:
        """Simulate the fleet as it is and with machines added or removed: when all jobs are done, and how they wait.

        One at a time, and two of a user that run or wait; more are refused for a moment.
        """
        context = self._context
        async with context.simulations.of(owner_of(who)):
            schedule = await context.run_forecast(context.views.schedule)
            return await context.compute(lambda: answer(simulate_change(schedule, asked, context.clock)))

    def _compare(self, stories: Sequence[JobDetails], metric: str, better: str) -> ComparisonView:
        sides = [self._side(story) for story in stories]
        measure = comparison_measure(sides, metric, direction_of(better))
        bests = find_bests(sides, measure, self._bests)
        return comparison_view([story.job for story in stories], sides, measure, bests)

    def _side(self, story: JobDetails) -> ComparisonSide:
        job = story.job
        folder = JobFolder(self._context.keeping.attempt_files.folder_of(job.id, max(1, job.attempt)))
        try:
            side = side_of(JobFacts(folder, None), None, label=job.name)
        except NotFound:
            return side_of_spec(story.spec, label=job.name, state=job.state)
        # An attempt may have ended though its job waits for the next one.
        return changed(side, state=job.state)

    def _sweep(self, name: str, rows: Sequence[SweepTrialRow], metric: str, better: str) -> SweepView:
        clock, now_s = self._context.clock, self._context.clock.wall_s()
        sweep = SweepFacts(
            name=name,
            recipe=rows[0].recipe,
            trials=[_trial(row, now_s) for row in rows],
            values=self._values(rows[0]),
        )
        measure = measure_of(sweep, metric, better)
        by_number = {row.number: row for row in rows}
        shown = self._with_points(best_trials(sweep, measure), by_number)
        if measure is None:
            return sweep_view(sweep, measure, shown, {})
        files = {trial.n: self._files(by_number[trial.n]) for trial in shown}
        until_s = clock.monotonic_s() + LONGEST_S
        bests, unread = self._bests.find(
            files, measure.metric, measure.direction, is_late=lambda: clock.monotonic_s() > until_s
        )
        return sweep_view(sweep, measure, shown, bests, unread)

    def _values(self, row: SweepTrialRow) -> dict[str, Any]:
        spec = self._context.reader.specs([row.seq]).get(row.seq, {})
        args = spec.get("args", {})
        return flat({**args, **args.get("params", {})} if row.recipe == RECIPE else args)

    def _with_points(self, trials: Sequence[SweepTrialFacts], rows: dict[int, SweepTrialRow]) -> list[SweepTrialFacts]:
        """Return trials with what was varied in each."""
        specs = self._context.reader.specs([rows[trial.n].seq for trial in trials])
        points = {trial.n: specs.get(rows[trial.n].seq, {}).get("point", {}) for trial in trials}
        names = self._measured_on([rows[trial.n] for trial in trials])
        return [
            changed(
                trial,
                point=points[trial.n],
                measured_on={name: points[trial.n][name] for name in names if name in points[trial.n]},
            )
            for trial in trials
        ]

    def _measured_on(self, rows: Sequence[SweepTrialRow]) -> tuple[str, ...]:
        """Return the arguments that decide what metrics are taken from, as an attempt wrote them down."""
        for row in [row for row in rows if row.attempt][:_FOLDERS_TRIED]:
            folder = JobFolder(self._context.keeping.attempt_files.folder_of(row.id, row.attempt))
            for trial in read_trials(folder):
                return tuple(trial.measured_on)
        return ()

    def _files(self, row: SweepTrialRow) -> tuple[str, ...]:
        """Return the metrics files of a trial's attempts, the last ones of very many, earlier ones first."""
        numbers = range(max(1, row.attempt - _MOST_ATTEMPTS + 1), row.attempt + 1)
        folder_of = self._context.keeping.attempt_files.folder_of
        return tuple(
            path
            for number in numbers
            for paths in curve_files(JobFolder(folder_of(row.id, number)).metrics_folder).values()
            for path in paths
        )


def _trial(row: SweepTrialRow, now_s: float) -> SweepTrialFacts:
    ended_s = row.ended_s if row.ended_s is not None else now_s
    return SweepTrialFacts(
        n=row.number,
        label=row.label,
        state=row.state,
        metrics=row.metrics,
        step=row.step,
        of=row.of,
        seconds=None if row.started_s is None else max(0.0, ended_s - row.started_s),
    )


def _board(rows: Sequence[TrainingRow]) -> AdapterBoard:
    found = [
        model_views.AdapterFacts(
            job=row.name,
            label=row.label,
            state=row.state,
            args=row.spec.get("args", {}),
            identity=row.spec.get("identity", {}),
            metrics=row.metrics,
            step=row.step,
            result=row.result,
        )
        for row in rows
    ]
    return model_views.adapter_board(found, model_views.cut_note(len(rows), _MOST_ADAPTERS))


def _models(rows: Sequence[ResultRow], limit: int) -> ModelPage:
    following = str(rows[limit - 1].id) if len(rows) > limit else ""
    return ModelPage(models=tuple(_model(row) for row in rows[:limit]), next=following)


def _model(row: ResultRow) -> ModelRow:
    spec = _lineage_spec(row)
    return ModelRow(
        digest=row.tree,
        job=row.job,
        name=row.name,
        label=row.label,
        recipe=row.recipe,
        machine=row.machine,
        submitter=row.submitter,
        attempt=row.attempt,
        made_s=row.at_s,
        size_bytes=row.size_bytes,
        is_pinned=row.is_pinned,
        is_pruned=row.is_pruned,
        metrics=finite_metrics(row.metrics),
        data=data_of(spec),
        code=code_of(spec),
        parents=tuple(LineageInput(name=name, job=job, digest=tree) for name, job, tree in row.parents),
        commit=spec.commit,
        environment=environment_of(spec),
    )


def _lineage_spec(row: ResultRow) -> JobSpec:
    """Return of a stored job what its result is made from."""
    raw = row.spec
    return JobSpec(
        id=row.job,
        name=row.name,
        recipe=row.recipe,
        args=raw.get("args", {}),
        identity=raw.get("identity", {}),
        inputs=tuple(INPUT_BODY.validate_python(one) for one in raw.get("inputs", ())),
        environment=choices_in(raw),
        code=raw.get("code", {}),
        code_tree=raw.get("code_tree", ""),
        commit=raw.get("commit", ""),
    )
