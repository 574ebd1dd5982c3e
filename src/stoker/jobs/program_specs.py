"""Specs of jobs that are programs: placeholders filled, files digested, data found.

A program's id is made from its words and parameters, its data's content and its project: the same words in another
project may be another program. Its code is sent as a tree and recorded, and is no part of the id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stoker.config.fields import ANY, is_version
from stoker.config.manifest_file import CodePlace, JobEntry
from stoker.config.sweep import SweepPoint, label_of, points
from stoker.config.values import fill_text
from stoker.core.device import Needs
from stoker.core.errors import BadInput, Diagnostic, InvalidArgs, InvalidInput, StokerError
from stoker.core.frozen import fields_of
from stoker.core.job import EnvironmentChoice, JobIds, JobInput, JobSpec, job_id
from stoker.core.machine import DevicePreference, Requirements
from stoker.core.text import parse_duration
from stoker.engine.program import fill_some
from stoker.engine.recipe import Recipe
from stoker.host.folders import placed_path
from stoker.host.interpreter import is_bare_python, missing_script, no_script
from stoker.jobs.builder import ComposedJob, JobBuilder, TrialSpecs
from stoker.jobs.manifest_checks import CheckedJob
from stoker.jobs.pack.code_tree import SubmittedCode
from stoker.jobs.pack.data_inputs import DataInput, DataInputs, refuse_replaced, typed_inputs
from stoker.jobs.pack.environment_choices import EnvironmentChoices, JobEnvironmentChoices
from stoker.jobs.pack.environment_files import FoundEnvironment, find_environment
from stoker.jobs.program import FOUND, PLACES, ProgramFiles, ProgramWords, flat
from stoker.jobs.recipe_specs import Note, Shared, with_all
from stoker.jobs.requirements import PlanShapes, required_of_entry, required_of_program
from stoker.jobs.starter_manifest import FILL_IN
from stoker.protocol.job_checks import AT, DATA, PROJECT, RANKS, data_where
from stoker.protocol.job_messages import checked_spec, spec_alike

_FILES = "uv.lock, pyproject.toml, or requirements as .txt or .in"


class ProgramSpecVariants:
    """Builds the other points of a sweep from its first: only what a point changes is filled, checked and digested.

    A point differs from the first in some words of the program and in its parameters; the rest was checked with the
    first. A point that might differ in more (a word that names a file, a parameter inside another) is built in full.
    """

    def __init__(
        self,
        first: JobSpec,
        recipe: Recipe,
        program: ProgramWords,
        params: Mapping[str, Any],
        files: ProgramFiles,
        *,
        split_recipe: Any,
    ) -> None:
        """`params` are those of all points."""
        self._first = first
        self._fields = fields_of(first)
        self._ids = JobIds(
            recipe=first.recipe,
            schema_version=first.schema_version,
            args=first.identity,
            mode=first.mode,
            split_recipe=split_recipe,
            train_hosts=first.train_hosts,
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

    def spec(self, varied: Mapping[str, Any], texts: Mapping[str, str], place: dict[str, Any]) -> JobSpec | None:
        """Return the job of a point; None if it has to be built in full."""
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
            # Building it in full reports the fault.
            return None
        own = {
            "argv": self._argv.type.identity(argv, _no_path),
            "params": self._params.type.identity(params, _no_path),
        }
        place["id"] = self._ids.of(own)
        place["args"] = {**first.args, "argv": argv, "params": params}
        place["identity"] = {**first.identity, **own}
        return spec_alike(self._fields, place)

    def _names_nothing(self, word: str) -> bool:
        """Return True if a word after the first is no file that would belong to the program."""
        is_nothing = word != "-m" and not self._files.of(("", word))
        if is_nothing:
            self._nothing.add(word)
        return is_nothing


def _no_path(path: str) -> str:
    message = f"words and parameters hold no paths, and yet there is {path!r}"
    raise AssertionError(message)


FOUND_ANYWHERE: Mapping[str, Any] = {"code": {}, "machine_gpus": 0, "machine_cpus": 1}
"""Arguments that each worker sets for its own machine."""


class ProgramSpecBuilder:
    """Builds the jobs of programs, from a command line or a manifest."""

    def __init__(self, builder: JobBuilder, code: SubmittedCode, inputs: DataInputs, shapes: PlanShapes) -> None:
        self._builder = builder
        self._inputs = inputs
        self._code = code
        self._shapes = shapes
        self._files: dict[str, ProgramFiles] = {}
        self._notes: dict[str, None] = {}
        # Ten thousand jobs name the same few files: each is read once.
        self._digests: dict[str, str] = {}
        self._environments = EnvironmentChoices(builder.folder)
        self._found: tuple[FoundEnvironment | None] | None = None
        # Placed data that was compared with the code.
        self._placed: set[tuple[Any, ...]] = set()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, each once."""
        return tuple(self._notes)

    def of_trials(self, job: ComposedJob, made: TrialSpecs, of_each: Sequence[Mapping[str, Any]]) -> list[JobSpec]:
        """Return the jobs of a command line's trials; `of_each` are the fields of each beside its arguments."""
        recipe = job.recipe
        settings = tuple(name for name in recipe.args.specs if name not in FOUND)
        jobs = []
        for spec, fields in zip(made.specs, of_each, strict=True):
            values = {**spec.args, **FOUND_ANYWHERE}
            chosen = self._chosen_for(job, values)
            code = self._code.of(needed=chosen.files)
            script = missing_script(values["argv"], self._builder.folder)
            if script and code.get("code_tree") and "{" not in script and not script.startswith(("/", "..")):
                raise no_script(script, self._builder.folder)
            if code.get("code_tree") and not chosen.choices and not values.get("python"):
                self._offer_environment(values["argv"], "--env {}")
            values["folder"] = code["project"]
            data, inputs = typed_inputs(self._inputs, values, self._builder.folder)
            self._refuse_replaced(code, inputs)
            shape = self._shapes.of(recipe, values, settings)
            if shape.faults:
                raise _refused(recipe, shape.faults)
            own = {**fields, **code, "inputs": tuple(inputs), "requirements": required_of_program(values)}
            own |= unfilled_words(job.program, values["argv"])
            if not own.get("timeout_s") and values["timeout"]:
                own["timeout_s"] = parse_duration(values["timeout"])
            jobs.append(
                self._spec(
                    recipe,
                    values,
                    own,
                    data=data,
                    code=made.code,
                    environment=chosen.choices,
                )
            )
        return jobs

    def of(  # noqa: C901 - one pass over the points of a sweep
        self, checked: CheckedJob, shared: Shared, note: Note
    ) -> Iterator[JobSpec]:
        """Return the jobs of a manifest's entry; `note` is called for each fault of its files."""
        entry, program, recipe = checked.entry, checked.program, checked.form.recipe
        if program is None:
            return
        data = self._data(entry, note)
        chosen = self._check_entry(entry, note)
        requirements = required_of_entry(entry, checked.job.given.values, Needs())
        settings = _settings(entry, {name: one.body.path for name, one in data.items()}, requirements)
        code = self._code_of(entry, chosen, [one.body for one in data.values()], note)
        if code is None:
            return
        shared = {**shared, **code, "requirements": requirements, "mode": checked.mode}
        if data:
            shared["inputs"] = tuple(one.body for one in data.values())
        digests = {name: one.digest for name, one in data.items()}
        files = self._files_of(program.folder)
        variants: ProgramSpecVariants | None = None
        try:
            for number, point in enumerate(
                points(checked.sweep) if checked.sweep is not None else (SweepPoint(()),), 1
            ):
                varied = {path: choice.value for path, choice in point.choices}
                texts = {path: choice.text for path, choice in point.choices}
                place = {"name": entry.name, "number": 0, "label": "", "point": {}}
                if varied:
                    place = {"name": entry.name, "number": number, "label": label_of(varied.items()), "point": varied}
                spec = variants.spec(varied, texts, place) if variants is not None else None
                if spec is None:
                    args = program.args(settings, with_all(checked.values, varied), texts, files)
                    values, faults = recipe.args.check({**args, **FOUND_ANYWHERE, "folder": code["project"]}, owner="")
                    if faults:
                        raise InvalidArgs(str(faults[0]), faults=tuple(faults))
                    spec = self._spec(
                        recipe,
                        values,
                        {**shared, **place, **unfilled_words(program, values["argv"])},
                        data=digests,
                        code={name: self._digest(path) for name, path in args["code"].items()},
                        environment=chosen.choices,
                        split_recipe=entry.split_recipe,
                    )
                    if variants is None and varied:
                        variants = ProgramSpecVariants(
                            spec, recipe, program, checked.values, files, split_recipe=entry.split_recipe
                        )
                yield spec
        except InvalidInput as error:
            for fault in error.faults:
                note(Diagnostic(fault.where.removeprefix("."), fault.message, fault.hint))
        except StokerError as error:
            note(Diagnostic("", error.message, error.hint))

    def check_files(self, checked: CheckedJob, note: Note) -> None:
        """Call `note` for each fault of the files of an entry that has other faults, too."""
        self._data(checked.entry, note)
        self._check_entry(checked.entry, note)

    def _spec(  # noqa: PLR0913 - what a program's job is made of
        self,
        recipe: Recipe,
        values: dict[str, Any],
        fields: Mapping[str, Any],
        *,
        data: Mapping[str, str],
        code: Mapping[str, str],
        environment: tuple[EnvironmentChoice, ...],
        split_recipe: Any = None,
    ) -> JobSpec:
        """Return the job of checked arguments. `data` and `code` are digests, by variable and by file."""
        if fields.get("code_tree"):
            self._refuse_outside(values["argv"])
        identity = program_identity(recipe, values, data, self._digest)
        sources = {one.path: one.digest for one in environment if one.path and one.kind != "python"}
        more = {"environment": environment} if environment else {}
        # It is in the requirements, so the granted devices have it. Earlier workers refuse the argument.
        args = {name: value for name, value in values.items() if name != "gpu_backend"}
        return checked_spec(
            id=job_id(
                recipe=recipe.name,
                schema_version=recipe.version,
                args=identity,
                mode=fields.get("mode", ""),
                split_recipe=split_recipe,
                train_hosts=fields.get("train_hosts", ()),
            ),
            recipe=recipe.name,
            schema_version=recipe.version,
            args=args,
            identity=identity,
            code={**code, **sources},
            **more,
            **fields,
        )

    def _refuse_replaced(self, code: Mapping[str, Any], inputs: Sequence[JobInput]) -> None:
        """Raise `BadInput` if placed data would replace a file of the code."""
        key = (code.get("code_tree", ""), *((one.where, one.tree) for one in inputs if one.where.startswith(AT)))
        if key[1:] and key not in self._placed:
            tree = self._code.tree(key[0]) if key[0] else None
            refuse_replaced(tree, code.get("code_folder", ""), inputs, self._inputs.shipments)
            self._placed.add(key)

    def _refuse_outside(self, argv: Sequence[str]) -> None:
        """Refuse a relative path that names a file here, but outside of what is sent: no worker would find it."""
        for text in (text for word in argv if ".." in word for text in (word, word.partition("=")[2])):
            project = self._code.project
            inner = os.path.normpath(os.path.join(project.folder, text))
            if inner.startswith("../") and "\0" not in text and os.path.isfile(self._builder.from_here(text)):
                hint = "copy it into the project; for data use data = { NAME = PATH }; --in-place sends no code"
                raise BadInput(f"{text} is outside of the folder that is sent: {project.root}", hint=hint)

    def _chosen_for(self, job: ComposedJob, values: dict[str, Any]) -> JobEnvironmentChoices:
        """Return the interpreters of a command line's trial. A version in `python` is taken out of the arguments."""
        env, python = job.request.env, str(values.get("python") or "")
        if not env and not is_version(python):
            return JobEnvironmentChoices()
        chosen = self._environments.of(env, {ANY: python} if python else {})
        if chosen.faults:
            # The argument `env` of the recipe is variables, not files.
            hint = f"--env names a file in {self._builder.folder} or below it: {_FILES}" if env else ""
            raise _refused(job.recipe, chosen.faults, hint=hint)
        values["python"] = ""
        return chosen

    def _files_of(self, folder: str) -> ProgramFiles:
        if folder not in self._files:
            self._files[folder] = ProgramFiles(folder)
        return self._files[folder]

    def _code_of(
        self, entry: JobEntry, chosen: JobEnvironmentChoices, inputs: Sequence[JobInput], note: Note
    ) -> dict[str, Any] | None:
        """Return the fields that name a job's code; None after calling `note` for its faults."""
        key = ""
        try:
            is_in_place = entry.code is CodePlace.IN_PLACE
            code = self._code.of(include=entry.include, needed=chosen.files, is_in_place=is_in_place)
            if code.get("code_tree") and not chosen.choices and not entry.python:
                self._offer_environment(entry.command, 'env = "{}"')
            key = "data"
            self._refuse_replaced(code, inputs)
            return code
        except InvalidInput as error:
            for fault in error.faults:
                note(Diagnostic("", str(fault), fault.hint or error.hint))
        except StokerError as error:
            note(Diagnostic("include" if error.message.startswith("include:") else key, error.message, error.hint))
        return None

    def _data(self, entry: JobEntry, note: Note) -> dict[str, DataInput]:
        """Return each thing that a job reads, by its variable or its path."""
        found: dict[str, DataInput] = {}
        for name, text in entry.data.items():
            try:
                known = placed_path(name) if "/" in name else name
                if known in found:
                    raise BadInput("this path is given twice")
                found[known] = self._inputs.of(data_where(known), text)
            except StokerError as error:
                note(Diagnostic(f"data.{name}", error.message, error.hint))
        return found

    def _check_entry(self, entry: JobEntry, note: Note) -> JobEnvironmentChoices:
        chosen = self._environments.of(entry.env, {} if own_python(entry) else entry.python)
        for fault in chosen.faults:
            note(fault)
        script = missing_script(entry.command, self._builder.folder)
        if script and "{" not in script:
            self._notes[f"{entry.name}: there is no {script} in {self._builder.folder}"] = None
        for name in [name for name, value in entry.hyper.items() if value == FILL_IN]:
            self._notes[f"{entry.name}: replace {FILL_IN} by the value of {name}"] = None
        return chosen

    def _offer_environment(self, argv: Sequence[str], words: str) -> None:
        """Note the file with a Python program's packages, which no machine installs unless the job names it."""
        if self._found is None:
            self._found = (find_environment(self._builder.folder),)
        found = self._found[0]
        if found is None or not is_bare_python(argv[0]):
            return
        if found.hint:
            text = f"can't be installed on machines: {found.hint}; then {words.format('requirements.txt')}"
        else:
            text = f"lists packages that machines do not install: {words.format(found.path)} installs them on each"
        self._notes[f"{found.path} {text}"] = None

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            self._digests[path] = self._builder.digest(path)
        return self._digests[path]


def unfilled_words(program: ProgramWords | None, argv: Sequence[str]) -> dict[str, Any]:
    """Return the field of a spec that keeps a program's words with their places; nothing if all of it is in `argv`."""
    return {"words": program.argv} if program is not None and program.argv != tuple(argv) else {}


def program_identity(
    recipe: Recipe, values: Mapping[str, Any], data: Mapping[str, str], digest_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return the part of a program's arguments that is in its id; their `folder` is the project's identity."""
    identity = recipe.args.identity(values, digest_of)
    if data:
        identity[DATA] = dict(data)
    if values.get(RANKS) is not None:
        # Another number of ranks is another result. Without `ranks` the id stays as it was before ranks existed.
        identity[RANKS] = values[RANKS]
    return identity if values["inputs"] else {**identity, PROJECT: values["folder"]}


def _refused(recipe: Recipe, faults: Sequence[Diagnostic], *, hint: str = "") -> InvalidArgs:
    message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the arguments of {recipe.name}"
    return InvalidArgs(message, faults=tuple(faults), hint=hint or f"stoker recipes show {recipe.name}")


def own_python(entry: JobEntry) -> str:
    """Return the interpreter's path that a job names for all machines; empty if it has choices, or none."""
    python = entry.python.get(ANY, "") if len(entry.python) == 1 else ""
    return "" if is_version(python) else python


def _settings(entry: JobEntry, data: Mapping[str, str], requirements: Requirements) -> dict[str, Any]:
    """Return a manifest entry as arguments of the recipe `command`."""
    settings: dict[str, Any] = {"outputs": entry.outputs, "metrics": entry.metrics, "python": own_python(entry)}
    if entry.ranks is not None:
        settings["ranks"] = entry.ranks
    # Data without a path here gets one on each machine.
    if paths := {name: path for name, path in data.items() if path}:
        settings["data"] = paths
    if requirements.wish is DevicePreference.NEVER:
        settings["gpus"] = 0
    elif requirements.wish is DevicePreference.REQUIRE:
        settings["gpus"] = requirements.device_count
    if requirements.vram_bytes and requirements.wish is not DevicePreference.NEVER:
        settings |= {"vram": f"{requirements.vram_bytes}B", "shares": requirements.may_share}
    return settings
