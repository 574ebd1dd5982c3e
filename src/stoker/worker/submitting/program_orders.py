"""Orders for jobs that are programs: words filled, files digested, data found.

What such a job is: its words and parameters, what its data holds, and the folder that it runs in; nobody knows what it
reads beside that, and the same words elsewhere may be another program's. Its own code is recorded, not part of the id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.config.label import label_of
from stoker.config.manifest import JobEntry
from stoker.config.sweep import Point, points
from stoker.host.interpreter import is_bare_python
from stoker.model.errors import ArgsFaults, Fault, Faults, StokerError
from stoker.model.frozen import frozen
from stoker.model.ids import job_id
from stoker.model.requirements import Wish
from stoker.model.resources import Needs
from stoker.plan.recipe import Recipe
from stoker.wire.orders import JobOrder, RequirementsBody, job_order
from stoker.worker.ordering import Desk
from stoker.worker.program_files import ProgramFiles
from stoker.worker.submitting.checking import Checked
from stoker.worker.submitting.recipe_orders import Note, Shared, with_all
from stoker.worker.submitting.requiring import required_of_entry

DATA = "(data)"
"""Under this the digests of a program's data stand in its identity; no argument can be called so."""
FOUND_ANYWHERE: Mapping[str, Any] = {"code": {}, "machine_gpus": 0, "machine_cpus": 1}
"""Arguments that the worker finds out for its own machine."""


@frozen
class _Program:
    """What all points of one job have in common."""

    recipe: Recipe
    settings: Mapping[str, Any]
    data: Mapping[str, str]
    """Digests by variable."""
    env: str
    split_recipe: Any
    train_hosts: tuple[str, ...]


class ProgramOrders:
    """Makes them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._files: dict[str, ProgramFiles] = {}
        self._notes: dict[str, None] = {}
        # Ten thousand jobs name the same few files: each is looked at once, and the same for all of them.
        self._digests: dict[str, str] = {}
        self._scripts: dict[str, bool] = {}

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
        self._look_at(entry, note)
        requirements = required_of_entry(entry, checked.job.given.values, Needs())
        settings = _settings(entry, {name: path for name, (path, _) in data.items()}, requirements)
        shared = {**shared, "requirements": requirements, "mode": checked.mode}
        making = _Program(
            recipe=checked.form.recipe,
            settings=settings,
            data={name: digest for name, (_, digest) in data.items()},
            env=entry.env,
            split_recipe=entry.split_recipe,
            train_hosts=entry.train_hosts,
        )
        files = self._files.get(program.folder)
        if files is None:
            files = self._files[program.folder] = ProgramFiles(program.folder)
        try:
            for number, point in enumerate(points(checked.sweep) if checked.sweep is not None else (Point(()),), 1):
                varied = {path: choice.value for path, choice in point.choices}
                texts = {path: choice.text for path, choice in point.choices}
                args = program.args(settings, with_all(checked.values, varied), texts, files)
                place = {"number": number, "label": label_of(varied.items()), "point": varied} if varied else {}
                yield self._order(making, args, {**shared, **place})
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
        values, faults = recipe.args.check({**args, **FOUND_ANYWHERE}, owner="")
        if faults:
            raise ArgsFaults(str(faults[0]), faults=tuple(faults))
        code = {name: self._digest(path) for name, path in args["code"].items()}
        if making.env:
            code[making.env] = self._digest(self._whole(making.env))
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

    def _data(self, entry: JobEntry, note: Note) -> dict[str, tuple[str, str]]:
        """Give the whole path and the digest of each thing that a job reads."""
        found = {}
        for name, text in entry.data.items():
            path = self._whole(text)
            try:
                found[name] = (path, self._digest(path))
            except StokerError as error:
                message = error.message if os.path.exists(path) else f"there is nothing at {text}"
                note(Fault(f"data.{name}", message, error.hint if os.path.exists(path) else ""))
        return found

    def _look_at(self, entry: JobEntry, note: Note) -> None:
        if entry.env:
            if not os.path.isfile(self._whole(entry.env)):
                note(Fault("env", f"there is no file {entry.env}"))
            self._notes[f"env is written down, and not installed yet: a worker's own python runs {entry.name}"] = None
        first, *rest = entry.command
        script = next((word for word in rest if not word.startswith("-")), "")
        is_script = is_bare_python(os.path.basename(first)) and script.endswith(".py") and "{" not in script
        if is_script and not self._is_there(script):
            self._notes[f"{entry.name}: there is no {script} in {self._desk.folder}"] = None

    def _is_there(self, script: str) -> bool:
        if script not in self._scripts:
            self._scripts[script] = os.path.exists(self._desk.from_here(script))
        return self._scripts[script]

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            self._digests[path] = self._desk.digest(path)
        return self._digests[path]

    def _whole(self, text: str) -> str:
        home = self._desk.environment.get("HOME", "~")
        return self._desk.from_here(text.replace("~", home, 1) if text.startswith("~") else text)


def program_identity(
    recipe: Recipe, values: Mapping[str, Any], data: Mapping[str, str], digest_of: Callable[[str], str]
) -> dict[str, Any]:
    """Give what of a program's arguments belongs to its id."""
    identity = recipe.args.identity(values, digest_of)
    if data:
        identity["env"] = {name: value for name, value in identity["env"].items() if name not in data}
        identity[DATA] = dict(data)
    return identity if values["inputs"] else {**identity, "folder": values["folder"]}


def _settings(entry: JobEntry, data: Mapping[str, str], requirements: RequirementsBody) -> dict[str, Any]:
    """Give a manifest's words as the recipe `command` takes them."""
    settings: dict[str, Any] = {"outputs": entry.outputs, "env": dict(data), "python": entry.python}
    if requirements.wish is Wish.NEVER:
        settings["gpus"] = 0
    elif requirements.wish is Wish.REQUIRE:
        settings["gpus"] = requirements.device_count
    if requirements.vram_bytes and requirements.wish is not Wish.NEVER:
        settings |= {"vram": f"{requirements.vram_bytes}B", "shares": requirements.may_share}
    return settings
