"""A fleet's job again with other values: the same code, data and environment, all of which the coordinator has.

It is a new job, unless only such values differ that do not change its result (`memory`, `timeout`): then it is the same
one, with other requirements.

`settings_to_change` needs the job's spec alone. `RepeatBuilder` makes the spec of the new job. Values are checked as
those of any request are, and no file is read: arguments that name files of the submitting machine can't be changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.config.overrides import Override, OverrideKind, read_overrides
from stoker.config.sweep import AxisValue
from stoker.config.typed_values import read_choice
from stoker.config.values import fill_text, text_of
from stoker.core.device import Capacity
from stoker.core.errors import BadInput, Diagnostic, InvalidArgs, StokerError
from stoker.core.frozen import changed, fields_of, frozen
from stoker.core.job import JobSpec, contents_of, job_id
from stoker.core.machine import Requirements
from stoker.core.text import did_you_mean_path, parse_duration
from stoker.engine.args import ArgSpec
from stoker.engine.program import places_in
from stoker.engine.recipe import Recipe
from stoker.jobs.builder import JobBuilder, check_name
from stoker.jobs.manifest_checks import RecipeForm
from stoker.jobs.pack.attempt_inputs import with_runtime, without_runtime
from stoker.jobs.program import FOUND, RECIPE, ProgramFiles, ProgramWords, flat, shown_argv, split
from stoker.jobs.program_specs import FOUND_ANYWHERE, unfilled_words
from stoker.jobs.recipe_specs import with_all
from stoker.jobs.requirements import PlanShapes, required_of_needs, required_of_program
from stoker.jobs.sent_manifest import may_name_file
from stoker.jobs.trial_settings import is_secret
from stoker.protocol.job_checks import RANKS, is_found_at
from stoker.protocol.job_messages import checked_spec

_OF_THE_FOLDER = frozenset({*FOUND, "data", "inputs", "python"}) - {"params"}
"""Arguments of a program that belong to its code, data and environment."""
_AS_TYPED = re.compile(r"[\w@%+=:./-]*(?:\{[\w.?:/-]+\}[\w@%+=:./-]*)*", re.ASCII)
_SETS = frozenset({OverrideKind.CHANGE, OverrideKind.ADD, OverrideKind.FORCE})


@frozen
class RepeatRequest:
    """What is to be different."""

    changes: tuple[str, ...] = ()
    """`key=value`, as on a command line."""
    words: tuple[str, ...] | None = None
    """Of a program: its words, unfilled; None: those that it has."""
    name: str = ""
    """Empty: as the job is called."""


@frozen
class RepeatedJob:
    """The new job."""

    spec: JobSpec
    notes: tuple[str, ...] = ()


def settings_to_change(spec: JobSpec) -> dict[str, str]:
    """Return the values of a job that can be changed: dotted name → text, which the grammar of overrides reads back."""
    fixed = _fixed_names(spec)
    values = spec.args
    if spec.recipe == RECIPE:
        params = spec.args.get("params")
        values = {name: value for name, value in spec.args.items() if name not in FOUND}
        values = {**(params if isinstance(params, dict) else {}), **values}
    return {
        path: text_of(value)
        for path, value in flat(values).items()
        if path.partition(".")[0] not in fixed and not is_secret(spec.recipe, path)
    }


def program_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the words of a job's program, unfilled if these were kept; none for a recipe."""
    if spec.recipe != RECIPE:
        return ()
    return spec.words or tuple(shown_argv([str(word) for word in spec.args.get("argv", ())]))


def command_line(words: Sequence[str]) -> str:
    """Return words as they are typed in a shell, which leaves `{lr}` as it is."""
    return " ".join(word if _AS_TYPED.fullmatch(word) else shlex.quote(word) for word in words)


def words_of_line(text: str) -> tuple[str, ...]:
    """Return the words of a command line. Raises `InvalidArgs` if it can't be split."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        fault = Diagnostic("program", f"can't be split into words: {str(error).lower()}", "close the quotes")
        raise InvalidArgs(str(fault), faults=(fault,)) from None


def name_again(spec: JobSpec) -> str:
    """Return what the new job is called if nothing else is asked for: of a trial `resnet-3`, else as before."""
    return f"{spec.name}-{spec.number}" if spec.number else spec.name


def repeat_line(ref: str, request: RepeatRequest) -> str:
    """Return the command that does the same."""
    words = ["stoker", "submit", "--again", ref, *request.changes]
    if request.name:
        words += ["--name", request.name]
    if request.words is not None:
        words += ["--", *request.words]
    return command_line(words)


def differences(before: JobSpec, after: JobSpec) -> tuple[str, ...]:
    """Return what two specs differ in, as lines: `lr: 0.1 → 0.2`."""
    was, now = settings_to_change(before), settings_to_change(after)
    lines = [
        f"{path}: {was.get(path, 'not set')} → {now.get(path, 'not set')}"
        for path in dict.fromkeys((*was, *now))
        if was.get(path) != now.get(path)
    ]
    programs = [command_line(program_words(one)) for one in (before, after)]
    return (*lines, *([f"program: {programs[0]} → {programs[1]}"] if programs[0] != programs[1] else []))


@frozen
class RepeatBuilder:
    """Makes the specs of such jobs."""

    builder: JobBuilder
    shapes: PlanShapes

    def repeat(self, spec: JobSpec, request: RepeatRequest) -> RepeatedJob:
        """Return the new job. Raises `InvalidArgs` with every fault, `BadInput` if nothing is different."""
        recipe = self.builder.catalogue.load(spec.recipe)
        form = RecipeForm(recipe)
        if request.name:
            check_name(request.name)
        if request.words is not None and spec.recipe != RECIPE:
            raise BadInput(f"{spec.shown} runs a recipe, not a program", hint="leave the words after -- out")
        chosen, faults = _chosen(spec, form, request)
        changed_values: dict[str, Any] = {path: value for path, (value, _) in chosen.items()}
        if spec.recipe == RECIPE:
            args, found, notes = self._program_args(spec, form, request, chosen, changed_values)
        else:
            args, found = form.filled(with_all(with_runtime(recipe, spec.args), changed_values))
            notes = ()
        faults += found
        if faults:
            raise _refused(form, faults)
        requirements, more = self._requirements(recipe, spec, args)
        identity = _identity(recipe, spec, args)
        stored = without_runtime(args, form.nested_runtime) if form.nested_runtime else args
        if spec.recipe == RECIPE:
            stored = {name: value for name, value in args.items() if name in spec.args or name != "gpu_backend"}
        new_id = job_id(
            recipe=spec.recipe,
            schema_version=recipe.version,
            args=identity,
            mode=spec.mode,
            seed=spec.seed,
            split_recipe=spec.split_recipe,
            train_hosts=spec.train_hosts,
        )
        timeout = args.get("timeout") if spec.recipe == RECIPE else None
        is_other_timeout = timeout and timeout != spec.args.get("timeout")
        fields = {
            **fields_of(spec),
            "id": new_id,
            "schema_version": recipe.version,
            "args": stored,
            "identity": identity,
            "requirements": requirements,
            "timeout_s": parse_duration(str(timeout)) if is_other_timeout else spec.timeout_s,
            "words": (),
        }
        if spec.recipe == RECIPE:
            fields |= unfilled_words(_words_of(request, spec), args["argv"])
        if new_id != spec.id:
            fields |= {"name": request.name or name_again(spec), "number": 0, "label": "", "point": {}}
        new = checked_spec(**fields)
        if new_id == spec.id and not differences(spec, new):
            hint = f"change a value; as it is it starts again by: stoker jobs requeue {shlex.quote(spec.shown)}"
            raise BadInput(f"nothing differs from {spec.shown}", hint=hint)
        return RepeatedJob(spec=new, notes=(*notes, *more))

    def _program_args(
        self,
        spec: JobSpec,
        form: RecipeForm,
        request: RepeatRequest,
        chosen: Mapping[str, tuple[Any, str]],
        values: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[Diagnostic], tuple[str, ...]]:
        """Return a program's arguments with its places filled, what is wrong, and notes."""
        old = dict(spec.args)
        declared = form.schema.leaves
        before = old.pop("params", None) or {}
        program = _words_of(request, spec)
        settings, params = split(with_all({**before, **old}, values), {*declared, *old})
        faults = program.faults(flat(params), declared)
        if faults:
            return {}, faults, ()
        texts = {**_typed_texts(spec, before), **{path: text for path, (_, text) in chosen.items()}}
        args = program.args(settings, params, texts, ProgramFiles(spec.folder, ()))
        # Its own files and where its metrics are read from are as they were.
        args |= {name: old[name] for name in ("code", "folder", "metrics", "workspace") if name in old}
        checked, found = form.recipe.args.check({**args, **FOUND_ANYWHERE, "code": old.get("code", {})}, owner="")
        return checked, list(found), tuple(program.remarks(flat(params), declared))

    def _requirements(
        self, recipe: Recipe, spec: JobSpec, args: Mapping[str, Any]
    ) -> tuple[Requirements, tuple[str, ...]]:
        """Return what the job requires: other than before only where its arguments make a difference."""
        old = {**args, **with_runtime(recipe, spec.args)}
        if spec.recipe == RECIPE:
            # Its settings are judged as a whole, such as shares without vram.
            _refuse_faults(recipe, self.shapes.of(recipe, args, tuple(args)).faults)
            return _moved(spec.requirements, required_of_program(old), required_of_program(args)), ()
        try:
            before = self.shapes.of(recipe, old, tuple(old))
            if before.faults:
                return spec.requirements, (_UNCOMPILED,)
            after = self.shapes.of(recipe, args, tuple(args))
        except (StokerError, OSError):
            return spec.requirements, (_UNCOMPILED,)
        _refuse_faults(recipe, after.faults)
        gpus = (old.get("gpus"), args.get("gpus"))
        needed = [required_of_needs(one.needs, None, count) for one, count in zip((before, after), gpus, strict=True)]
        return _moved(spec.requirements, *needed), ()


_UNCOMPILED = "its stages were not compiled, for its files are not here: the machine that runs it checks them"


def _moved(required: Requirements, before: Requirements, after: Requirements) -> Requirements:
    """Return requirements with the fields that differ between two others."""
    old = fields_of(before)
    return changed(required, **{name: value for name, value in fields_of(after).items() if value != old[name]})


def _words_of(request: RepeatRequest, spec: JobSpec) -> ProgramWords:
    argv = program_words(spec) if request.words is None else request.words
    if not argv or not argv[0]:
        raise BadInput("a program has at least one word", hint="such as python train.py --lr {lr}")
    metrics = tuple(map(str, spec.args.get("metrics") or ()))
    return ProgramWords(argv=argv, folder=spec.folder, capacity=Capacity(cpu=1), metrics=metrics)


def _chosen(
    spec: JobSpec, form: RecipeForm, request: RepeatRequest
) -> tuple[dict[str, tuple[Any, str]], list[Diagnostic]]:
    """Return the changed values by dotted name, each with its text, and every fault."""
    overrides, faults = read_overrides(request.changes)
    fixed = _fixed_names(spec)
    found: dict[str, tuple[Any, str]] = {}
    for one in overrides:
        fault = _fault_of(one, spec, fixed) or _unknown(one, spec, form)
        value = one.value
        if fault is not None or not isinstance(value, AxisValue):
            faults += [fault] if fault is not None else []
            continue
        leaf = form.schema.leaves.get(one.path)
        try:
            found[one.path] = (value.value if leaf is None else read_choice(value, leaf), value.text)
        except ValueError as error:
            says = leaf.says if leaf is not None else ""
            faults.append(Diagnostic(one.path, str(error), f"{one.path} is {says}" if says else ""))
    return found, faults


def _fault_of(one: Override, spec: JobSpec, fixed: frozenset[str]) -> Diagnostic | None:
    """Return why an override can't be applied to a job that is on the fleet."""
    value = one.value
    if one.kind not in _SETS or one.names_group:
        return Diagnostic(one.path, f"{one.text} sets no value", "KEY=VALUE")
    if not isinstance(value, AxisValue):
        return Diagnostic(one.path, f"{one.text} is a sweep; this is one job", "one value; [a,b] is a list")
    if value.refers:
        return Diagnostic(one.path, f"{one.text} refers to another value", "type the value")
    top = one.path.partition(".")[0]
    if top in fixed:
        return Diagnostic(
            one.path,
            f"{top} names code, data or environment, which stay as they were submitted",
            "`stoker submit` in the job's folder sends others",
        )
    if "\0" in value.text or (spec.recipe != RECIPE and may_name_file(value.text)):
        return Diagnostic(one.path, f"{value.text!r} may name a file, and none is sent", "`stoker submit` sends files")
    return None


def _unknown(one: Override, spec: JobSpec, form: RecipeForm) -> Diagnostic | None:
    if spec.recipe == RECIPE or one.path in form.schema.leaves or one.path.partition(".")[0] in form.recipe.args.specs:
        return None
    hint = did_you_mean_path(one.path, list(form.schema.leaves))
    return Diagnostic(one.path, f"{form.name} has no argument {one.path!r}", hint)


def _fixed_names(spec: JobSpec) -> frozenset[str]:
    """Return the arguments that name files, folders or repositories, by what is known of the job alone."""
    if spec.recipe == RECIPE:
        return _OF_THE_FOLDER
    inputs = (one.where.partition(":")[2].partition(".")[0] for one in spec.inputs)
    named = (
        name
        for name, wanted in spec.identity.items()
        if any(contents_of(wanted, spec.args.get(name))) or is_found_at(spec.args.get(name), wanted)
    )
    return frozenset((*inputs, *named))


def _identity(recipe: Recipe, spec: JobSpec, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the new job's id: that of the old one, with the arguments that differ."""
    old = with_runtime(recipe, spec.args)
    identity = dict(spec.identity)
    for name, arg in recipe.args.specs.items():
        if name in args and not arg.is_runtime and not (name in old and _is_same(arg, old[name], args[name])):
            identity[name] = arg.type.identity(args[name], _no_file)
    if spec.recipe == RECIPE and args.get(RANKS) != spec.args.get(RANKS):
        identity.pop(RANKS, None)
        identity |= {RANKS: args[RANKS]} if args.get(RANKS) is not None else {}
    return identity


def _is_same(arg: ArgSpec, stored: Any, value: Any) -> bool:
    """Return True if a value is the stored one, which has lists in place of tuples."""
    try:
        return bool(arg.check(stored) == value)
    except ValueError:
        return False


def _no_file(path: str) -> str:
    raise BadInput(f"{path} names a file, and none is sent", hint="`stoker submit` in the job's folder sends files")


def _typed_texts(spec: JobSpec, params: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as they were typed (1e-3 for 0.001), as far as the filled words show it."""
    found: dict[str, str] = {}
    known = flat(params)
    for word, filled in zip(spec.words, shown_argv([str(one) for one in spec.args.get("argv", ())]), strict=False):
        places = list(places_in(word))
        if len(places) != 1 or places[0] not in known:
            continue
        place = f"{{{places[0]}}}"
        head, _, tail = word.partition(place)
        match = re.fullmatch(f"{re.escape(head)}(.*){re.escape(tail)}", filled, re.DOTALL)
        if match and match[1] != fill_text(known[places[0]]):
            found[places[0]] = match[1]
    return found


def _refuse_faults(recipe: Recipe, faults: Sequence[Diagnostic]) -> None:
    if faults:
        raise _refused(RecipeForm(recipe), faults)


def _refused(form: RecipeForm, faults: Iterable[Diagnostic]) -> InvalidArgs:
    found = tuple(dict.fromkeys(faults))
    message = str(found[0]) if len(found) == 1 else f"{len(found)} errors in the arguments of {form.name}"
    return InvalidArgs(message, faults=found, hint=f"stoker recipes show {form.name}")
