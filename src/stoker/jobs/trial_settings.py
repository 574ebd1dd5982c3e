"""The settings of a job and of each of its trials: values by dotted name, and where each came from.

What a job's configuration says is what holds without its sweep. A trial has its own: what the sweep sets, the whole of
a group's other option, and every value that refers to one of these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.config.values import refers
from stoker.core.frozen import frozen
from stoker.core.job import JobSpec
from stoker.core.jsontext import dumps
from stoker.jobs.program import FOUND, RECIPE, flat
from stoker.jobs.trials import Trial


@frozen
class JobSetting:
    """The value of one parameter and where it came from."""

    value: Any
    origin: str = ""


def settings_of(spec: JobSpec, config: Mapping[str, Any], trial: Trial | None = None) -> dict[str, JobSetting]:
    """Return every parameter by dotted name: as the job has it, or as one of its trials does."""
    values = config.get("values")
    found = {
        path: JobSetting(value=value, origin=winner(config, path)[0])
        for path, value in flat(values if isinstance(values, dict) else spec.args).items()
    }
    if trial is not None:
        found = _of_trial(spec, config, trial, found)
    program = config.get("program")
    if isinstance(program, list):
        found = {"program": JobSetting(value=" ".join(map(str, program))), **found}
    return found


def own_values(recipe: str, trial: Trial) -> dict[str, Any]:
    """Return what a trial was run with, by dotted name; of a program, its settings and its parameters."""
    if recipe != RECIPE:
        return flat(trial.spec.args)
    params = trial.spec.args.get("params")
    settings = {name: value for name, value in trial.spec.args.items() if name not in FOUND}
    return flat({**settings, **(params if isinstance(params, dict) else {})})


def winner(config: Mapping[str, Any], path: str) -> tuple[str, Any]:
    """Return what won among the layers that said something of a path: the place, and the value as it stands there."""
    origins = config.get("origins")
    stack = origins.get(path) if isinstance(origins, dict) else None
    if isinstance(stack, list) and stack and isinstance(stack[-1], dict):
        return str(stack[-1].get("from", "")), stack[-1].get("value")
    return "", None


def is_same_value(value: Any, other: Any) -> bool:
    """Return True if two values are one: 1, 1.0 and true are three."""
    if isinstance(value, str | int | float) and type(value) is type(other):
        return bool(value == other)
    return dumps(value) == dumps(other)


def is_as_typed(spec: JobSpec, value: Any, typed: Any) -> bool:
    """Return True if a value is what was typed, or the whole path of a path that was."""
    if is_same_value(value, typed):
        return True
    both = isinstance(value, str) and isinstance(typed, str)
    return both and os.path.normpath(os.path.join(spec.folder, typed)) == value


def _of_trial(
    spec: JobSpec, config: Mapping[str, Any], trial: Trial, base: Mapping[str, JobSetting]
) -> dict[str, JobSetting]:
    own = own_values(spec.recipe, trial)
    # All that a program has is written down with its trial. Of a recipe, notes are not.
    has_all = spec.recipe == RECIPE and bool(own)
    found = {path: setting for path, setting in base.items() if path in own or not has_all}
    for path, value in own.items():
        known = base.get(path)
        if known is not None and is_as_typed(spec, value, known.value):
            found[path] = JobSetting(value=value, origin=known.origin)
        elif known is not None or has_all:
            found[path] = JobSetting(value=value, origin=_chosen_by(config, trial, path))
    return found | {path: JobSetting(value=value, origin="sweep") for path, value in trial.spec.point.items()}


def _chosen_by(config: Mapping[str, Any], trial: Trial, path: str) -> str:
    """Say where a value came from that is not the job's: a place whose references now lead elsewhere, or a choice."""
    origin, said = winner(config, path)
    over = [one for one in trial.spec.point if path.startswith((f"{one}.", f"{one.rpartition('@')[2]}."))]
    if not over and origin and refers(said):
        return origin
    return ", ".join(f"{one}={trial.spec.point[one]}" for one in over or trial.spec.point) or origin
