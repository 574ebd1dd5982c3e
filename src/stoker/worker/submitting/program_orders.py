"""Orders for jobs that are programs: words filled, files digested, data found.

What such a job is: its words and parameters, what its data holds, and the project that it belongs to; nobody knows what
it reads beside that, and the same words elsewhere may be another program's. Its own code goes along as a tree, and is
recorded, no part of the id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.config.by_platform import ANY, is_version
from stoker.config.label import label_of
from stoker.config.manifest import CodePlace, JobEntry
from stoker.config.sweep import Point, points
from stoker.host.interpreter import is_bare_python
from stoker.model.errors import ArgsFaults, Faults, StokerError
from stoker.model.faults import Fault
from stoker.model.frozen import frozen
from stoker.model.ids import job_id
from stoker.model.requirements import Wish
from stoker.model.resources import Needs
from stoker.plan.recipe import Recipe
from stoker.wire.identity import DATA, PROJECT, RANKS
from stoker.wire.orders import EnvironmentChoice, JobOrder, RequirementsBody, job_order
from stoker.worker.ordering import Desk
from stoker.worker.program_files import ProgramFiles
from stoker.worker.submitting.checking import Checked
from stoker.worker.submitting.data_inputs import DataInput, DataInputs
from stoker.worker.submitting.environment_choices import Chosen, EnvironmentChoices
from stoker.worker.submitting.program_alike import ProgramAlike
from stoker.worker.submitting.recipe_orders import Note, Shared, with_all
from stoker.worker.submitting.requiring import required_of_entry
from stoker.worker.submitting.submitted_code import SubmittedCode

FOUND_ANYWHERE: Mapping[str, Any] = {"code": {}, "machine_gpus": 0, "machine_cpus": 1}
"""Arguments that the worker finds out for its own machine."""


@frozen
class _Program:
    """What all points of one job have in common."""

    recipe: Recipe
    settings: Mapping[str, Any]
    data: Mapping[str, str]
    """Digests by variable."""
    environment: tuple[EnvironmentChoice, ...]
    project: str
    split_recipe: Any
    train_hosts: tuple[str, ...]


class ProgramOrders:
    """Makes them."""

    def __init__(self, desk: Desk, code: SubmittedCode, inputs: DataInputs) -> None:
        self._desk = desk
        self._inputs = inputs
        self._code = code
        self._files: dict[str, ProgramFiles] = {}
        self._notes: dict[str, None] = {}
        # Ten thousand jobs name the same few files: each is looked at once, and the same for all of them.
        self._digests: dict[str, str] = {}
        self._scripts: dict[str, bool] = {}
        self._environments = EnvironmentChoices(desk.folder)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know, each once."""
        return tuple(self._notes)

    def of(self, checked: Checked, shared: Shared, note: Note) -> Iterator[JobOrder]:
        """Give the orders of a manifest's job; what is wrong with its files is noted."""
        entry, program = checked.entry, checked.program
        if program is None:
            return
        data = self._data(entry, note)
        chosen = self._look_at(entry, note)
        requirements = required_of_entry(entry, checked.job.given.values, Needs())
        settings = _settings(entry, {name: one.body.path for name, one in data.items()}, requirements)
        code = self._code_of(entry, chosen, note)
        if code is None:
            return
        shared = {**shared, **code, **_read_by(data), "requirements": requirements, "mode": checked.mode}
        making = _Program(
            recipe=checked.form.recipe,
            settings=settings,
            data={name: one.digest for name, one in data.items()},
            environment=chosen.choices,
            project=shared["project"],
            split_recipe=entry.split_recipe,
            train_hosts=entry.train_hosts,
        )
        files = self._files_of(program.folder)
        alike: ProgramAlike | None = None
        try:
            for number, point in enumerate(points(checked.sweep) if checked.sweep is not None else (Point(()),), 1):
                varied = {path: choice.value for path, choice in point.choices}
                texts = {path: choice.text for path, choice in point.choices}
                place = {"name": entry.name, "number": 0, "label": "", "point": {}}
                if varied:
                    place = {"name": entry.name, "number": number, "label": label_of(varied.items()), "point": varied}
                order = alike.order(varied, texts, place) if alike is not None else None
                if order is None:
                    params = with_all(checked.values, varied)
                    args = program.args(settings, params, texts, files)
                    order = self._order(making, args, {**shared, **place})
                    if alike is None and varied:
                        alike = ProgramAlike(
                            order,
                            making.recipe,
                            program,
                            checked.values,
                            files,
                            split_recipe=entry.split_recipe,
                            train_hosts=entry.train_hosts,
                        )
                yield order
        except Faults as error:
            for fault in error.faults:
                note(Fault(fault.where.removeprefix("."), fault.message, fault.hint))
        except StokerError as error:
            note(Fault("", error.message, error.hint))

    def look_at(self, checked: Checked, note: Note) -> None:
        """Note what is wrong with the files of a job that can't be for other reasons."""
        self._data(checked.entry, note)
        self._look_at(checked.entry, note)

    def _order(self, making: _Program, args: Mapping[str, Any], shared: Shared) -> JobOrder:
        recipe = making.recipe
        values, faults = recipe.args.check({**args, **FOUND_ANYWHERE, "folder": making.project}, owner="")
        if faults:
            raise ArgsFaults(str(faults[0]), faults=tuple(faults))
        code = {name: self._digest(path) for name, path in args["code"].items()}
        code |= {one.path: one.digest for one in making.environment if one.path and one.kind != "python"}
        if making.environment:
            shared = {**shared, "environment": making.environment}
        identity = program_identity(recipe, values, making.data, self._digest)
        return job_order(
            id=job_id(
                recipe=recipe.name,
                schema_version=recipe.version,
                args=identity,
                mode=shared["mode"],
                split_recipe=making.split_recipe,
                train_hosts=making.train_hosts,
            ),
            recipe=recipe.name,
            schema_version=recipe.version,
            args=values,
            identity=identity,
            code=code,
            **shared,
        )

    def _files_of(self, folder: str) -> ProgramFiles:
        if folder not in self._files:
            self._files[folder] = ProgramFiles(folder)
        return self._files[folder]

    def _code_of(self, entry: JobEntry, chosen: Chosen, note: Note) -> dict[str, Any] | None:
        """Give the fields that say which code a job is; nothing after noting what is wrong with it."""
        try:
            is_in_place = entry.code is CodePlace.IN_PLACE
            return self._code.of(include=entry.include, needed=chosen.files, is_in_place=is_in_place)
        except Faults as error:
            for fault in error.faults:
                note(Fault("", str(fault), fault.hint or error.hint))
        except StokerError as error:
            note(Fault("include" if error.message.startswith("include:") else "", error.message, error.hint))
        return None

    def _data(self, entry: JobEntry, note: Note) -> dict[str, DataInput]:
        """Give each thing that a job reads, by its variable."""
        found = {}
        for name, text in entry.data.items():
            try:
                found[name] = self._inputs.of(f"env:{name}", text)
            except StokerError as error:
                note(Fault(f"data.{name}", error.message, error.hint))
        return found

    def _look_at(self, entry: JobEntry, note: Note) -> Chosen:
        chosen = self._environments.of(entry.env, {} if own_python(entry) else entry.python)
        for fault in chosen.faults:
            note(fault)
        first, *rest = entry.command
        script = next((word for word in rest if not word.startswith("-")), "")
        is_script = is_bare_python(os.path.basename(first)) and script.endswith(".py") and "{" not in script
        if is_script and not self._is_there(script):
            self._notes[f"{entry.name}: there is no {script} in {self._desk.folder}"] = None
        return chosen

    def _is_there(self, script: str) -> bool:
        if script not in self._scripts:
            self._scripts[script] = os.path.exists(self._desk.from_here(script))
        return self._scripts[script]

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            self._digests[path] = self._desk.digest(path)
        return self._digests[path]


def program_identity(
    recipe: Recipe, values: Mapping[str, Any], data: Mapping[str, str], digest_of: Callable[[str], str]
) -> dict[str, Any]:
    """Give what of a program's arguments belongs to its id; their `folder` is the project's identity."""
    identity = recipe.args.identity(values, digest_of)
    if data:
        identity[DATA] = dict(data)
    if values.get(RANKS) is not None:
        # What two ranks make is not what four would; and whoever said nothing of ranks keeps the id it always had.
        identity[RANKS] = values[RANKS]
    return identity if values["inputs"] else {**identity, PROJECT: values["folder"]}


def _read_by(data: Mapping[str, DataInput]) -> dict[str, Any]:
    return {"inputs": tuple(one.body for one in data.values())} if data else {}


def own_python(entry: JobEntry) -> str:
    """Give the interpreter that a job names for all machines alike; empty if it has choices, or none."""
    said = entry.python.get(ANY, "") if len(entry.python) == 1 else ""
    return "" if is_version(said) else said


def _settings(entry: JobEntry, data: Mapping[str, str], requirements: RequirementsBody) -> dict[str, Any]:
    """Give a manifest's words as the recipe `command` takes them."""
    settings: dict[str, Any] = {"outputs": entry.outputs, "python": own_python(entry)}
    if entry.ranks is not None:
        settings["ranks"] = entry.ranks
    # What has no path here gets one on each machine.
    if paths := {name: path for name, path in data.items() if path}:
        settings["data"] = paths
    if requirements.wish is Wish.NEVER:
        settings["gpus"] = 0
    elif requirements.wish is Wish.REQUIRE:
        settings["gpus"] = requirements.device_count
    if requirements.vram_bytes and requirements.wish is not Wish.NEVER:
        settings |= {"vram": f"{requirements.vram_bytes}B", "shares": requirements.may_share}
    return settings
