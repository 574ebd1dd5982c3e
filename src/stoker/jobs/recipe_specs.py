"""Orders for jobs of recipes: each point of a job's sweep with its arguments, its id and what it asks of a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from stoker.config.sweep import label_of, points
from stoker.core.digests import digest_value
from stoker.core.errors import Diagnostic, InvalidArgs, InvalidInput, StokerError
from stoker.core.frozen import changed, fields_of, fresh, frozen
from stoker.core.job import JobIds, JobInput, JobSpec
from stoker.core.machine import Requirements
from stoker.engine.recipe import Recipe
from stoker.engine.stage import SharedBase
from stoker.jobs.builder import JobBuilder
from stoker.jobs.manifest_checks import CheckedJob, RecipeForm
from stoker.jobs.pack.attempt_inputs import is_input, places_of, without_runtime
from stoker.jobs.pack.data_inputs import DataInput, DataInputs
from stoker.jobs.requirements import PlanShape, PlanShapes, required_of_entry
from stoker.protocol.job_checks import is_found_at
from stoker.protocol.job_messages import checked_spec, spec_alike
from stoker.store.memo import may_read


@frozen
class HubInputs:
    """Arguments that name a repository of the hub (`base=org/name`), and what replaces them in a plan meanwhile.

    Each machine brings it itself, so nothing of it is fetched here but the one small file by which the recipe says how
    large it is. A plan is still made, to see what else is wrong: from the repository if this machine's cache has all of
    it, else with the argument's default in its place.
    """

    found: Mapping[str, Mapping[str, DataInput]] = fresh(factory=dict)
    """By argument, and by the text that names a repository: a list may name several."""
    planned: Mapping[str, Any] = fresh(factory=dict)
    """What the plan is made with."""
    measured: Mapping[str, Any] = fresh(factory=dict)
    """What the recipe is asked with how large it is."""
    beside: frozenset[str] = frozenset()
    """Paths in lists for which the plan is made with something else: it reads none of them."""

    @property
    def stand_ins(self) -> frozenset[str]:
        """Arguments for which the plan is made with something else."""
        return frozenset(name for name in self.found if self.planned[name] != self.measured[name])

    def named(self, shared: SharedBase | None) -> SharedBase | None:
        """Return what a job shares under a word of its own where only one file of the base was seen."""
        unseen = [one.digest for name in self.stand_ins for one in self.found[name].values() if not one.is_data_set]
        if shared is None or not unseen:
            return shared
        return changed(shared, share_key=digest_value("base of the hub", [*unseen, shared.share_key])[:32])


_NOTHING = HubInputs()


class HubArguments:
    """Finds them, each repository once."""

    def __init__(self, builder: JobBuilder, inputs: DataInputs) -> None:
        self._builder = builder
        self._inputs = inputs
        self._folders: dict[tuple[str, str], tuple[str, bool]] = {}

    def of(self, form: RecipeForm, args: Mapping[str, Any], given: tuple[str, ...]) -> HubInputs:
        """Return what the arguments of a job name that is elsewhere. Raises `StokerError`."""
        found: dict[str, dict[str, DataInput]] = {}
        planned: dict[str, Any] = {}
        measured: dict[str, Any] = {}
        beside: list[str] = []
        for name in (one for one in form.recipe.brings if one in given):
            # Its prefix marks a data set.
            kind, _, file = form.recipe.brings[name].rpartition("/")
            value = args.get(name)
            texts = [value] if isinstance(value, str) else texts_in(form.recipe, name, value) if value else []
            named = {text: self._inputs.repository(f"arg:{name}", text, kind) for text in texts}
            repositories = {text: one for text, one in named.items() if one is not None}
            if not repositories:
                continue
            found[name] = repositories
            places = {text: self._folder(one.body, file) for text, one in repositories.items()}
            if isinstance(value, str):
                measured[name] = places[value][0]
            else:
                folders = {text: folder for text, (folder, _) in places.items()}
                measured[name] = _with_folders(form.recipe, name, value, folders)
            if all(is_whole for _, is_whole in places.values()):
                planned[name] = measured[name]
            else:
                planned[name] = form.base.get(name, value)
                beside += filter(os.path.isabs, texts)
        if not found:
            return _NOTHING
        return HubInputs(found=found, planned=planned, measured=measured, beside=frozenset(beside))

    def _folder(self, body: JobInput, file: str) -> tuple[str, bool]:
        """Return where this machine has that file of a repository, and whether all others are there, too."""
        key = (body.repo, file)
        known = self._folders.get(key)
        if known is None:
            folder = self._builder.data.find_file(body.repo, file)
            count = sum(len(files) for _, _, files in os.walk(folder))
            known = self._folders[key] = folder, count >= body.files
        return known


def texts_in(recipe: Recipe, name: str, value: Any) -> list[str]:
    """Return the texts in an argument that are paths or may be, in the order in which its type changes them."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    recipe.args.specs[name].type.with_paths(value, keep)
    return found


def _with_folders(recipe: Recipe, name: str, value: Any, folders: Mapping[str, str]) -> Any:
    return recipe.args.specs[name].type.with_paths(value, lambda text: folders.get(text, text))


def names_of(form: RecipeForm, args: Mapping[str, Any], brought: HubInputs) -> dict[str, str]:
    """Return display names of such arguments for recipes that take them (`base_name`): paths differ by machine."""
    found: dict[str, str] = {}
    for name in form.recipe.brings:
        asked, text = f"{name}_name", args.get(name)
        if asked in form.recipe.args.specs and not args.get(asked) and isinstance(text, str):
            found[asked] = text.partition("@")[0] if name in brought.found else os.path.basename(os.path.normpath(text))
    return found


Shared = Mapping[str, Any]
"""What all points of a job have in common."""
Note = Callable[[Diagnostic], None]


class RecipeJobTemplate(NamedTuple):
    """What jobs of one recipe are, beside their values."""

    form: RecipeForm
    given: tuple[str, ...]
    """The arguments that are not all defaults."""
    required: Callable[[PlanShape, SharedBase | None, int | None], Requirements]
    """Says what such a job requires, from its shape, what it shares, and its `gpus`."""
    mode: str = ""
    """One that is not among the arguments already."""
    split_recipe: Any = None
    train_hosts: tuple[str, ...] = ()
    firsts: dict[tuple[int, SharedBase | None], dict[str, Any]] | None = None
    """By shape and what they share, the first spec that was made of this; others are like it."""


class RecipeSpecBuilder:
    """Makes them."""

    def __init__(self, builder: JobBuilder, shapes: PlanShapes, inputs: DataInputs) -> None:
        self._builder = builder
        self._inputs = inputs
        self._shapes = shapes
        self._hub = HubArguments(builder, inputs)
        self._identities: dict[str, dict[str, Any]] = {}
        self._whole: dict[str, str] = {}
        self._ids: dict[tuple[str, str, int, tuple[str, ...]], tuple[JobIds, Any]] = {}
        self._sorts: dict[Any, tuple[RecipeJobTemplate, Shared]] = {}

    def of(self, checked: CheckedJob, shared: Shared, note: Note) -> Iterator[JobSpec]:
        """Return the orders of a manifest's job; what is wrong with its files, or shows when it compiles, is noted.

        Jobs that come with one and the same `shared` are of one sort: they differ in their names and values alone.
        """
        template = self._template(checked, shared)
        place = {"name": checked.entry.name, "number": 0, "label": "", "point": {}}
        if checked.sweep is None:
            spec = self.spec(template, checked.values, shared, note, place)
            if spec is not None:
                yield spec
            return
        try:
            for number, point in enumerate(points(checked.sweep), 1):
                varied = {path: choice.value for path, choice in point.choices}
                at = {**place, "number": number, "label": label_of(varied.items()), "point": varied}
                spec = self.spec(template, with_all(checked.values, varied), shared, note, at)
                if spec is None:
                    # What is wrong with one point's files is wrong with the job.
                    return
                yield spec
        except InvalidInput as error:
            for fault in error.faults:
                note(fault)

    def check_files(self, checked: CheckedJob, note: Note) -> None:
        """Call `note` for each fault of the files of an entry that has other faults, too."""
        form = checked.form
        given = tuple(name for name in checked.given_names if name in checked.values)
        args = self._with_whole_paths(form, checked.values, given)
        if args.keys() == form.recipe.args.specs.keys():
            for fault in self._shapes.of(form.recipe, args, given).faults:
                note(fault)

    def spec(
        self,
        template: RecipeJobTemplate,
        values: Mapping[str, Any],
        shared: Shared,
        note: Note,
        place: Mapping[str, Any] | None = None,
    ) -> JobSpec | None:
        """Return the spec of checked values; None after noting faults. `place` has its own fields beside `shared`."""
        form = template.form
        args = self._with_whole_paths(form, values, template.given)
        try:
            brought = self._hub.of(form, args, template.given)
            shape = self._shapes.of(form.recipe, {**args, **brought.planned}, template.given, brought.stand_ins)
            if shape.faults:
                for fault in shape.faults:
                    note(fault)
                return None
            _restore_texts(form.recipe, values, args, template.given, shape)
            own = self._identity(template, values, args, shape, brought)
            inputs = self._inputs_of(form.recipe, args, template.given, shape, brought)
            args |= names_of(form, args, brought)
            shared_base = brought.named(self._builder.shared_by(form.recipe, {**args, **brought.measured}))
        except InvalidArgs as error:
            for fault in error.faults:
                note(Diagnostic(fault.where.removeprefix(f"{form.name}."), fault.message, fault.hint))
            return None
        except StokerError as error:
            note(Diagnostic("", error.message, error.hint))
            return None
        made: dict[str, Any] = {
            "id": self._ids_of(template).of(own),
            "args": without_runtime(args, form.nested_runtime) if form.nested_runtime else args,
            "identity": {**self._base_identity(form), **own},
        }
        if inputs:
            made["inputs"] = inputs
        if place is not None:
            made.update(place)
        like = (id(shape), shared_base)
        first = template.firsts.get(like) if template.firsts is not None else None
        if first is not None:
            return spec_alike(first, made)
        spec = checked_spec(
            **made,
            recipe=form.name,
            schema_version=form.recipe.version,
            mode=template.mode,
            code={form.name: shape.code},
            requirements=template.required(shape, shared_base, args.get("gpus")),
            **shared,
        )
        if template.firsts is not None:
            template.firsts[like] = fields_of(spec)
        return spec

    def _template(self, checked: CheckedJob, shared: Shared) -> RecipeJobTemplate:
        """Return what a job is beside its values, made once for all of its sort."""
        key = (id(shared), id(checked.form), checked.given_names, checked.mode)
        known = self._sorts.get(key)
        if known is None:
            entry = checked.entry
            template = RecipeJobTemplate(
                form=checked.form,
                given=checked.given_names,
                required=partial(_required_of, checked),
                mode=checked.mode,
                split_recipe=entry.split_recipe,
                train_hosts=entry.train_hosts,
                firsts={},
            )
            # What is kept is no other thing's id.
            known = self._sorts[key] = (template, shared)
        return known[0]

    def _with_whole_paths(self, form: RecipeForm, values: Mapping[str, Any], given: tuple[str, ...]) -> dict[str, Any]:
        """Return values whose paths are whole: what is meant from one folder has to be found from any."""
        args = dict(values)
        for name in given:
            value = args[name]
            if type(value) is str:
                args[name] = self._found_path(value)
            elif type(value) in (list, tuple, dict):
                of = form.recipe.args.specs[name].type
                args[name] = of.with_paths(value, self._builder.from_here if of.paths(value) else self._found_path)
        return args

    def _identity(
        self,
        template: RecipeJobTemplate,
        values: Mapping[str, Any],
        args: Mapping[str, Any],
        shape: PlanShape,
        brought: HubInputs,
    ) -> dict[str, Any]:
        """Return what of a job's own arguments belongs to its id; a text that names a file it reads is that file."""
        form = template.form
        own = form.identity(args, form.own(template.given), self._builder.digest)
        for name in template.given:
            # A path that was made whole for the way is still what was written: never a place in an id. Where that does
            # not say what is meant (..), its content does.
            if name in own and type(args[name]) is str and is_found_at(args[name], values[name]):
                own[name] = values[name]
                if args[name] in shape.files:
                    own[name] = {"content": self._builder.digest(args[name])}
        if files := shape.files | brought.beside:
            own = {name: _with_contents(value, lambda text: self._digest(text, files)) for name, value in own.items()}
        for name, repositories in brought.found.items():
            own[name] = _with_contents(own[name], {text: one.digest for text, one in repositories.items()}.get)
        return own

    def _inputs_of(
        self, recipe: Recipe, args: Mapping[str, Any], given: tuple[str, ...], shape: PlanShape, brought: HubInputs
    ) -> tuple[JobInput, ...]:
        """Return the files and folders among a job's own arguments, which go where it goes, and its repositories."""
        files = shape.files | brought.beside
        if not files and not brought.found:
            return ()
        own = {name: args[name] for name in given}
        found = dict(places_of(recipe, own))
        # A text that a stage reads as a file is one.
        found |= {f"arg:{name}": value for name, value in own.items() if type(value) is str and value in shape.files}
        for name, value in own.items():
            if type(value) in (list, tuple, dict):
                there = brought.found.get(name, {})
                texts = (one for one in texts_in(recipe, name, value) if is_input(one, there))
                found |= {f"arg:{name}.{number}": text for number, text in enumerate(texts)}
            elif name in brought.found:
                found[f"arg:{name}"] = value
        inputs = []
        for where, text in found.items():
            repository = brought.found.get(where.removeprefix("arg:").partition(".")[0], {}).get(text)
            if repository is not None:
                inputs.append(changed(repository.body, where=where))
            elif text in files:
                inputs.append(self._inputs.at(where, text).body)
        return tuple(inputs)

    def _ids_of(self, template: RecipeJobTemplate) -> JobIds:
        """Return what makes the ids of such jobs."""
        key = (template.form.name, template.mode, id(template.split_recipe), template.train_hosts)
        known = self._ids.get(key)
        if known is None:
            form = template.form
            ids = JobIds(
                recipe=form.name,
                schema_version=form.recipe.version,
                args=self._base_identity(form),
                mode=template.mode,
                split_recipe=template.split_recipe,
                train_hosts=template.train_hosts,
            )
            # What is kept is no other thing's id.
            known = self._ids[key] = (ids, template.split_recipe)
        return known[0]

    def _base_identity(self, form: RecipeForm) -> dict[str, Any]:
        """Return what of a recipe's defaults belongs to the id of every job of it."""
        if form.name not in self._identities:
            self._identities[form.name] = form.base_identity()
        return self._identities[form.name]

    def _digest(self, text: str, files: frozenset[str]) -> str | None:
        return self._builder.digest(text) if text in files else None

    def _found_path(self, text: str) -> str:
        """Return the whole path of a text that looks like a path and is one; else the text."""
        return self._found(text) if ("/" in text or "." in text) and not os.path.isabs(text) else text

    def _found(self, text: str) -> str:
        """Return the whole path of what a text names, if there is such a file; else the text."""
        if text not in self._whole:
            home = self._builder.environment.get("HOME", "~")
            path = self._builder.from_here(text.replace("~", home, 1) if text.startswith("~/") else text)
            is_there = may_read(path, self._builder.readable) and os.path.exists(path)
            self._whole[text] = path if is_there else text
        return self._whole[text]


def _with_contents(value: Any, digest_of: Callable[[str], str | None]) -> Any:
    """Return a value with the content in place of each text that has a digest."""
    if type(value) is str:
        digest = digest_of(value)
        return value if digest is None else {"content": digest}
    if type(value) in (list, tuple):
        return [_with_contents(item, digest_of) for item in value]
    if type(value) is dict:
        return {key: _with_contents(item, digest_of) for key, item in value.items()}
    return value


def _restore_texts(
    recipe: Recipe, values: Mapping[str, Any], args: dict[str, Any], given: tuple[str, ...], shape: PlanShape
) -> None:
    """Take identity texts back that were made whole paths, and are neither declared as paths nor read as files."""
    for name in given:
        spec, value = recipe.args.specs[name], args[name]
        if type(value) is str and not spec.is_runtime and value not in shape.files and not spec.type.paths(value):
            args[name] = values[name]


def _required_of(checked: CheckedJob, shape: PlanShape, shared: SharedBase | None, gpus: int | None) -> Requirements:
    return required_of_entry(checked.entry, checked.job.given.values, shape.needs, shared, gpus)


def with_all(values: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others at some dotted paths."""
    made = dict(values)
    for path, value in varied.items():
        into = made
        steps = path.split(".")
        for step in steps[:-1]:
            inner = into.get(step)
            into[step] = into = dict(inner) if type(inner) is dict else {}
        into[steps[-1]] = value
    return made
