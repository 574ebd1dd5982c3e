"""A job of this machine: its logs, its end, its results, and why its stages ran or did not."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stoker.api.job import Job, StageLogLine, job_facts, job_story, trial_ends
from stoker.api.job_logs import JobLogReader
from stoker.core.errors import NotFound, StokerError
from stoker.core.job import JobSpec, JobState
from stoker.core.jsontext import dumps
from stoker.jobs.job_folder import Attempt, JobFolder
from stoker.jobs.trials import Trial, TrialEnd, is_sweep, trial_numbered, trials_of_job

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.engine.preview import NodeForecast
    from stoker.jobs.comparison import JobFacts, TrialFacts
    from stoker.jobs.job_history import RunHistory
    from stoker.jobs.trial_settings import JobSetting
    from stoker.store.results import ResultPart

_LOOK_AGAIN_S = 0.2
Layers = list[tuple[str, list[tuple[str, Any]]]]
"""Of each value of a configuration: its path, and the layers behind it with what each says, the winner last."""


class LocalJob(Job):
    """A job that ran, or runs, on this machine."""

    def __init__(self, folder: JobFolder, parts: AppParts) -> None:
        self.folder = folder
        self._parts = parts

    @cached_property
    def attempt(self) -> Attempt:
        return self.folder.begun()

    @property
    def spec(self) -> JobSpec:
        return self.attempt.spec

    @property
    def is_attempt(self) -> bool:
        """Whether it is an attempt that this machine made for a fleet."""
        return "fleet" in self.attempt.options

    def logs(
        self, stage: str = "", *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[StageLogLine | str]:
        """Return what its stages printed; `attempt` is for jobs of a fleet: here each run is a job of its own."""
        reading = JobLogReader(self.folder, stage, self._parts)
        while True:
            is_running = follow and self.folder.state()[0] is JobState.RUNNING
            yield from reading.read_on()
            if not is_running:
                yield from reading.finish()
                return
            self._parts.clock.sleep(_LOOK_AGAIN_S)

    def wait(self, limit_s: float | None, ended: Callable[[dict[str, Any]], None]) -> int:
        """Wait until it has ended, call `ended` with its facts, and return 0; 1 if the limit came first."""
        clock = self._parts.clock
        began_s = clock.monotonic_s()
        while self.folder.may_be_running():
            if limit_s is not None and clock.monotonic_s() >= began_s + limit_s:
                return 1
            clock.sleep(_LOOK_AGAIN_S)
        ended(job_facts(self.folder))
        return 0

    def gather(self) -> tuple[JobFacts, list[TrialFacts]]:
        from stoker.jobs.comparison import JobFacts

        facts = JobFacts(self.folder, self._parts.store)
        return facts, facts.trials()

    def ends(self, story: RunHistory, *, is_running: bool) -> list[TrialEnd]:
        """Return the state of each trial by the job's history; none if it is no sweep."""
        trials = trials_of_job(self.folder)
        return trial_ends(trials, story, is_running=is_running) if is_sweep(trials) else []

    def results(self, *, stage: str = "", trial: str = "") -> tuple[list[ResultPart], list[TrialEnd]]:
        """Return what the job made, or one of its stages or trials, and the state of every trial where all are meant.

        Raises `NotFound` if there is nothing.
        """
        from stoker.jobs.results import parts_of_job

        is_running = self.folder.state()[0] is JobState.RUNNING
        # Read once: a trial that completes meanwhile is listed as without a result, as it is not copied.
        story = job_story(self.folder)
        ends = [] if stage or trial else self.ends(story, is_running=is_running)
        found = parts_of_job(self._parts.store, self.folder, story, stage=stage, trial=trial)
        if not found:
            raise NotFound(f"job {self.spec.name} has no result", hint=f"stoker jobs show {self.spec.name}")
        return found, ends

    def forecasts(self) -> tuple[dict[str, NodeForecast], str]:
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

    def layers_of(self, key: str, trial: str = "") -> tuple[Layers, list[str], set[str]]:
        """Return the layers behind the values of a key and what trials chose, all known paths, and which of them vary.

        `trial` names one trial; else all count.
        """
        from stoker.jobs.secret_mask import read_config
        from stoker.jobs.trial_settings import settings_of

        config, spec, trials = read_config(self.folder), self.spec, trials_of_job(self.folder)
        origins, swept_by = (one if isinstance(one := config.get(name), dict) else {} for name in ("origins", "sweep"))
        if trial:
            trials = [trial_numbered(trials, trial.partition("/")[0], spec.name)]
        swept = {path for one in trials for path in one.spec.point}
        chosen = [(one, settings_of(spec, config, one)) for one in trials]
        base = settings_of(spec, config)
        varying = set(swept) if len(trials) > 1 else set()
        layers: Layers = []
        added = (
            path for _, settings in chosen for path in settings if path != "program" and not _is_in_one(path, origins)
        )
        known = dict.fromkeys([*origins, *added])
        for path in (one for one in known if one == key or one.startswith(f"{key}.")):
            stack = [(str(one.get("from")), one.get("value")) for one in origins.get(path, ())]
            here = [(one, settings[path]) for one, settings in chosen if path in settings]
            if path in swept:
                stack += [
                    (_by_trial(one, swept_by.get(path, "")), one.spec.point[path])
                    for one, _ in here
                    if path in one.spec.point
                ]
            elif here and (len(here) < len(chosen) or len({dumps(setting.value) for _, setting in here}) > 1):
                varying.add(path)
                stack += [(_by_trial(one, setting.origin), setting.value) for one, setting in here]
            elif here:
                stack = _with_own(stack, here[0][1])
            elif path in base:
                # Another trial has it, from the option of a group that this one does not choose.
                continue
            layers.append((path, stack))
        return layers, [one for one in known if one != key], varying


def _with_own(stack: list[tuple[str, Any]], own: JobSetting) -> list[tuple[str, Any]]:
    """End a stack with the value that was used: what references led to, or what the trial chose instead."""
    from stoker.config.values import refers

    if not stack:
        return [(own.origin, own.value)]
    where, said = stack[-1]
    if own.origin != where:
        return [*stack[:-1], (own.origin, own.value)]
    return [*stack, (f"{where}, resolved", own.value)] if refers(said) else stack


def _is_in_one(path: str, origins: Container[str]) -> bool:
    """Return True if a path is one of these, or is below one that is a map."""
    steps = path.split(".")
    return any(".".join(steps[:count]) in origins for count in range(1, len(steps) + 1))


def _by_trial(trial: Trial, origin: str) -> str:
    what = f"trial {trial.spec.number} ({trial.spec.label})"
    return f"{origin}, {what}" if origin else what
