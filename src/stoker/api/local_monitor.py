"""`LocalMonitor`: the jobs of this machine for a screen, read from their folders."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from stoker.api.local_job import LocalJob
from stoker.api.local_jobs import LocalJobTable
from stoker.api.local_sweeps import (
    list_sweeps,
    local_adapters,
    local_card,
    local_comparison,
    local_models,
    local_sweep,
    trial_view,
)
from stoker.api.local_telemetry import LocalTelemetryReader, local_timeline, measured_machine
from stoker.api.monitor import JobQuery, Monitor, SeriesQuery, SpanQuery
from stoker.config.overrides import Override, read_overrides
from stoker.config.values import text_of
from stoker.core.errors import InvalidTransition, NotFound, Refused, StokerError
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, JobState
from stoker.core.text import counted
from stoker.devices.this_machine import host_name
from stoker.host.folders import AnchoredFolder
from stoker.jobs.code_diff import compare_code, read_code
from stoker.jobs.comparison import JobFacts
from stoker.jobs.job_curves import CurveRange, curve_files, read_job_curves
from stoker.jobs.job_folder import JobFolder, find_job
from stoker.jobs.job_history import HistoryCache, RunHistory
from stoker.jobs.job_log import JobLogPages
from stoker.jobs.repeat_command import repeat_here
from stoker.jobs.repeated_job import command_line, program_words, settings_to_change, words_of_line
from stoker.jobs.stage_plan import read_stages
from stoker.jobs.trial_bests import TrialBests
from stoker.jobs.trial_settings import masked_args, read_config, shown_layers
from stoker.jobs.trials import Trial, is_sweep, shared_nodes, trial_numbered, trials_of_job
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
    StageGraph,
    SweepList,
    SweepView,
)
from stoker.protocol.sent_messages import FaultView, RepeatForm, RepeatJobRequest, RepeatSetting, RepeatView
from stoker.protocol.telemetry_messages import TelemetryView, TimelineView
from stoker.protocol.view_messages import (
    AttemptView,
    DoneView,
    FileList,
    FileView,
    JobDetails,
    JobExplanation,
    JobPage,
    JobView,
    MachineView,
)
from stoker.views.explanation_view import with_texts
from stoker.views.run_views import code_diff_view, config_view, series_view
from stoker.views.stage_graph import stage_graph

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.core.capability import Capability

_SHOWN = 20
_SHA256 = "sha256:"
_LATELY_S = 86_400.0
_LOOK_EVERY_S = 0.25
_MOST_FILES = 5000
_LOOKED_AT = 500
"""Jobs, the newest, among which sweeps, adapters and results are looked for."""


class LocalMonitor(Monitor):
    """The jobs of one home on this machine."""

    is_fleet = False

    def __init__(self, parts: AppParts) -> None:
        self.name = host_name(parts.settings.environment)[0]
        self._parts = parts
        self._runs = parts.settings.runs
        self._histories = HistoryCache()
        self._logs = JobLogPages(self._histories)
        self._bests = TrialBests()
        self._telemetry = LocalTelemetryReader(parts, self.name)
        self._jobs = LocalJobTable(self._runs, machine=self.name, histories=self._histories)

    def overview(self) -> Overview:
        self._jobs.look()
        now_s, rows = self._parts.clock.wall_s(), self._jobs.rows()
        running = [row for row in rows if row.state == JobState.RUNNING]
        failed = [row for row in rows if row.state == JobState.FAILED and row.changed_s >= now_s - _LATELY_S]
        machine = self._machine()
        used = {device for row in running for device in row.devices}
        return Overview(
            name=self.name,
            is_fleet=False,
            server_s=now_s,
            seq=self._jobs.seq,
            version=self._parts.version,
            user=_user(),
            role="admin",
            jobs=self._jobs.counts(),
            machines={machine.state: 1},
            devices=len(machine.devices),
            idle_devices=0 if running and not used else len(machine.devices) - len(used),
            running=self._jobs.detailed(running[:_SHOWN]),
            failed=self._jobs.detailed(failed[:_SHOWN]),
            failed_count=len(failed),
        )

    def jobs(self, query: JobQuery) -> JobPage:
        self._jobs.look()
        return self._jobs.page(query)

    def job(self, ref: str) -> JobDetails:
        job = self._find(ref)
        view = self._view(job)
        trial = self._trial(job)
        end = job.folder.ended() if trial is None else None
        attempt = AttemptView(
            number=1,
            epoch=1,
            generation=0,
            machine=self.name,
            incarnation="",
            devices=view.devices,
            granted_s=view.submitted_s,
            started_s=view.started_s,
            ended_s=view.ended_s,
            ending="" if view.state == JobState.RUNNING else view.state,
            message=view.why,
            hint=str((end.error or {}).get("hint", "")) if end is not None else "",
            exit_code=end.exit_code if end is not None else None,
            facts={
                "environment": job.folder.environment(),
                "run": job.folder.attempt,
                **self._histories.read(job.folder.status_path, _peaks),
            },
        )
        error = end.error if end is not None else None
        spec = job.spec if trial is None else trial.spec
        spec = changed(spec, args=masked_args(job.spec.recipe, spec.args))
        return JobDetails(spec=spec, job=view, attempts=(attempt,), error=error or {})

    def explain(self, ref: str) -> JobExplanation:
        job = self._find(ref)
        view, meant = self._view(job), self._nodes_of(job)
        verdict = self._histories.read(job.folder.status_path, lambda story: _verdict(view, story, self.name, meant))
        again = f"possible: what did not complete runs again by `stoker run --failed {job.spec.name}`"
        changes = (again,) if view.state == JobState.FAILED else ()
        return with_texts(JobExplanation(job=view, verdict=verdict, changes=changes), self._parts.clock.wall_s())

    def series(self, ref: str, query: SeriesQuery) -> SeriesView:
        job = self._find(ref)
        _check_attempt(ref, query.attempt)
        asked = CurveRange(names=query.names, first=query.first, last=query.last, points=query.points)
        borders = self._histories.read(job.folder.status_path, _retried)
        started_s = job.attempt.started_s
        curves = read_job_curves(self._curve_files(job), asked, {1: started_s, **borders})
        return series_view(job.ref, curves, started_s)

    def stages(self, ref: str) -> StageGraph:
        job = self._find(ref)
        planned, trials = read_stages(job.folder), trials_of_job(job.folder)
        meant = self._nodes_of(job)
        titles = {} if not is_sweep(trials) else {node: one.spec.label for one in trials for node in one.nodes.nodes}
        titles = {node: label for node, label in titles.items() if node not in shared_nodes(trials)}

        def drawn(story: RunHistory) -> StageGraph:
            nodes = {
                name: node for name, node in story.nodes.items() if meant is None or name.partition("[")[0] in meant
            }
            chosen = [stage for stage in planned if meant is None or stage.node in meant]
            return stage_graph(job.ref, chosen, nodes, titles)

        return self._histories.read(job.folder.status_path, drawn)

    def log(self, ref: str, query: LogRequest) -> LogPage:
        job = self._find(ref)
        _check_attempt(ref, query.attempt)
        is_over = not job.may_run()
        return self._logs.read(job.ref, job.folder, query, is_over=is_over, is_meant=self._nodes_of(job))

    def config(self, ref: str) -> ConfigView:
        job = self._find(ref)
        trial = self._trial(job)
        trials = trials_of_job(job.folder) if trial is None else [trial]
        return config_view(job.ref, shown_layers(job.spec, read_config(job.folder), trials))

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        job = self._find(ref)
        other = self._find(parent).folder if parent else self._jobs.earlier(job.folder)
        if other is None:
            return CodeDiff(job=job.ref, note="no earlier run has this name")
        texts = read_code(other) | read_code(job.folder)
        return code_diff_view(job.ref, other.attempt, compare_code(_code_of(other), _code_of(job.folder), texts.get))

    def files(self, ref: str) -> FileList:
        job = self._find(ref)
        return FileList(attempt=1, files=tuple(_files(job.folder.path)), is_over=not job.may_run())

    def open_file(self, ref: str, path: str) -> BinaryIO:
        top, (*folders, name) = self._find(ref).folder.path, path.split("/")
        missing = NotFound(f"{ref} has no file {path[:200]!r}", hint=f"stoker get {ref}")
        if not all(part and not part.startswith(".") for part in (*folders, name)):
            raise missing
        try:
            with AnchoredFolder.open(top, "/".join(folders), makes=False) as folder:
                descriptor = folder.open_file(name)
        except (StokerError, OSError, ValueError):
            raise missing from None
        if descriptor is None:
            raise missing
        return os.fdopen(descriptor, "rb")

    def sweep(self, name: str, metric: str = "", better: str = "") -> SweepView:
        job = self._find(name.partition("/")[0])
        return local_sweep(job, metric, better, self._bests, self._parts.clock)

    def sweeps(self, limit: int = 50) -> SweepList:
        return list_sweeps(self._newest(), limit)

    def adapters(self) -> AdapterBoard:
        return local_adapters(self._newest())

    def models(self, after: str = "", limit: int = 50, *, digest: str = "", job: str = "") -> ModelPage:
        return local_models(self._newest(), after, limit, digest=digest, job_id=job)

    def card(self, ref: str) -> ResultCard:
        job = self._find(ref)
        if not job.stage and is_sweep(trials_of_job(job.folder)):
            return ResultCard(job=job.ref, note=f"each trial has a result of its own, such as {job.ref}/1")
        return local_card(job, self._parts.store)

    def repeat_form(self, ref: str) -> RepeatForm:
        spec = self._spec_again(self._find(ref))
        return RepeatForm(
            job=ref,
            name=spec.name,
            settings=tuple(RepeatSetting(path=path, text=text) for path, text in settings_to_change(spec).items()),
            program=command_line(program_words(spec)),
            command=self._repeat_line(ref, RepeatJobRequest()),
            can_submit=False,
            notes=("jobs of this machine are started on a terminal: copy the command",),
        )

    def repeat(self, ref: str, request: RepeatJobRequest) -> RepeatView:
        if not request.dry_run:
            hint = f"on a terminal: {self._repeat_line(ref, request)}"
            raise Refused("this server starts no jobs", hint=hint)
        spec = self._spec_again(self._find(ref))
        overrides, faults = read_overrides(request.changes)
        known = settings_to_change(spec)
        differs = tuple(f"{one.path}: {known.get(one.path, 'not set')} → {_typed_value(one)}" for one in overrides)
        return RepeatView(
            job=request.name or spec.name,
            differs=differs,
            faults=tuple(FaultView(key=one.where, message=one.message, hint=one.hint) for one in faults),
            command=self._repeat_line(ref, request),
        )

    def _spec_again(self, job: LocalJob) -> JobSpec:
        """Return the spec of a job or of one of its trials, with the program's words as they were typed."""
        trial = self._trial(job)
        trials = trials_of_job(job.folder) if trial is None else [trial]
        spec = trials[0].spec if len(trials) == 1 else job.spec
        words = read_config(job.folder).get("program")
        return changed(spec, words=tuple(map(str, words))) if isinstance(words, list) else spec

    def _repeat_line(self, ref: str, request: RepeatJobRequest) -> str:
        job = self._find(ref)
        spec = self._spec_again(job)
        point = [f"{path}={text_of(value)}" for path, value in spec.point.items()]
        found = repeat_here(
            spec,
            read_config(job.folder),
            job.attempt.options,
            changes=(*point, *request.changes),
            program=None if request.program is None else words_of_line(request.program),
            name=request.name,
        )
        return " && ".join(found.lines)

    def compare(self, refs: Sequence[str], metric: str = "", better: str = "") -> ComparisonView:
        jobs = [self._find(ref) for ref in refs]
        return local_comparison([(self._row(job), job) for job in jobs], metric, better, self._bests)

    def machines(self) -> tuple[MachineView, ...]:
        self._jobs.look()
        running = [row for row in self._jobs.rows() if row.state == JobState.RUNNING]
        measured, held = self._telemetry.present(), self._telemetry.reservations()
        return (measured_machine(self._machine(), running, measured, held),)

    def telemetry(self, name: str, query: SpanQuery | None = None) -> TelemetryView:
        if name != self.name:
            raise NotFound(f"no machine {name!r}", hint=f"this machine is {self.name}")
        return self._telemetry.view(query or SpanQuery())

    def timeline(self, query: SpanQuery, machine: str = "") -> TimelineView:
        self._jobs.look()
        rows = self._jobs.rows() if machine in ("", self.name) else []
        return local_timeline(rows, self.name, query, self._parts.clock.wall_s())

    def _machine(self) -> MachineView:
        """Return this machine without what has to be measured."""
        now_s, found = self._parts.clock.wall_s(), self._capability
        running = [row.name for row in self._jobs.rows() if row.state == JobState.RUNNING]
        return MachineView(
            name=self.name,
            state="busy" if running else "ready",
            version=self._parts.version,
            last_seen_s=now_s,
            slots=max(1, len(found.devices)),
            held=len(running),
            jobs=tuple(running),
            cores=found.cpu_cores,
            ram_bytes=found.ram_total_bytes,
            devices=tuple({**device.to_dict(), "jobs": [], "closed": ""} for device in found.devices),
            capability=found.to_dict(),
        )

    def changes(self, after: int, wait_s: float, frame: int = 0) -> ChangedRows:
        clock = self._parts.clock
        until_s = clock.monotonic_s() + wait_s
        while True:
            self._jobs.look()
            found = self._jobs.changes(after)
            left_s = until_s - clock.monotonic_s()
            if found.seq != after or left_s <= 0:
                break
            clock.sleep(min(_LOOK_EVERY_S, left_s))
        is_lost = found.is_lost
        return ChangedRows(
            seq=found.seq,
            server_s=clock.wall_s(),
            jobs=() if is_lost else found.rows,
            gone=() if is_lost else found.gone,
            machines=(self._machine(),) if found.rows and not is_lost else (),
            counts=self._jobs.counts(),
            resync=is_lost,
        )

    def cancel(self, ref: str) -> DoneView:
        job = self._find(ref)
        if job.is_attempt:
            hint = "cancel the job of the fleet: stoker cancel NAME"
            raise InvalidTransition(f"{job.ref} is an attempt for a fleet", hint=hint, job=job.ref)
        stopped: list[str] = []
        job.cancel(ended=lambda stop: stopped.append(stop.name))
        return DoneView(changed=tuple(stopped))

    def requeue(self, ref: str) -> DoneView:
        name = self._find(ref).ref
        hint = f"run it again: stoker run --failed {name}"
        raise InvalidTransition(f"{name} is a job of this machine, which has no queue", hint=hint, job=name)

    def set_priority(self, ref: str, priority: int) -> DoneView:
        name = self._find(ref).ref
        hint = "jobs of a fleet have priorities: stoker submit --priority"
        raise InvalidTransition(f"{name} is a job of this machine, which has no queue", hint=hint, job=name)

    def set_machine(self, name: str, verb: str, *, why: str = "", for_s: float | None = None) -> DoneView:
        raise Refused(f"{name} can't be changed here: machines of a fleet can", hint=f"stoker machines {verb} {name}")

    @cached_property
    def _capability(self) -> Capability:
        return self._parts.capability

    def _find(self, ref: str) -> LocalJob:
        """Find a job by id, name, `last` or the beginning of an id; a stage or trial may follow."""
        name, _, stage = ref.partition("/")
        self._jobs.look()
        folder = self._jobs.folder(name) or find_job(self._runs, name)
        return LocalJob(folder, self._parts, stage)

    def _newest(self) -> list[tuple[JobView, LocalJob]]:
        """Return the newest jobs."""
        self._jobs.look()
        folders = ((view, JobFolder(os.path.join(self._runs, view.id))) for view in self._jobs.rows()[:_LOOKED_AT])
        return [(view, LocalJob(folder, self._parts)) for view, folder in folders]

    def _view(self, job: LocalJob) -> JobView:
        """Return a job, or the trial that its name means, as a row."""
        view, trial = self._row(job), self._trial(job)
        return view if trial is None else trial_view(view, job, trial)

    def _row(self, job: LocalJob) -> JobView:
        found = [row for row in self._jobs.rows() if row.id == job.folder.attempt]
        if not found:
            raise NotFound(f"job {job.folder.attempt} was deleted")
        return self._jobs.detailed(found)[0]

    def _trial(self, job: LocalJob) -> Trial | None:
        """Return the trial that a name means; None: the whole job."""
        trials = trials_of_job(job.folder) if job.stage else []
        return trial_numbered(trials, job.stage.partition("/")[0], job.ref) if is_sweep(trials) else None

    def _nodes_of(self, job: LocalJob) -> frozenset[str] | None:
        """Return the nodes of the trial that a name means; None: all."""
        trial = self._trial(job)
        return None if trial is None else frozenset(trial.nodes.nodes)

    def _curve_files(self, job: LocalJob) -> dict[str, list[str]]:
        """Return metrics files by stage, of results that were known also those of the run that made them."""
        meant = self._nodes_of(job)
        files = curve_files(job.folder.metrics_folder)
        known = JobFacts(job.folder, self._parts.store).known_curve_files()
        found = {**files, **{stage: paths for stage, paths in known.items() if stage not in files}}
        return {stage: paths for stage, paths in found.items() if meant is None or stage.partition("[")[0] in meant}


def _check_attempt(ref: str, attempt: int | None) -> None:
    if attempt not in (None, 1):
        raise NotFound(f"job {ref!r} has no attempt {attempt}", hint="each run of this machine is a job of its own")


def _retried(story: RunHistory) -> dict[int, float]:
    """Return when the last attempt of the stages that were tried again began."""
    return {node.attempts: node.began_s for node in story.nodes.values() if node.attempts > 1 and node.began_s}


def _peaks(story: RunHistory) -> dict[str, int]:
    """Return the largest memory that stages of a run took, as far as it was measured."""
    ram = [node.peak_rss_bytes for node in story.nodes.values() if node.peak_rss_bytes is not None]
    device = [node.peak_gpu_bytes for node in story.nodes.values() if node.peak_gpu_bytes is not None]
    found = {"peak_bytes": max(ram, default=None), "peak_gpu_bytes": max(device, default=None)}
    return {name: value for name, value in found.items() if value is not None}


def _verdict(view: JobView, story: RunHistory, machine: str, meant: frozenset[str] | None) -> str:
    nodes = [node for name, node in story.nodes.items() if meant is None or name.partition("[")[0] in meant]
    endings = [node.ending for node in nodes]
    if view.state == JobState.RUNNING:
        waits = next((node.waits_for for node in nodes if node.waits_for), "")
        return f"waits for {waits}" if waits else f"runs on {machine}"
    done = f"{counted(endings.count('ran'), 'stage')} ran, {counted(endings.count('hit'), 'result')} known"
    return f"{view.state}: {view.why}" if view.why else f"{view.state}: {done}"


def _code_of(folder: JobFolder) -> dict[str, str]:
    """Return the files of a run's program with their digests, or what its recipe records of its code."""
    code = read_config(folder).get("code") or folder.spec().code
    return (
        {str(name): str(digest).removeprefix(_SHA256) for name, digest in code.items()}
        if isinstance(code, dict)
        else {}
    )


def _files(top: str) -> list[FileView]:
    """Return the files of a folder, without hidden ones; of very many the first."""
    found: list[FileView] = []
    for path, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            full = os.path.join(path, name)
            if name.startswith(".") or os.path.islink(full) or not os.path.isfile(full):
                continue
            if len(found) >= _MOST_FILES:
                return found
            found.append(FileView(path=os.path.relpath(full, top), size_bytes=os.path.getsize(full)))
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _typed_value(one: Override) -> str:
    return one.text.partition("=")[2]
