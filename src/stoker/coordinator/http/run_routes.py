"""Routes about one job's run: metrics over steps, stages and logs from the mirrors of its attempts; config and code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Query, Response

from stoker.coordinator.http.access import Number
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import Ref, RouteTable, answer
from stoker.coordinator.queue.read_jobs import JobMatch
from stoker.coordinator.storage.attempt_files import AttemptFiles
from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.digests import Digest
from stoker.core.errors import NotFound, StokerError
from stoker.core.job import JobSpec, TrialNodes
from stoker.engine.metrics.metric_levels import PART_BYTES, series_parts
from stoker.engine.metrics.metrics_file import SUFFIX
from stoker.jobs.code_diff import LARGEST_FILE_BYTES, compare_code
from stoker.jobs.job_curves import MOST_POINTS, CurveRange, curve_files, joined_files, read_job_curves
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import HistoryCache
from stoker.jobs.job_log import JobLogPages
from stoker.jobs.stage_plan import read_stages
from stoker.jobs.trial_settings import shown_layers
from stoker.jobs.trials import Trial
from stoker.protocol.screen_messages import (
    CodeDiff,
    ConfigView,
    LogPage,
    LogRequest,
    ResultCard,
    SeriesView,
    StageGraph,
)
from stoker.protocol.view_messages import AttemptView, JobView
from stoker.store.archives.archive_members import read_listing
from stoker.views.result_card import LARGEST_CARD_BYTES, card_path, card_view
from stoker.views.run_views import code_diff_view, config_view, series_view
from stoker.views.stage_graph import stage_graph

READS_AT_ONCE = 2
"""Of the file threads: a first look at a long curve takes seconds, and workers send their logs meanwhile."""
_STEP = 2**63 - 1
_COMMIT = 12
_METRICS = "metrics/"
_MOST_WATCHED = 4096

P = ParamSpec("P")
T = TypeVar("T")

Names = Annotated[list[str] | None, Query(max_length=100, description="Metrics, separated by commas")]
Text = Annotated[str, Query(max_length=300)]
Step = Annotated[int, Query(ge=-_STEP, le=_STEP)]


class MirroredLevels:
    """Brings the levels of mirrored metrics files up to date as they grow, for a quick first look. Thread-safe.

    All levels of a file are read each time, so a long file is looked at after an eighth more: the work stays in
    proportion to its size.
    """

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files
        self._guard = threading.Lock()
        self._parts: OrderedDict[str, int] = OrderedDict()
        """Whole parts that the files that grew last had when their levels were made."""

    def grew(self, job: str, attempt: int, path: str) -> None:
        """Add what a file has got; called in the thread that wrote to it, with no lock held."""
        if not path.startswith(_METRICS) or not path.endswith(SUFFIX):
            return
        full = os.path.join(self._files.folder_of(job, attempt), path)
        try:
            parts = os.stat(full).st_size // PART_BYTES
        except OSError:
            return
        with self._guard:
            known = self._parts.pop(full, 0)
            is_due = parts >= known + max(1, known // 8)
            self._parts[full] = parts if is_due else known
            while len(self._parts) > _MOST_WATCHED:
                self._parts.popitem(last=False)
        if is_due:
            series_parts(full)


class RunRoutes:
    """Routes about one job's run."""

    def __init__(self, context: ServiceContext, contents: CoordinatorTrees) -> None:
        self._context = context
        self._contents = contents
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        files = context.keeping.attempt_files
        files.on_growth(MirroredLevels(files).grew)
        self._histories = HistoryCache()
        self._logs = JobLogPages(self._histories)
        self.router = RouteTable("runs")
        add = self.router.add
        add("/v1/jobs/{ref}/series", self.series, response_model=SeriesView)
        add("/v1/jobs/{ref}/stages", self.stages, response_model=StageGraph)
        add("/v1/jobs/{ref}/log", self.log, response_model=LogPage)
        add("/v1/jobs/{ref}/config", self.config, response_model=ConfigView)
        add("/v1/jobs/{ref}/code", self.code, response_model=CodeDiff)
        add("/v1/jobs/{ref}/card", self.card, response_model=ResultCard)

    async def series(
        self,
        ref: Ref,
        names: Names = None,
        first: Step | None = None,
        last: Step | None = None,
        points: Annotated[int, Query(ge=1, le=MOST_POINTS)] = 1000,
        attempt: Number | None = None,
    ) -> Response:
        """Return metrics over steps: of each part of a curve the first, last, lowest and highest value.

        Without `names`, the most telling metrics. Without `attempt`, all of them joined: the later value of a step
        counts. `first` and `last` are steps; a short range has every value.
        """
        job, tries = await self._attempts(ref)
        chosen = _chosen(ref, tries, attempt) if attempt is not None else tries
        asked = CurveRange(names=names or (), first=first, last=last, points=points)
        return await self._read(lambda: answer(self._series(job, chosen, asked)))

    def _series(self, job: JobMatch, tries: Sequence[AttemptView], asked: CurveRange) -> SeriesView:
        files = joined_files(curve_files(self._folder(job, one).metrics_folder) for one in tries)
        started_s = {one.number: self._started_s(job, one) for one in tries if one.started_s is not None}
        curves = read_job_curves(files, asked, started_s)
        return series_view(job.name, curves, min(started_s.values(), default=None))

    def _started_s(self, job: JobMatch, one: AttemptView) -> float:
        """Return when an attempt began by its machine's clock, as its values have it; else by ours."""
        try:
            return self._folder(job, one).begun().started_s
        except StokerError:
            return one.started_s or 0.0

    async def stages(self, ref: Ref, attempt: Number | None = None) -> Response:
        """Return the stages of a job's last attempt, or of one, as a graph in layers."""
        job, tries = await self._attempts(ref)
        chosen = _chosen(ref, tries, attempt) if attempt is not None else tries[-1:]
        return await self._read(lambda: answer(self._stages(job, chosen)))

    def _stages(self, job: JobMatch, tries: Sequence[AttemptView]) -> StageGraph:
        if not tries:
            return StageGraph(job=job.name)
        folder = self._folder(job, tries[0])
        planned = read_stages(folder)
        return self._histories.read(folder.status_path, lambda story: stage_graph(job.name, planned, story.nodes))

    async def log(self, ref: Ref, asked: Annotated[LogRequest, Query()]) -> Response:
        """Return lines that a job printed: the last ones, those from a number on, or those after a page.

        Of all stages, or of one. A line keeps its number while logs grow. With `search`, only lines that hold the text,
        whatever its case. Long lines are cut.
        """
        job, tries = await self._attempts(ref)
        chosen = _chosen(ref, tries, asked.attempt) if asked.attempt is not None else tries[-1:]
        return await self._read(lambda: answer(self._log(job, chosen, asked)))

    def _log(self, job: JobMatch, tries: Sequence[AttemptView], asked: LogRequest) -> LogPage:
        if not tries:
            return LogPage(job=job.name)
        return self._logs.read(job.name, self._folder(job, tries[0]), asked, is_over=bool(tries[0].ending))

    async def config(self, ref: Ref) -> Response:
        """Return the configuration of a job, as it was submitted; values of variables are masked."""
        story = await self._context.read(self._context.reader.story, ref)
        trial = Trial(spec=story.spec, nodes=TrialNodes(final="", keep=(), nodes=()))
        return answer(config_view(story.job.name, shown_layers(story.spec, {}, [trial])))

    async def code(self, ref: Ref, parent: Text = "") -> Response:
        """Return how a job's code differs from that of another job, by default the one of its name before it."""
        reader, read = self._context.reader, self._context.read
        job = await read(reader.find, ref)
        other = await read(reader.find, parent) if parent else await read(reader.find_earlier, job)
        if other is None:
            return answer(CodeDiff(job=job.name, note="no earlier job has this name"))
        specs = [(await read(reader.story, one.id)).spec for one in (other, job)]
        return await self._read(lambda: answer(self._code(job.name, other.name, specs[0], specs[1])))

    def _code(self, name: str, parent: str, before: JobSpec, after: JobSpec) -> CodeDiff:
        commits = [spec.commit[:_COMMIT] for spec in (before, after)]
        note = f"commits {commits[0]} and {commits[1]}" if all(commits) else ""
        if not before.code_tree or not after.code_tree:
            # Code of a recipe, or of a folder that all machines have: its files are known by their digests.
            return code_diff_view(name, parent, compare_code(before.code, after.code), note)
        try:
            trees = [read_listing(self._contents.listing(spec.code_tree), spec.code_tree) for spec in (before, after)]
        except StokerError as error:
            return code_diff_view(name, parent, None, f"the code is not stored: {error.message}")
        files = [{entry.path: str(entry.sha256) for entry in tree.entries if entry.sha256} for tree in trees]
        return code_diff_view(name, parent, compare_code(files[0], files[1], self._stored), note)

    async def card(self, ref: Ref) -> Response:
        """Return the model card of a job's result: what the job wrote as `model-card.md`, or a README."""
        story = await self._context.read(self._context.reader.story, ref)
        return answer(await self._read(self._card, story.job, story.bundle.get("pruned_s") is not None))

    def _card(self, job: JobView, is_pruned: bool) -> ResultCard:  # noqa: FBT001 - as threads are called
        if not job.result or is_pruned:
            why = "the result was pruned" if is_pruned else "there is no result yet"
            return ResultCard(job=job.name, digest=job.result, note=why)
        try:
            tree = read_listing(self._contents.listing(job.result), job.result)
            files = {entry.path: entry.sha256 for entry in tree.entries if entry.sha256}
            path = card_path(files)
            if not path:
                return card_view(job.name, job.result)
            with self._context.keeping.objects.open(Digest(files[path])) as file:
                return card_view(job.name, job.result, path, file.read(LARGEST_CARD_BYTES + 1))
        except StokerError as error:
            return ResultCard(job=job.name, digest=job.result, note=f"the result is not stored: {error.message}")

    def _stored(self, digest: str) -> bytes | None:
        """Return a stored file; None if it is large or not here."""
        keeping = self._context.keeping
        size_bytes = keeping.has_archive(digest)
        if size_bytes is None or size_bytes > LARGEST_FILE_BYTES:
            return None
        with keeping.objects.open(Digest(digest)) as file:
            return file.read(LARGEST_FILE_BYTES)

    def _folder(self, job: JobMatch, one: AttemptView) -> JobFolder:
        return JobFolder(self._context.keeping.attempt_files.folder_of(job.id, one.number))

    async def _attempts(self, ref: str) -> tuple[JobMatch, Sequence[AttemptView]]:
        """Return the job that is meant, and its attempts, oldest first."""
        reader = self._context.reader
        job = await self._context.read(reader.find, ref)
        return job, await self._context.read(reader.attempts_of, job.id)

    async def _read(self, read: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        async with self._reads:
            return await self._context.keep(read, *args, **named)


def _chosen(ref: str, tries: Sequence[AttemptView], attempt: int) -> Sequence[AttemptView]:
    found = [one for one in tries if one.number == attempt]
    if not found:
        hint = f"its last one is {tries[-1].number}" if tries else f"stoker explain {ref}"
        raise NotFound(f"job {ref!r} has no attempt {attempt}", hint=hint)
    return found
