"""From an adapters file to a job: each of its adapters becomes a trial, with its own label and checkpoints.

The recipe that trains one adapter says what is right. What it refuses, also when its plan is made (a base that isn't
there, a rank that is too large), is told with the file's line and key, all of it at once, together with what is wrong
in the words that stand beside the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.config.adapters_file import (
    WHOSE_TURN,
    AdapterEntry,
    AdaptersContext,
    ParsedAdapter,
    ParsedAdaptersFile,
    argument_of,
    read_adapters_into,
)
from stoker.config.fields import FileDiagnostics
from stoker.config.positions import ConfigLayer
from stoker.config.values import Schema, found, same, with_value
from stoker.core.digests import encode
from stoker.core.errors import (
    Damaged,
    Diagnostic,
    InvalidAdapters,
    InvalidArgs,
    InvalidInput,
    MissingRepoFiles,
    StokerError,
)
from stoker.core.frozen import changed, frozen
from stoker.core.text import is_job_name
from stoker.engine.plan import Plan
from stoker.engine.recipe import Recipe
from stoker.jobs.build_context import CompiledJob, JobCompiler, UncompiledTrial
from stoker.jobs.request import given_twice, read_all, swept_lists

RECIPE = "language/lora"
"""What trains one adapter."""
BUNDLED_DATA = ("sums", "chats", "lines")
"""Examples that the recipe brings with it."""
_NAME = "adapters"
_TYPED = (ConfigLayer.ENVIRONMENT, ConfigLayer.OVERRIDE)
_NOT_COMPARED = frozenset({"label", "checkpoints", "adapter_index"})


@frozen
class _Typed:
    """What was said beside the file."""

    values: Mapping[str, Any]
    """By argument."""
    notes: tuple[str, ...]


def order_adapters(
    desk: JobCompiler, path: str, words: Sequence[str], *, shown: str = "", name: str = ""
) -> CompiledJob:
    """Take an order for the adapters of a file, called `shown` in what is said about it.

    `words` are what holds for all of them unless the file says something else. Raises `InvalidAdapters` with everything
    that is wrong.
    """
    recipe = desk.catalogue.load(RECIPE)
    schema = recipe.args.declared()
    wrong: InvalidInput | None = None
    typed = _Typed(values={}, notes=())
    try:
        typed = _typed(desk, words, schema)
    except InvalidInput as error:
        wrong = error
        # Whatever they were meant to say, the file does not lack it.
        typed = _Typed(values={"base": None}, notes=())
    making = _Making(desk, recipe, typed, is_whole=wrong is None)
    around = around_here(schema, typed.values)
    try:
        read_adapters_into(making.make, shown or path, path, around)
    except InvalidAdapters as error:
        error.lacks = making.lacks
        raise _joined(wrong, error) if wrong is not None else error from None
    if wrong is not None:
        raise wrong
    order = desk.order_trials(recipe, making.made, making.plans, name=name or name_of(path))
    return changed(order, notes=(*typed.notes, *making.notes))


def around_here(schema: Schema, given: Mapping[str, Any] | None = None) -> AdaptersContext:
    """Return what there is to know beside an adapters file, where this schema is the recipe's."""
    return AdaptersContext(schema=schema, data=BUNDLED_DATA, given=given)


def name_of(path: str) -> str:
    """Return what a file's job is called unless told."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return stem if is_job_name(stem) else _NAME


@frozen
class _Checked:
    """An adapter that can be trained."""

    args: dict[str, Any]
    plan: Plan


@frozen
class _Refused:
    """An adapter that can't be trained as it stands; why, is noted."""

    lacks: tuple[MissingRepoFiles, ...]
    """What fetching may mend, if that is all that is wrong with it."""


class _Making:
    """One file on its way to trials."""

    def __init__(self, desk: JobCompiler, recipe: Recipe, typed: _Typed, *, is_whole: bool) -> None:
        self.made: list[UncompiledTrial] = []
        self.plans: list[Plan] = []
        self.notes: list[str] = []
        self.lacks: tuple[MissingRepoFiles, ...] = ()
        """What fetching may mend, if nothing else is wrong."""
        self._lacking = 0
        """How many of the faults so far fetching may mend."""
        self._desk = desk
        self._recipe = recipe
        self._typed = typed
        self._is_whole = is_whole
        """Whether the words beside the file are right: without them nobody knows what an adapter is."""

    def make(self, whole: ParsedAdaptersFile, reading: FileDiagnostics) -> None:
        # Each time anew: a file with faults is read twice.
        self.made, self.plans, self.notes, self.lacks = [], [], [], ()
        if not self._is_whole:
            return
        lacks: dict[MissingRepoFiles, None] = {}
        self._lacking = 0
        shared = self._shared(whole)
        told: set[str] = set()
        first: dict[bytes, str] = {}
        for one in whole.adapters:
            if one.entry is None:
                continue
            before = reading.count
            checked = self._checked(one, one.entry, shared, whole, reading, told)
            if isinstance(checked, _Refused):
                lacks |= dict.fromkeys(checked.lacks)
                self._lacking += reading.count - before if checked.lacks else 0
                continue
            args, plan = checked.args, checked.plan
            identity = encode(self._recipe.args.identity(args, str))
            if (same_as := first.setdefault(identity, one.entry.label)) != one.entry.label:
                message = f"{one.entry.label} is the same as {same_as}: same data, same values"
                one.note("label", message, "leave out one, or give it another seed", reading)
                continue
            self.plans.append(plan)
            self.made.append(UncompiledTrial(number=one.entry.number, label=one.entry.label, point={}, args=args))
        points = _points([one.args for one in self.made])
        self.made = [changed(one, point=point) for one, point in zip(self.made, points, strict=True)]
        self._note_outdone(whole)
        if reading.count and not self.plans:
            self._look_at_base(shared, whole, reading, told)
        self.lacks = tuple(lacks) if self._lacking == reading.count else ()

    def _shared(self, whole: ParsedAdaptersFile) -> dict[str, Any]:
        """Return what holds for all: the top of the file, and over it what was typed."""
        shared = dict(whole.file.shared)
        base = shared.get("base")
        if type(base) is str:
            folder = os.path.join(os.path.dirname(whole.file.path), os.path.expanduser(base))
            shared["base"] = os.path.normpath(folder) if os.path.exists(folder) else base
        if "rank" in self._typed.values and "alpha" not in self._typed.values:
            shared.pop("alpha", None)
        return {**shared, **self._typed.values}

    def _checked(
        self,
        one: ParsedAdapter,
        entry: AdapterEntry,
        shared: Mapping[str, Any],
        whole: ParsedAdaptersFile,
        reading: FileDiagnostics,
        told: set[str],
    ) -> _Checked | _Refused:
        """Return an adapter's checked arguments and its plan; if something is wrong, it is noted."""
        own = {"data": entry.data, "checkpoints": entry.checkpoint, "label": entry.label}
        said = {**shared, **entry.values, **own, "adapter_index": entry.number - 1}
        values: dict[str, Any] = {}
        for path, value in said.items():
            values = with_value(values, path.split("."), value)
        args, faults = self._recipe.args.check(values, owner=self._recipe.name)
        lacks: tuple[MissingRepoFiles, ...] = ()
        if not faults:
            try:
                return _Checked(args=args, plan=self._desk.compile(self._recipe, args))
            except InvalidArgs as error:
                faults, lacks = list(error.faults), error.lacks
            except Damaged as error:
                faults = [Diagnostic(str(error.data.get("where", "")), str(error.data.get("why", error)), error.hint)]
        if lacks and reading.count > self._lacking and self._desk.surroundings.fetches():
            # It comes by itself once the rest is right.
            return _Refused(lacks=lacks)
        for fault in faults:
            self._note(fault, one, whole, reading, told)
        return _Refused(lacks=lacks)

    def _note(
        self, fault: Diagnostic, one: ParsedAdapter, whole: ParsedAdaptersFile, reading: FileDiagnostics, told: set[str]
    ) -> None:
        """Note a fault where the value stands: in the adapter, at the top of the file, or beside it, once."""
        argument = fault.where.removeprefix(f"{self._recipe.name}.")
        if argument in one.words or one.given.says(argument):
            one.note(argument, fault.message, fault.hint, reading)
        elif argument in whole.top.words or argument in self._typed.values:
            self._note_of_all(argument, fault, whole, reading, told)
        else:
            reading.refuse(one.given.node, one.given.key, f"{argument}: {fault.message}", fault.hint)
        told.add(str(fault))

    def _note_of_all(
        self, argument: str, fault: Diagnostic, whole: ParsedAdaptersFile, reading: FileDiagnostics, told: set[str]
    ) -> None:
        """Note a fault of what holds for all adapters, at the top of the file or beside it, once."""
        if str(fault) in told:
            return
        if argument in self._typed.values:
            reading.add([Diagnostic(f"{argument}=", fault.message, fault.hint)])
        else:
            whole.top.note(argument, fault.message, fault.hint, reading)

    def _look_at_base(
        self, shared: Mapping[str, Any], whole: ParsedAdaptersFile, reading: FileDiagnostics, told: set[str]
    ) -> None:
        """Note what is wrong with the base where no adapter came far enough to say so."""
        args, wrong = self._recipe.args.check({"base": shared.get("base")}, owner=self._recipe.name)
        if wrong:
            return
        try:
            self._desk.compile(self._recipe, args)
        except InvalidArgs as error:
            if error.lacks and self._desk.surroundings.fetches():
                return
            for fault in error.faults:
                if fault.where == f"{self._recipe.name}.base":
                    self._note_of_all("base", fault, whole, reading, told)
        except StokerError:
            return

    def _note_outdone(self, whole: ParsedAdaptersFile) -> None:
        """Say which typed words an adapter has an opinion of its own about: those are defaults."""
        for argument, value in self._typed.values.items():
            deaf = [one.label for one in whole.file.adapters if not same(one.values.get(argument, value), value)]
            if deaf:
                listed = ", ".join(deaf[:5]) + (f" and {len(deaf) - 5} more" if len(deaf) > 5 else "")
                says = "says its own" if len(deaf) == 1 else "say their own"
                self.notes.append(f"{argument} holds for adapters that say nothing else: {listed} {says}")


def _typed(desk: JobCompiler, words: Sequence[str], schema: Schema) -> _Typed:
    """Read what stands beside the file; a sweep is no part of it."""
    renamed = [_renamed(word) for word in words]
    composed, overrides = read_all(
        words=renamed,
        files=(),
        schema=_with_turns(schema),
        environment=desk.environment,
        folder=desk.folder,
        owner=RECIPE,
        program=None,
    )
    if composed.sweep is not None:
        hint = "; ".join(swept_lists(overrides, schema)) or (
            "one [[adapter]] for each; or without a file: stoker run language/lora with the same values"
        )
        fault = Diagnostic("", "the adapters of a file are not swept", hint)
        raise InvalidArgs(str(fault), faults=(fault,))
    paths = [path for path, stack in composed.origins.items() if stack[-1].origin.layer in _TYPED]
    of_one = [path for path in paths if path in ("data", *_NOT_COMPARED)]
    if of_one:
        faults = tuple(
            Diagnostic(path, "every adapter of the file has its own", "say it in the file") for path in of_one
        )
        raise InvalidArgs(str(faults[0]), faults=faults)
    return _Typed(
        values={path: found(composed.values, path.split(".")) for path in paths},
        notes=tuple(given_twice(overrides)),
    )


def _with_turns(schema: Schema) -> Schema:
    """Return a schema whose schedule, where it is refused, tells of whose turn it is, too: here it may say so."""
    declared = schema.leaves["schedule"]

    def read(text: str) -> Any:
        try:
            return declared.read(text)
        except ValueError as error:
            message = f"{error}; {WHOSE_TURN}"
            raise ValueError(message) from None

    return changed(schema, leaves={**schema.leaves, "schedule": changed(declared, read=read)})


def _renamed(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{argument_of(key, value)}{equals}{value}"


def _joined(typed: InvalidInput, file: InvalidInput) -> InvalidInput:
    found_all = (*typed.faults, *file.faults)
    return InvalidAdapters(
        f"{typed.count + file.count:,} faults in the words and in the file",
        faults=found_all,
        hint=file.hint,
        count=typed.count + file.count,
    )


def _points(args_of: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what varies among some arguments, and how, for each of them."""
    if not args_of:
        return []
    names = [
        name
        for name in args_of[0]
        if name not in _NOT_COMPARED and any(not same(one[name], args_of[0][name]) for one in args_of)
    ]
    return [{name: os.path.basename(one[name]) if name == "data" else one[name] for name in names} for one in args_of]
