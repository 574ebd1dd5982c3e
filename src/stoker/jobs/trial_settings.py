"""The settings of a job and its trials: values by dotted name, where each came from, and which are masked.

A program's variables are shown by name only, because they may be tokens and passwords. The job's folder keeps the
values: without them the job could not run again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from stoker.config.compose import ComposedConfig
from stoker.config.sweep import axes_of
from stoker.config.values import refers
from stoker.core.frozen import frozen
from stoker.core.job import JobSpec
from stoker.core.jsontext import dumps, loads
from stoker.core.text import lazy_pattern
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.program import FOUND, RECIPE, ProgramWords, flat
from stoker.jobs.trials import Trial

# `config.json` of a job's folder: the composed values with their origins; of a program also its words and its code.

CONFIG = "config.json"


def config_paper(composed: ComposedConfig | None, program: ProgramWords | None, code: Mapping[str, str]) -> bytes:
    """Return the file's bytes. `code` is the program's own files → digest."""
    said: dict[str, Any] = {"v": 1}
    if composed is not None:
        axes = axes_of(composed.sweep) if composed.sweep else ()
        said |= composed.record()
        said |= {"identity": composed.identity(), "full": composed.full()}
        said |= {"sweep": {axis.path: str(axis.origin or "") for axis in axes}}
    if program is not None:
        said |= {"program": list(program.argv), "code": dict(code)}
    return dumps(said, indent=1).encode()


def read_config(folder: JobFolder) -> dict[str, Any]:
    """Return the configuration that a job was built from; empty if it had none."""
    try:
        config = loads(folder.paper(CONFIG))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


MASK: Final = "…"
_ENV = "env"
# The origin of an argument contains it as typed, with the value.
_TYPED = lazy_pattern(r"(argument \d+ \((?:\+\+|\+|~)?env(?:\.[^=]*)?=).*\)", re.DOTALL)


def is_secret(recipe: str, path: str) -> bool:
    """Return True if a setting, by its dotted path, may be a secret."""
    return recipe == RECIPE and path.partition(".")[0] == _ENV


def masked(recipe: str, path: str, value: Any) -> Any:
    """Return a value as it may be shown: of a program's variables only the names."""
    if not is_secret(recipe, path):
        return value
    if isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    return MASK if path != _ENV and value is not None else value


def masked_args(recipe: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return a job's arguments as they may be shown."""
    return {name: masked(recipe, name, value) for name, value in args.items()}


def masked_origin(recipe: str, path: str, origin: str) -> str:
    """Return the place of a value without the value that may stand in it."""
    return _TYPED.sub(rf"\1{MASK})", origin) if is_secret(recipe, path) else origin


# The settings of a job and of each of its trials: values by dotted name, and where each came from.
#
# What a job's configuration says is what holds without its sweep. A trial has its own: what the sweep sets, the whole
# of a group's other option, and every value that refers to one of these.


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


# Which layers say something of a value, for `explain NAME KEY` and the screens.

Layers = list[tuple[str, list[tuple[str, Any]]]]
"""Of each value of a configuration: its path, and the layers behind it with what each says, the winner last."""
SUBMITTED = "as submitted"
"""The origin of a fleet job's values: the coordinator has the values, not the files that they came from."""


def value_layers(
    key: str, spec: JobSpec, config: Mapping[str, Any], trials: Sequence[Trial]
) -> tuple[Layers, list[str], set[str]]:
    """Return the layers behind the values of a key (empty: of all), all known paths, and which of them vary."""
    origins, swept_by = (one if isinstance(one := config.get(name), dict) else {} for name in ("origins", "sweep"))
    swept = {path for one in trials for path in one.spec.point}
    chosen = [(one, settings_of(spec, config, one)) for one in trials]
    base = settings_of(spec, config)
    varying = set(swept) if len(trials) > 1 else set()
    layers: Layers = []
    added = (path for _, settings in chosen for path in settings if path != "program" and not _is_in_one(path, origins))
    known = dict.fromkeys([*origins, *added])
    for path in (one for one in known if not key or one == key or one.startswith(f"{key}.")):
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


def shown_layers(spec: JobSpec, config: Mapping[str, Any], trials: Sequence[Trial]) -> Layers:
    """Return the layers behind every value as they may be shown: secrets masked, of a value without one `SUBMITTED`."""
    layers, _, _ = value_layers("", spec, config, trials)
    return [
        (
            path,
            [
                (masked_origin(spec.recipe, path, origin) or SUBMITTED, masked(spec.recipe, path, value))
                for origin, value in stack
            ],
        )
        for path, stack in layers
    ]
