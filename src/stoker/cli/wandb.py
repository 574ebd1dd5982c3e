"""`stoker run --wandb`: what wandb gets of each trial of a job."""

from __future__ import annotations

import os
import sys

import stoker
from stoker.cli.context import CommandContext
from stoker.engine.metrics.wandb import WandbRun
from stoker.host.interpreter import find_python
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import folders_of
from stoker.jobs.execution_events import TrialTracker
from stoker.jobs.job_folder import Attempt, JobFolder
from stoker.jobs.trials import Trial

_SCRIPT = os.path.join(os.path.dirname(stoker.__file__), "trainer", "stoker_wandb.py")


def tracking_of(call: CommandContext, build: JobBuild, attempt: Attempt, project: str) -> TrialTracker:
    """Return what passes an build's metrics on to a project at wandb."""
    settings, spec = call.parts.settings, build.spec
    wanted = str(build.trials[0].spec.args.get("python", "")) if build.program is not None and build.trials else ""
    python = find_python(wanted, folder=settings.folder, environment=settings.environment, own_prefix=sys.prefix)

    def run_of(trial: Trial) -> WandbRun:
        return WandbRun(
            python=python.path,
            folder=settings.folder,
            env=settings.environment,
            project=project,
            name=f"{spec.name}/{trial.spec.label}" if trial.spec.label else spec.name,
            group=spec.name,
            mode=settings.environment.get("WANDB_MODE", "offline"),
            config=dict(trial.spec.point),
        )

    folder = JobFolder(os.path.join(settings.runs, attempt.id))
    return TrialTracker(build.trials, folders_of(folder, call.parts.tools), run_of=run_of, script=_SCRIPT)
