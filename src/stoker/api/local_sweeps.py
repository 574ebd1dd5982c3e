"""Sweeps, comparisons, adapters and results of this machine's jobs, as a coordinator shows those of its fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.api.local_job import LocalJob
from stoker.core.clock import Clock
from stoker.core.errors import NotFound, StokerError, TooLarge
from stoker.core.job import JobState
from stoker.core.text import point_name
from stoker.jobs.comparison import TrialFacts
from stoker.jobs.job_diff import side_of
from stoker.jobs.job_history import RunHistory
from stoker.jobs.result_origins import made_from_records
from stoker.jobs.trial_bests import TrialBests
from stoker.jobs.trials import Trial, is_sweep, read_trials, trial_numbered
from stoker.protocol.screen_messages import (
    AdapterBoard,
    ComparisonView,
    ModelPage,
    ModelRow,
    ResultCard,
    SweepList,
    SweepSummary,
    SweepView,
)
from stoker.protocol.view_messages import JobView
from stoker.store.local_store import LocalStore
from stoker.views import model_views
from stoker.views.model_views import AdapterFacts, finite_metrics, inputs_of
from stoker.views.result_card import card_path, card_view
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
    trial_counts,
    trial_state,
)

_MOST_ADAPTERS = 1000
_TRIALS_OF_ONE = 100
LONGEST_S = 1.5
"""For the curves of one answer; the others are read for the next one."""


def list_sweeps(jobs: Iterable[tuple[JobView, LocalJob]], limit: int) -> SweepList:
    """Return the jobs that are sweeps, of each name the newest; `jobs` come newest first."""
    found: dict[str, SweepSummary] = {}
    for view, job in jobs:
        if len(found) >= limit:
            break
        if view.name in found or not is_sweep(read_trials(job.folder)):
            continue
        facts, trials = job.gather()
        found[view.name] = SweepSummary(
            name=view.name,
            recipe=view.recipe,
            submitter=view.submitter,
            jobs=trial_counts([_trial(one, facts.story) for one in trials]),
            total=len(trials),
            submitted_s=view.submitted_s,
            changed_s=view.changed_s,
        )
    return SweepList(sweeps=tuple(found.values()), total=len(found))


def local_sweep(job: LocalJob, metric: str, better: str, bests: TrialBests, clock: Clock) -> SweepView:
    """Return the trials of a job of this machine. Raises `NotFound` if it is no sweep."""
    facts, gathered = job.gather()
    if not is_sweep([one.end.trial for one in gathered]):
        raise NotFound(f"{job.ref!r} is no sweep", hint=f"stoker jobs show {job.ref}")
    sweep = SweepFacts(
        name=job.ref,
        recipe=facts.spec.recipe,
        trials=[_trial(one, facts.story) for one in gathered],
        values={name: setting.value for name, setting in facts.settings().items()},
    )
    measure = measure_of(sweep, metric, better)
    shown = best_trials(sweep, measure)
    if measure is None:
        return sweep_view(sweep, measure, shown, {})
    until_s = clock.monotonic_s() + LONGEST_S
    files = {trial.n: trial.curve_files for trial in shown}
    found, unread = bests.find(files, measure.metric, measure.direction, is_late=lambda: clock.monotonic_s() > until_s)
    return sweep_view(sweep, measure, shown, found, unread)


def local_comparison(
    jobs: Sequence[tuple[JobView, LocalJob]], metric: str, better: str, bests: TrialBests
) -> ComparisonView:
    """Return jobs of this machine, or trials of them, side by side, each at its best step of a metric."""
    if len(jobs) > MOST_SIDES:
        raise TooLarge(f"{len(jobs)} jobs side by side are too many", hint=f"at most {MOST_SIDES}")
    views, sides = [], []
    for view, job in jobs:
        facts = job.facts()
        gathered = facts.trials()
        trial = trial_numbered(facts.wanted(), job.stage, job.ref) if job.stage else None
        sides.append(side_of(facts, trial, label=job.result_folder, trials=gathered))
        number = trial.spec.number if trial is not None else 0
        own = next((one for one in gathered if one.end.trial.spec.number == number), None)
        views.append(view if own is None else _as_trial(view, job.ref, own, facts.story))
    measure = comparison_measure(sides, metric, direction_of(better))
    return comparison_view(views, sides, measure, find_bests(sides, measure, bests))


def trial_view(view: JobView, job: LocalJob, trial: Trial) -> JobView:
    """Return a trial of a job of this machine as a job of its own, as a fleet's are; its id is `ID/NUMBER`."""
    facts, gathered = job.gather()
    own = next(one for one in gathered if one.end.trial.spec.number == trial.spec.number)
    return _as_trial(view, job.ref, own, facts.story)


def _as_trial(view: JobView, name: str, one: TrialFacts, story: RunHistory) -> JobView:
    trial, end = _trial(one, story), one.end
    state = trial_state(trial)
    began = [node.began_s for key in end.trial.nodes.nodes if (node := story.nodes.get(key)) and node.began_s]
    started_s = min(began) if began else None
    is_over = state not in (JobState.PENDING, JobState.RUNNING)
    return view.model_copy(
        update={
            "id": f"{view.id}/{trial.n}",
            "name": point_name(name, trial.n),
            "label": trial.label,
            "state": state,
            "started_s": started_s,
            "ended_s": started_s + (trial.seconds or 0.0) if is_over and started_s is not None else None,
            "step": trial.step,
            "of": trial.of,
            "metrics": finite_metrics(trial.metrics),
            "says": "",
            "why": f"{end.cause}: {end.message}" if end.cause and end.message else end.message,
        }
    )


def _trial(one: TrialFacts, story: RunHistory) -> SweepTrialFacts:
    end = one.end
    reporting = [story.nodes[name] for name in end.trial.nodes.nodes if name in story.nodes]
    last = next((node for node in reversed(reporting) if type(node.step) is int), None)
    return SweepTrialFacts(
        n=end.trial.spec.number,
        state=end.state,
        label=end.trial.spec.label,
        point=end.trial.spec.point,
        metrics=end.metrics,
        curve_files=one.curve_files,
        measured_on=end.trial.measured_on,
        step=last.step if last is not None else None,
        of=last.of if last is not None and type(last.of) is int else None,
        seconds=end.seconds,
    )


def local_adapters(jobs: Iterable[tuple[JobView, LocalJob]]) -> AdapterBoard:
    """Return the adapters that jobs of this machine train, by base; `jobs` come newest first."""
    found: list[AdapterFacts] = []
    for view, job in jobs:
        if view.recipe == model_views.RECIPE and len(found) < _MOST_ADAPTERS:
            facts, trials = job.gather()
            found += [_adapter(view, one, facts.story) for one in trials if one.end.state in model_views.STATES]
    return model_views.adapter_board(found, model_views.cut_note(len(found), _MOST_ADAPTERS))


def _adapter(view: JobView, one: TrialFacts, story: RunHistory) -> AdapterFacts:
    trial = _trial(one, story)
    return AdapterFacts(
        job=point_name(view.name, trial.n) if trial.label else view.name,
        label=trial.label,
        state=trial.state,
        args=one.end.trial.spec.args,
        identity={},
        metrics=trial.metrics,
        step=trial.step,
        result=one.end.digest,
    )


def local_models(
    jobs: Sequence[tuple[JobView, LocalJob]], after: str, limit: int, *, digest: str = "", job_id: str = ""
) -> ModelPage:
    """Return the results of jobs of this machine with what they were made from; a page may have more than `limit`."""
    begin = next((at for at, (view, _) in enumerate(jobs, 1) if view.id == after), 0) if after else 0
    found: list[ModelRow] = []
    for view, job in jobs[begin:]:
        if job_id not in ("", view.id):
            continue
        # Also of one that failed or runs: trials of it may have completed.
        found += [row for row in _models(view, job) if row.digest.startswith(digest)]
        if len(found) >= limit:
            is_last = view.id == jobs[-1][0].id
            return ModelPage(models=tuple(found), next="" if is_last else view.id)
    return ModelPage(models=tuple(found))


def _models(view: JobView, job: LocalJob) -> list[ModelRow]:
    try:
        facts, trials = job.gather()
    except NotFound:
        return []
    rows = []
    for one in [one for one in trials if one.end.state == JobState.COMPLETED][:_TRIALS_OF_ONE]:
        records = facts.records(one.end.trial)
        final = records.get(one.end.trial.nodes.final)
        if final is None:
            continue
        origins = made_from_records(records.values())
        rows.append(
            ModelRow(
                digest=final.digest,
                job=view.id,
                name=point_name(view.name, one.end.trial.spec.number) if one.end.trial.spec.label else view.name,
                label=one.end.trial.spec.label,
                recipe=view.recipe,
                machine=view.machine,
                submitter=view.submitter,
                attempt=1,
                made_s=view.ended_s or view.submitted_s,
                size_bytes=sum(entry.size_bytes for entry in final.tree.entries),
                is_pruned=final.is_tombstone,
                metrics=finite_metrics(one.end.metrics),
                data=inputs_of((name, ", ".join(sorted(values))) for name, values in origins.data.items()),
                code=inputs_of((name, ", ".join(sorted(values))) for name, values in origins.code.items()),
                commit=facts.spec.commit,
            )
        )
    return rows


def local_card(job: LocalJob, store: LocalStore) -> ResultCard:
    """Return the model card of a job's result, or of one trial: of its parts the first that has one."""
    try:
        records = [part.record for one in job.results().found for part in one.fetch(lambda _size: None)]
        for record in records:
            if path := card_path(entry.path for entry in record.tree.entries if entry.link_to is None):
                return card_view(job.ref, record.digest, path, store.read_bytes(record, path))
    except StokerError as error:
        return ResultCard(job=job.ref, note=error.message)
    return card_view(job.ref, records[0].digest if records else "")
