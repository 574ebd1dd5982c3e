"""Orders for jobs of recipes: each point of a job's sweep with its arguments, its id and what it asks of a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from stoker.config.label import label_of
from stoker.config.sweep import points
from stoker.model.errors import Fault, Faults, StokerError
from stoker.model.ids import job_id
from stoker.wire.orders import JobOrder, RequirementsBody, job_order
from stoker.worker.ordering import Desk
from stoker.worker.submitting.checking import Checked
from stoker.worker.submitting.recipe_form import RecipeForm
from stoker.worker.submitting.requiring import ABOUT_MACHINES, required_of_entry
from stoker.worker.submitting.shapes import Shape, Shapes

Shared = Mapping[str, Any]
"""What all points of a job have in common."""
Note = Callable[[Fault], None]


class Wanted(NamedTuple):
    """What jobs of one recipe are, beside their values."""

    form: RecipeForm
    said: tuple[str, ...]
    """The arguments that are not all defaults."""
    required: Callable[[Shape], RequirementsBody]
    mode: str = ""
    """One that is not among the arguments already."""
    split_recipe: Any = None
    train_hosts: tuple[str, ...] = ()


class RecipeOrders:
    """Makes them."""

    def __init__(self, desk: Desk, shapes: Shapes) -> None:
        self._desk = desk
        self._shapes = shapes
        self._required: dict[Any, RequirementsBody] = {}
        self._identities: dict[str, dict[str, Any]] = {}
        self._whole: dict[str, str] = {}

    def of(self, checked: Checked, shared: Shared, note: Note) -> Iterator[JobOrder]:
        """Give the orders of a manifest's job; what is wrong with its files, or shows when it compiles, is noted."""
        entry = checked.entry
        wanted = Wanted(
            form=checked.form,
            said=checked.said,
            required=partial(self._required_of, checked),
            mode=checked.mode,
            split_recipe=entry.split_recipe,
            train_hosts=entry.train_hosts,
        )
        if checked.sweep is None:
            order = self.order(wanted, checked.values, shared, note)
            if order is not None:
                yield order
            return
        try:
            for number, point in enumerate(points(checked.sweep), 1):
                varied = {path: choice.value for path, choice in point.choices}
                place = {**shared, "number": number, "label": label_of(varied.items()), "point": varied}
                order = self.order(wanted, with_all(checked.values, varied), place, note)
                if order is None:
                    # What is wrong with one point's files is wrong with the job.
                    return
                yield order
        except Faults as error:
            for fault in error.faults:
                note(fault)

    def look_at(self, checked: Checked, note: Note) -> None:
        """Note what is wrong with the files of a job that can't be for other reasons."""
        form = checked.form
        said = tuple(name for name in checked.said if name in checked.values)
        args = self._with_whole_paths(form, checked.values, said)
        if args.keys() == form.recipe.args.specs.keys():
            for fault in self._shapes.of(form.recipe, args, said).faults:
                note(fault)

    def order(self, wanted: Wanted, values: Mapping[str, Any], shared: Shared, note: Note) -> JobOrder | None:
        """Give the order for checked values; nothing after noting what is wrong."""
        form = wanted.form
        args = self._with_whole_paths(form, values, wanted.said)
        shape = self._shapes.of(form.recipe, args, wanted.said)
        if shape.faults:
            for fault in shape.faults:
                note(fault)
            return None
        try:
            own = self._identity(wanted, values, args, shape)
        except StokerError as error:
            note(Fault("", error.message, error.hint))
            return None
        identity = {**self._base_identity(form), **own}
        return job_order(
            id=job_id(
                recipe=form.name,
                schema_version=form.recipe.version,
                args=identity,
                mode=wanted.mode,
                split_recipe=wanted.split_recipe,
                train_hosts=wanted.train_hosts,
            ),
            recipe=form.name,
            schema_version=form.recipe.version,
            args=args,
            identity=identity,
            mode=wanted.mode,
            code={form.name: shape.code},
            requirements=wanted.required(shape),
            **shared,
        )

    def _with_whole_paths(self, form: RecipeForm, values: Mapping[str, Any], said: tuple[str, ...]) -> dict[str, Any]:
        """Give values whose paths are whole: what is meant from one folder has to be found from any."""
        args = dict(values)
        for name in said:
            value = args[name]
            if type(value) is str:
                if ("/" in value or "." in value) and not os.path.isabs(value):
                    args[name] = self._found(value)
            elif type(value) in (list, tuple, dict):
                of = form.recipe.args.specs[name].type
                args[name] = of.with_paths(value, self._desk.from_here)
        return args

    def _identity(
        self, wanted: Wanted, values: Mapping[str, Any], args: Mapping[str, Any], shape: Shape
    ) -> dict[str, Any]:
        """Give what of a job's own arguments belongs to its id; a text that names a file it reads is that file."""
        form = wanted.form
        own = form.identity(args, form.own(wanted.said), self._desk.digest)
        for name in wanted.said:
            # A path that was made whole for the way is still what was written: never a place in an id.
            if name in own and type(args[name]) is str and args[name] is not values[name]:
                own[name] = values[name]
                if args[name] in shape.files:
                    own[name] = {"content": self._desk.digest(args[name])}
        if shape.files:
            own = {name: self._digested(value, shape.files) for name, value in own.items()}
        return own

    def _base_identity(self, form: RecipeForm) -> dict[str, Any]:
        """Give what of a recipe's defaults belongs to the id of every job of it."""
        if form.name not in self._identities:
            self._identities[form.name] = form.base_identity()
        return self._identities[form.name]

    def _digested(self, value: Any, files: frozenset[str]) -> Any:
        if type(value) is str:
            return {"content": self._desk.digest(value)} if value in files else value
        if type(value) in (list, tuple):
            return [self._digested(item, files) for item in value]
        if type(value) is dict:
            return {key: self._digested(item, files) for key, item in value.items()}
        return value

    def _required_of(self, checked: Checked, shape: Shape) -> RequirementsBody:
        said = checked.job.given.values
        wishes = tuple((key, said[key]) for key in said if key in ABOUT_MACHINES)
        key = (wishes, id(shape))
        found = self._required.get(key)
        if found is None:
            found = self._required[key] = required_of_entry(checked.entry, said, shape.needs)
        return found

    def _found(self, text: str) -> str:
        """Give the whole path of what a text names, if there is such a file; else the text."""
        if text not in self._whole:
            home = self._desk.environment.get("HOME", "~")
            path = self._desk.from_here(text.replace("~", home, 1) if text.startswith("~/") else text)
            self._whole[text] = path if os.path.exists(path) else text
        return self._whole[text]


def with_all(values: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """Give values with others at some dotted paths."""
    made = dict(values)
    for path, value in varied.items():
        into = made
        steps = path.split(".")
        for step in steps[:-1]:
            inner = into.get(step)
            into[step] = into = dict(inner) if type(inner) is dict else {}
        into[steps[-1]] = value
    return made
