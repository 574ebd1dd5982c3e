"""A job of this machine: its logs, its end, its results, and why its stages ran or did not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from stoker.api.job import (
    Job,
    JobLogReader,
    JobReasons,
    JobStop,
    LocalJobView,
    StageLogLine,
    StoredReceipt,
    StoredResult,
    StoredResults,
    job_story,
    nodes_named,
    trial_ends,
)
from stoker.core.errors import InvalidTransition, NotFound, StokerError, Usage
from stoker.core.job import JobSpec, JobState
from stoker.host.durable import remove_tree
from stoker.jobs.job_folder import Attempt, JobFolder
from stoker.jobs.trials import Trial, TrialEnd, is_sweep, read_trials, trial_numbered, trials_of_job

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.engine.preview import NodeForecast
    from stoker.jobs.comparison import JobFacts, LookedAt, TrialFacts
    from stoker.jobs.job_history import RunHistory
    from stoker.jobs.trial_settings import Layers

_LOOK_AGAIN_S = 0.2


class LocalJob(Job):
    """A job that ran, or runs, on this machine."""

    def __init__(self, folder: JobFolder, parts: AppParts, stage: str = "") -> None:
        self.folder = folder
        self.stage = stage
        self._parts = parts

    @cached_property
    def attempt(self) -> Attempt:
        return self.folder.begun()

    @property
    def spec(self) -> JobSpec:
        return self.attempt.spec

    @property
    def ref(self) -> str:
        return self.spec.name

    @property
    def view(self) -> LocalJobView:
        return LocalJobView.of(self.folder)

    def points(self) -> list[LocalJobView]:
        return [self.view]

    def may_run(self) -> bool:
        return self.folder.may_be_running()

    @property
    def result_folder(self) -> str:
        return "/".join(filter(None, (self.spec.name, self.stage)))

    @property
    def is_attempt(self) -> bool:
        """Whether it is an attempt that this machine made for a fleet."""
        return "fleet" in self.attempt.options

    def logs(
        self, stage: str = "", *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[StageLogLine | str]:
        if attempt is not None:
            raise Usage("--attempt is only for fleet jobs", hint="stoker jobs")
        reading = JobLogReader(self.folder, "/".join(filter(None, (self.stage, stage))), self._parts)
        while True:
            is_running = follow and self.folder.state()[0] is JobState.RUNNING
            yield from reading.read_on()
            if not is_running:
                yield from reading.finish()
                return
            self._parts.clock.sleep(_LOOK_AGAIN_S)

    def wait(self, limit_s: float | None, ended: Callable[[LocalJobView], None]) -> int:
        clock = self._parts.clock
        began_s = clock.monotonic_s()
        while self.may_run():
            if limit_s is not None and clock.monotonic_s() >= began_s + limit_s:
                return 1
            clock.sleep(_LOOK_AGAIN_S)
        ended(self.view)
        return 0

    def cancel(
        self,
        *,
        waits: bool = True,
        stopping: Callable[[list[str]], None] = lambda _names: None,
        ended: Callable[[JobStop], None] = lambda _stop: None,
    ) -> list[LocalJobView]:
        """Stop the job, or the trial that `stage` names; nothing of it runs on return, with or without `waits`."""
        view, name = self.view, self.spec.name
        trial = trial_numbered(read_trials(self.folder), self.stage, name) if self.stage else None
        if self.may_run():
            stopping([name if trial is None else f"{name}/{trial.spec.number}  {trial.spec.label}"])
        ended(self._stop() if trial is None else self._stop_trial(trial))
        return [view]

    def _stop(self) -> JobStop:
        from stoker.jobs.stop import stop_job

        done, name = stop_job(self.folder, clock=self._parts.clock), self.spec.name
        body = {"name": name, "attempt": self.folder.attempt, "how": str(done.how), "seconds": done.seconds}
        return JobStop(name=name, state=str(JobState.CANCELLED), seconds=done.seconds, how=done.how, body=body)

    def _stop_trial(self, trial: Trial) -> JobStop:
        from stoker.jobs.stop import stop_trial

        done = stop_trial(self.folder, trial, clock=self._parts.clock)
        name, label = f"{self.spec.name}/{trial.spec.number}", trial.spec.label
        body = {"name": name, "label": label, "attempt": self.folder.attempt}
        return JobStop(
            name=name,
            label=label,
            state=done.state,
            seconds=done.seconds,
            leaves_others=True,
            body={**body, "state": done.state, "seconds": done.seconds},
        )

    def remove(self) -> None:
        name = self.spec.name
        if self.folder.state()[0] is JobState.RUNNING:
            raise InvalidTransition(f"job {name} is running", hint=f"stoker cancel {name}", job=name)
        remove_tree(self.folder.path)

    def facts(self) -> JobFacts:
        from stoker.jobs.comparison import JobFacts

        return JobFacts(self.folder, self._parts.store)

    def gather(self, looked: LookedAt = lambda _done, _total: None) -> tuple[JobFacts, list[TrialFacts]]:
        facts = self.facts()
        return facts, [one for one in facts.trials(looked) if self.stage in ("", str(one.end.trial.spec.number))]

    def ends(self, story: RunHistory, *, is_running: bool) -> list[TrialEnd]:
        """Return the state of each trial by the job's history; none if it is no sweep."""
        trials = trials_of_job(self.folder)
        return trial_ends(trials, story, is_running=is_running) if is_sweep(trials) else []

    def results(self, stage: str = "") -> StoredResults:
        from stoker.jobs.results import parts_of_job

        name, trial = self.spec.name, self.stage
        is_running = self.folder.state()[0] is JobState.RUNNING
        # Read once: a trial that completes meanwhile is listed as without a result, as it is not copied.
        story = job_story(self.folder)
        ends = [] if stage or trial else self.ends(story, is_running=is_running)
        found = parts_of_job(self._parts.store, self.folder, story, stage=stage, trial=trial)
        if not found:
            raise NotFound(f"job {name} has no result", hint=f"stoker jobs show {name}")
        missing = [
            (f"{name}/{end.trial.spec.number}", end.trial.spec.label, end.state)
            for end in ends
            if end.state != JobState.COMPLETED
        ]
        return StoredResults(
            found=[StoredResult(name=name, fetch=lambda _heed: found)],
            missing=missing,
            total=len(ends),
        )

    def receipts(self) -> list[StoredReceipt]:
        from stoker.jobs.job_receipt import read_job_receipt

        name, number = self.spec.shown, None
        if self.stage:
            trial = trial_numbered(read_trials(self.folder), self.stage, self.spec.name)
            name, number = trial.spec.shown, trial.spec.number
        return [StoredReceipt(name=name, data=read_job_receipt(self.folder, number))]

    def explain(self, point: str = "") -> JobReasons:
        """Return how the stages went, or those that `stage` names, and what a run of the same job would do now."""
        story = job_story(self.folder)
        nodes = list(story.nodes.values())
        if self.stage:
            nodes = nodes_named(story.nodes, self.stage, self.spec.name, trials_of_job(self.folder))
        forecasts, trouble = self._forecasts()
        return JobReasons(view=self.view, stages=nodes, forecasts=forecasts, trouble=trouble)

    def _forecasts(self) -> tuple[dict[str, NodeForecast], str]:
        """Return what a run of the same job would do now, by node, or why that can't be said."""
        from stoker.engine.preview import preview
        from stoker.jobs.request import JobRequest
        from stoker.jobs.rerun import go_on

        parts = self._parts
        try:
            order = parts.builder().build(JobRequest(earlier=self.folder))
            kept = go_on(order, parts.cache, os.path.join(parts.settings.state, "sweeps")).kept
            seen = preview(order.plan, cache=parts.cache, history=parts.history, kept=kept)
        except StokerError as error:
            return {}, str(error)
        return {forecast.node: forecast for forecast in seen.forecasts}, ""

    def layers_of(self, key: str) -> tuple[Layers, list[str], set[str]]:
        from stoker.jobs.trial_settings import read_config, value_layers

        trials = trials_of_job(self.folder)
        if self.stage:
            trials = [trial_numbered(trials, self.stage.partition("/")[0], self.spec.name)]
        return value_layers(key, self.spec, read_config(self.folder), trials)
