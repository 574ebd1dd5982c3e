"""Orders for jobs that are programs: words filled, files digested, data found.

What such a job is: its words and parameters, what its data holds, and the project that it belongs to; nobody knows what
it reads beside that, and the same words elsewhere may be another program's. Its own code goes along as a tree, and is
recorded, no part of the id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.config.fields import ANY, is_version
from stoker.config.manifest_file import CodePlace, JobEntry
from stoker.config.sweep import SweepPoint, label_of, points
from stoker.config.values import fill_text
from stoker.core.device import Needs
from stoker.core.errors import Diagnostic, InvalidArgs, InvalidInput, StokerError
from stoker.core.frozen import frozen
from stoker.core.job import EnvironmentChoice, JobIds, JobSpec, job_id
from stoker.core.machine import DevicePreference, Requirements
from stoker.engine.program import fill_some
from stoker.engine.recipe import Recipe
from stoker.host.interpreter import is_bare_python
from stoker.jobs.build_context import JobCompiler
from stoker.jobs.manifest_checks import CheckedJob
from stoker.jobs.pack.code_tree import SubmittedCode
from stoker.jobs.pack.data_inputs import DataInput, DataInputs
from stoker.jobs.pack.environment_choices import EnvironmentChoices, JobEnvironmentChoices
from stoker.jobs.program import PLACES, ProgramFiles, ProgramWords, flat
from stoker.jobs.recipe_specs import Note, Shared, with_all
from stoker.jobs.requirements import required_of_entry
from stoker.protocol.client_identity import DATA, PROJECT, RANKS
from stoker.protocol.job_messages import checked_spec, spec_alike

# The points of a program's sweep after its first: only what a point changes is filled, checked and digested again.
#
# A point differs from the first in some words of the program and in its parameters; the rest was checked with the
# first. Wherever it might differ in more (a word that names a file, a parameter inside another), it is made the long
# way.


class ProgramSpecVariants:
    """Makes orders like a first one."""

    def __init__(  # noqa: PLR0913 - all that points have in common
        self,
        first: JobSpec,
        recipe: Recipe,
        program: ProgramWords,
        params: Mapping[str, Any],
        files: ProgramFiles,
        *,
        split_recipe: Any,
        train_hosts: tuple[str, ...],
    ) -> None:
        """`params` are those of all points."""
        self._first = first
        self._ids = JobIds(
            recipe=first.recipe,
            schema_version=first.schema_version,
            args=first.identity,
            mode=first.mode,
            split_recipe=split_recipe,
            train_hosts=train_hosts,
        )
        self._argv, self._params = recipe.args.specs["argv"], recipe.args.specs["params"]
        self._files = files
        self._shared = params
        self._words = {path: fill_text(value) for path, value in flat(params).items()}
        self._kept: tuple[str, ...] = first.args["argv"]
        self._filled = [(at, word) for at, word in enumerate(program.argv) if "{" in word or "}" in word]
        # Words of points that name no file.
        self._nothing: set[str] = set()
        places = {at for at, _ in self._filled}
        self._is_able = (
            bool(first.point)
            and not any("." in path for path in first.point)
            and not any(at == 0 or program.argv[at - 1] == "-m" for at in places)
            and all(self._names_nothing(self._kept[at]) for at in places)
        )

    def order(self, varied: Mapping[str, Any], texts: Mapping[str, str], place: dict[str, Any]) -> JobSpec | None:
        """Return the order of a point; nothing if it has to be made the long way."""
        first = self._first
        if (
            not self._is_able
            or varied.keys() != first.point.keys()
            or any(type(one) is dict for one in varied.values())
        ):
            return None
        words = {**self._words, **texts}
        filled = list(self._kept)
        for at, word in self._filled:
            filled[at] = one = fill_some(word, words, PLACES)
            if one not in self._nothing and not self._names_nothing(one):
                return None
        try:
            argv = self._argv.check(filled)
            params = self._params.check({**self._shared, **varied})
        except ValueError:
            # The long way says what is wrong.
            return None
        own = {
            "argv": self._argv.type.identity(argv, _no_path),
            "params": self._params.type.identity(params, _no_path),
        }
        place["id"] = self._ids.of(own)
        place["args"] = {**first.args, "argv": argv, "params": params}
        place["identity"] = {**first.identity, **own}
        return spec_alike(first, place)

    def _names_nothing(self, word: str) -> bool:
        """Return whether a word, wherever it stands behind the first, is no file that would belong to the program."""
        is_nothing = word != "-m" and not self._files.of(("", word))
        if is_nothing:
            self._nothing.add(word)
        return is_nothing


def _no_path(path: str) -> str:
    message = f"words and parameters hold no paths, and yet there is {path!r}"
    raise AssertionError(message)


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


class ProgramSpecBuilder:
    """Makes them."""

    def __init__(self, desk: JobCompiler, code: SubmittedCode, inputs: DataInputs) -> None:
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

    def of(self, checked: CheckedJob, shared: Shared, note: Note) -> Iterator[JobSpec]:
        """Return the orders of a manifest's job; what is wrong with its files is noted."""
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
        alike: ProgramSpecVariants | None = None
        try:
            for number, point in enumerate(
                points(checked.sweep) if checked.sweep is not None else (SweepPoint(()),), 1
            ):
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
                        alike = ProgramSpecVariants(
                            order,
                            making.recipe,
                            program,
                            checked.values,
                            files,
                            split_recipe=entry.split_recipe,
                            train_hosts=entry.train_hosts,
                        )
                yield order
        except InvalidInput as error:
            for fault in error.faults:
                note(Diagnostic(fault.where.removeprefix("."), fault.message, fault.hint))
        except StokerError as error:
            note(Diagnostic("", error.message, error.hint))

    def look_at(self, checked: CheckedJob, note: Note) -> None:
        """Note what is wrong with the files of a job that can't be for other reasons."""
        self._data(checked.entry, note)
        self._look_at(checked.entry, note)

    def _order(self, making: _Program, args: Mapping[str, Any], shared: Shared) -> JobSpec:
        recipe = making.recipe
        values, faults = recipe.args.check({**args, **FOUND_ANYWHERE, "folder": making.project}, owner="")
        if faults:
            raise InvalidArgs(str(faults[0]), faults=tuple(faults))
        code = {name: self._digest(path) for name, path in args["code"].items()}
        code |= {one.path: one.digest for one in making.environment if one.path and one.kind != "python"}
        if making.environment:
            shared = {**shared, "environment": making.environment}
        identity = program_identity(recipe, values, making.data, self._digest)
        return checked_spec(
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

    def _code_of(self, entry: JobEntry, chosen: JobEnvironmentChoices, note: Note) -> dict[str, Any] | None:
        """Return the fields that say which code a job is; nothing after noting what is wrong with it."""
        try:
            is_in_place = entry.code is CodePlace.IN_PLACE
            return self._code.of(include=entry.include, needed=chosen.files, is_in_place=is_in_place)
        except InvalidInput as error:
            for fault in error.faults:
                note(Diagnostic("", str(fault), fault.hint or error.hint))
        except StokerError as error:
            note(Diagnostic("include" if error.message.startswith("include:") else "", error.message, error.hint))
        return None

    def _data(self, entry: JobEntry, note: Note) -> dict[str, DataInput]:
        """Return each thing that a job reads, by its variable."""
        found = {}
        for name, text in entry.data.items():
            try:
                found[name] = self._inputs.of(f"env:{name}", text)
            except StokerError as error:
                note(Diagnostic(f"data.{name}", error.message, error.hint))
        return found

    def _look_at(self, entry: JobEntry, note: Note) -> JobEnvironmentChoices:
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
    """Return what of a program's arguments belongs to its id; their `folder` is the project's identity."""
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
    """Return the interpreter that a job names for all machines alike; empty if it has choices, or none."""
    said = entry.python.get(ANY, "") if len(entry.python) == 1 else ""
    return "" if is_version(said) else said


def _settings(entry: JobEntry, data: Mapping[str, str], requirements: Requirements) -> dict[str, Any]:
    """Return a manifest's words as the recipe `command` takes them."""
    settings: dict[str, Any] = {"outputs": entry.outputs, "python": own_python(entry)}
    if entry.ranks is not None:
        settings["ranks"] = entry.ranks
    # What has no path here gets one on each machine.
    if paths := {name: path for name, path in data.items() if path}:
        settings["data"] = paths
    if requirements.wish is DevicePreference.NEVER:
        settings["gpus"] = 0
    elif requirements.wish is DevicePreference.REQUIRE:
        settings["gpus"] = requirements.device_count
    if requirements.vram_bytes and requirements.wish is not DevicePreference.NEVER:
        settings |= {"vram": f"{requirements.vram_bytes}B", "shares": requirements.may_share}
    return settings
