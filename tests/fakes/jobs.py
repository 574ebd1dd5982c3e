"""Attempts and trials for tests, from their own fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.job import JobSpec, TrialNodes
from stoker.jobs.job_folder import Attempt
from stoker.jobs.trials import Trial


def made_attempt(
    *,
    attempt: str,
    job_id: str,
    name: str,
    recipe: str,
    args: dict[str, Any],
    folder: str,
    started_s: float,
    stoker: str,
    options: dict[str, Any] | None = None,
) -> Attempt:
    spec = JobSpec(id=job_id, name=name, recipe=recipe, args=args, folder=folder)
    return Attempt(id=attempt, spec=spec, started_s=started_s, stoker=stoker, options=options or {})


def made_trial(
    *,
    number: int,
    label: str,
    point: Mapping[str, Any],
    args: dict[str, Any],
    job_id: str,
    nodes: TrialNodes,
    measured_on: Mapping[str, Any] | None = None,
) -> Trial:
    spec = JobSpec(id=job_id, name="job", number=number, label=label, point=dict(point), recipe="test/job", args=args)
    return Trial(spec=spec, nodes=nodes, measured_on=measured_on or {})
