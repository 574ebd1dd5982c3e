"""What `stoker chat` is told to answer with: adapters and models in folders, of jobs, or by the name of a base."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.job_verbs import fetched
from stoker.core.errors import BadInput, LocalFile, NotFound, StokerError, Usage
from stoker.core.frozen import frozen
from stoker.core.text import BEST, outside
from stoker.jobs.trials import is_sweep, read_trials, trial_numbered
from stoker.store.results import lay_out
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.api.fleet_job import FleetJob
    from stoker.cookbooks.language.bases import TrainableBase
    from stoker.cookbooks.language.chat import BaseChoices
    from stoker.core.job import JobSpec

RESET = "/reset"
"""The line that begins a new conversation."""
_MODEL = "config.json"
_RECIPES = ("language/lora", "language/full", "language/merge")


@frozen
class ChatSource:
    """An adapter or a model that was named, and what its job knows of its base."""

    name: str
    folder: Path
    base: str = ""

    @property
    def is_adapter(self) -> bool:
        return (self.folder / ADAPTER_CONFIG).is_file()


def all_found(call: CommandContext, given: dict[str, Any], scratch: Path) -> list[ChatSource]:
    """Return what the names mean. Raises `Usage` for a whole model beside others, and a name that comes twice."""
    from stoker.cookbooks.language.chat import BASE_NAME

    names = given["names"]
    if given["base"] and BASE_NAME in names:
        hint = f"./{BASE_NAME} for a folder, the id for a job, or leave out --base"
        raise Usage(f"{BASE_NAME} is what --base calls the base alone", hint=hint)
    found = [_found(call, name, given["at"], scratch / str(number)) for number, name in enumerate(names)]
    whole = [one.name for one in found if not one.is_adapter]
    if whole and (len(found) > 1 or given["base"] or given["over"]):
        raise Usage(f"{whole[0]} is a whole model, no adapter over a base", hint=f"stoker chat {whole[0]}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise Usage(f"{twice[0]} is named twice", hint=f"stoker chat {' '.join(dict.fromkeys(names))}")
    return found


def _found(call: CommandContext, name: str, at: str | None, scratch: Path) -> ChatSource:
    """Return what a name means: a folder, the result of a job, laid out in `scratch`, or a base by its name."""
    from stoker.cookbooks.language.checks import find_base

    path = Path(call.path(name))
    if _is_model(path):
        return ChatSource(name=name, folder=path)
    if name.startswith(("./", "../", "/", "~")):
        what = "has neither an adapter nor a model" if path.is_dir() else "does not exist"
        raise LocalFile(f"{name} {what}", hint="a folder with adapter_config.json or config.json", path=str(path))
    try:
        job = call.lookup.job(name, at)
    except NotFound:
        with suppress(StokerError):
            return ChatSource(name=name, folder=find_base(name, use="used").folder)
        raise
    spec = _spec_of(call, job)
    if spec.recipe not in _RECIPES:
        hint = f"use a result of {', '.join(_RECIPES)}, or a folder"
        raise BadInput(f"{name} is a job of {spec.recipe}, not of a language model", hint=hint)
    parts = [part for one in job.results().found for part in fetched(call, one)]
    lay_out(call.parts.store, parts, str(scratch))
    folder = next((one for one in (scratch, *sorted(scratch.iterdir())) if _is_model(one)), None)
    if folder is None:
        raise NotFound(f"{name} has no model among its results", hint=f"stoker jobs show {job.ref}")
    base = str(spec.args.get("base", ""))
    there = os.path.join(spec.folder, os.path.expanduser(base))
    return ChatSource(name=name, folder=folder, base=there if base and os.path.isdir(there) else base)


def _spec_of(call: CommandContext, job: LocalJob | FleetJob) -> JobSpec:
    """Return what runs, or the spec of the trial that is meant. Raises `Usage` if a sweep is."""
    if not isinstance(job, LocalJob):
        points = job.points() if job.is_sweep else ()
        if len(points) > 1:
            raise Usage(f"{job.ref} is a sweep of {len(points):,} trials", hint=f"stoker chat {points[0].name}")
        return job.spec
    trials = read_trials(job.folder)
    if job.stage:
        return trial_numbered(trials, job.stage, job.spec.name).spec
    if is_sweep(trials):
        best = os.path.join(call.parts.settings.out, job.spec.name, BEST)
        named = f"stoker chat {near_path(best, call.parts.settings.folder)}"
        found = named if _is_model(Path(best)) else f"stoker compare {job.ref}"
        hint = f"one or several of them: stoker chat {job.ref}/1; the best: {found}"
        raise Usage(f"{job.ref} is a sweep of {len(trials):,} trials", hint=hint)
    return job.spec


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (ADAPTER_CONFIG, _MODEL))


def settled_choices(call: CommandContext, found: Sequence[ChatSource], base: TrainableBase | None) -> BaseChoices:
    """Return how the base is computed: as in the trainings. Notes where these differ, or the base can't be so.

    Without a base here, it is checked where the answers are made.
    """
    from stoker.cookbooks.language.chat import agreed_choices, choices_over, trained_with

    choices, notes = agreed_choices({one.name: trained_with(one.folder) for one in found})
    if base is not None:
        choices, odd = choices_over(base, choices)
        notes += odd
    for note in notes:
        call.out.note(f"note: {outside(note)}")
    return choices


def named_base(source: ChatSource) -> object:
    """Return what an adapter's files say of its base; anything may stand there."""
    from stoker.cookbooks.language.peft import read_config

    return read_config(source.folder).get("base_model_name_or_path")
