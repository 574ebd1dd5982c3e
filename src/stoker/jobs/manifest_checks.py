"""A manifest's jobs against what their recipes take: values, sweeps, seeds and modes, without a look at any file.

Every fault is noted where it stands. This is all that `stoker check` does with a job, and the first thing that
submitting does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stoker.config.fields import FileDiagnostics, ParsedMap, shown
from stoker.config.manifest_file import HostEntry, JobEntry, Manifest, ParsedJobEntry
from stoker.config.positions import LocatedValue, fault_at
from stoker.config.sweep import Sweep, axes_of, paths_of, size
from stoker.config.typed_values import typed
from stoker.config.values import Schema
from stoker.core.device import Capacity
from stoker.core.errors import Diagnostic, StokerError, UnknownRecipe
from stoker.core.text import did_you_mean_path
from stoker.engine.args import ArgSpec, RecordType
from stoker.engine.catalogue import Catalogue
from stoker.engine.recipe import Recipe
from stoker.jobs.program import RECIPE, ProgramWords, flat

_MOST_SUGGESTED = 100


class RecipeForm:
    """What one recipe takes, for very many jobs that each set little: defaults are filled in once.

    Whatever is given is checked by its declared type, exactly as `ArgsSchema.check` does it; a test holds the two
    together.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.name = recipe.name
        self.schema: Schema = recipe.args.declared()
        self.base, _ = recipe.args.check({}, owner="")
        """Every argument that has a default, with it."""
        specs = recipe.args.specs
        self._required = [spec for name, spec in specs.items() if name not in self.base]
        self._with_paths = [name for name, value in self.base.items() if specs[name].type.paths(value)]
        self.nested_runtime = recipe.args.nested_runtime()
        """Leaves of records that are no part of the identity."""
        self._own: dict[tuple[str, ...], list[str]] = {}
        self._suggested = 0

    def takes(self, name: str) -> bool:
        """Return True if it has an argument of that name at its top."""
        return name in self.recipe.args.specs

    def filled(self, hyper: Mapping[str, Any], swept: Iterable[str] = ()) -> tuple[dict[str, Any], list[Diagnostic]]:
        """Return all values, defaults filled, and all faults, `where` being a dotted path. Swept values come later."""
        values = dict(self.base)
        faults: list[Diagnostic] = []
        specs = self.recipe.args.specs
        given = _nested(hyper, self.schema.leaves) if "." in "".join(hyper) else hyper
        for name, value in given.items():
            spec = specs.get(name)
            if spec is None:
                faults.append(Diagnostic(name, f"{self.name} has no argument {name!r}", self.suggestion(name)))
            elif isinstance(spec.type, RecordType):
                values[name], found = spec.type.faults_in(value, name)
                faults += found
            else:
                try:
                    values[name] = spec.check(value)
                except ValueError as error:
                    faults.append(Diagnostic(name, str(error), _help(spec)))
        if self._required:
            faults += self._missing(given, swept)
        return values, faults

    def suggestion(self, name: str) -> str:
        """Return what may be meant by a name that is no argument's."""
        # Each takes milliseconds among many names.
        self._suggested += 1
        if self._suggested > _MOST_SUGGESTED:
            return ""
        known = list(self.schema.leaves)
        aliases = {path: leaf.aliases for path, leaf in self.schema.leaves.items()}
        return did_you_mean_path(name, known, aliases) or (f"known: {', '.join(known)}" if known else "it takes none")

    def base_identity(self) -> dict[str, Any]:
        """Return what of the defaults belongs to every job's id; a path among them is of each job's own."""
        fixed = [name for name in self.base if name not in self._with_paths]
        return self.identity(self.base, fixed, _no_path)

    def own(self, names: tuple[str, ...]) -> list[str]:
        """Return which arguments a job that says these has of its own."""
        known = self._own.get(names)
        if known is None:
            known = self._own[names] = [*dict.fromkeys((*names, *self._with_paths))]
        return known

    def identity(
        self, values: Mapping[str, Any], names: Iterable[str], digest_of: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return what of some arguments belongs to a job's id, files as their digests."""
        specs = self.recipe.args.specs
        return {
            name: specs[name].type.identity(values[name], digest_of)
            for name in names
            if specs[name].is_identity(values[name])
        }

    def _missing(self, given: Mapping[str, Any], swept: Iterable[str]) -> Iterator[Diagnostic]:
        tops = {path.partition(".")[0] for path in swept}
        for spec in self._required:
            if spec.name not in given and spec.name not in tops:
                yield Diagnostic("", f"{self.name} needs {spec.name} ({spec.type.describe()})", spec.help)


def _no_path(_path: str) -> str:
    return ""


def _help(spec: ArgSpec) -> str:
    return f"{spec.name}: {spec.help}" if spec.help else f"{spec.name} is {spec.type.describe()}"


def _nested(hyper: Mapping[str, Any], leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by their steps where these are written in one: `"model.depth" = 3`."""
    nested: dict[str, Any] = {}
    for name, value in hyper.items():
        steps = name.split(".") if name in leaves else [name]
        into = nested
        for step in steps[:-1]:
            inner = into.get(step)
            into[step] = into = dict(inner) if isinstance(inner, Mapping) else {}
        before = into.get(steps[-1])
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            into[steps[-1]] = {**before, **value}
        else:
            into[steps[-1]] = value
    return nested


OLDER_MODES = ("oracle", "realistic")
"""Ways of training that manifests of the older sort name, for recipes that do not declare their own."""
_OF_PROGRAMS = ("data", "outputs", "env", "python", "code", "include")


_BESIDE_HYPER = ("seed", "ranks")
"""Arguments of a recipe that a job may say beside `hyper`."""
_TELLING_APART = ("split_recipe", "train_hosts")


class CheckedJob(NamedTuple):
    """A job whose values were looked at, whatever its files are."""

    job: ParsedJobEntry
    entry: JobEntry
    form: RecipeForm
    values: Mapping[str, Any]
    """A recipe's arguments, defaults filled; of a program its own parameters."""
    given_names: tuple[str, ...]
    """Those of `values` that the job says itself."""
    sweep: Sweep | None
    """Its choices read by their declared types."""
    mode: str = ""
    """One that is not among the values already."""
    program: ProgramWords | None = None
    is_good: bool = True
    """Whether nothing was wrong; else `values` has defaults where something was."""


class JobChecks:
    """Checks jobs one by one; each recipe is loaded once."""

    def __init__(self, catalogue: Catalogue, folder: str = "") -> None:
        self.notes: dict[str, None] = {}
        """What a person should know, each once."""
        self._catalogue = catalogue
        self._folder = folder
        self._forms: dict[str, RecipeForm] = {}

    def check(self, job: ParsedJobEntry, reading: FileDiagnostics) -> CheckedJob | None:
        """Note a job's faults, and return it with its values; None if its recipe is unknown."""
        entry = job.entry
        if entry is None:
            return None
        before = reading.count
        if entry.command:
            checked = self._check_program(job, entry, reading)
        elif (form := self._form(job, entry, reading)) is not None:
            checked = self._check_recipe(job, entry, form, reading)
        else:
            return None
        return checked if reading.count == before else checked._replace(is_good=False)

    def form_of(self, word: str) -> RecipeForm:
        """Return what a recipe takes; raises what the catalogue raises."""
        form = self._forms.get(word)
        if form is None:
            form = self._forms[word] = RecipeForm(self._catalogue.load(word))
        return form

    def _form(self, job: ParsedJobEntry, entry: JobEntry, reading: FileDiagnostics) -> RecipeForm | None:
        word = entry.recipe or entry.model
        found = self._forms.get(word)
        if found is not None or not word:
            return found
        try:
            return self.form_of(word)
        except StokerError as error:
            # Where all recipes are known, a name that is none was noted when the file was read.
            if self._catalogue.troubles or not isinstance(error, UnknownRecipe):
                key = "recipe" if entry.recipe else "model"
                _refuse(job.given, key, reading, str(error), error.hint)
            return None

    def _check_recipe(
        self, job: ParsedJobEntry, entry: JobEntry, form: RecipeForm, reading: FileDiagnostics
    ) -> CheckedJob:
        given, hyper, mode = job.given, entry.hyper, ""
        swept = paths_of(job.sweep) if job.sweep is not None else ()
        for key in _OF_PROGRAMS:
            if key in given.values:
                _refuse(given, key, reading, f"{form.name} takes no {key}: only a command does", "leave it out")
        for key in _BESIDE_HYPER:
            if getattr(entry, key) is not None:
                hyper = self._with(key, given, form, hyper, swept, reading)
        if entry.mode:
            hyper, mode = self._with_mode(given, entry, form, hyper, reading)
        for key in _TELLING_APART:
            if given.values.get(key):
                self._remark(form, key)
        values, faults = form.filled(hyper, swept)
        for fault in faults:
            note_value_fault(given, fault, reading)
        sweep = self._check_sweep(job, form, reading) if job.sweep is not None else None
        return CheckedJob(
            job=job,
            entry=entry,
            form=form,
            values=values,
            given_names=_tops(tuple(hyper), swept),
            sweep=sweep,
            mode=mode,
        )

    def _with(
        self,
        key: str,
        given: ParsedMap,
        form: RecipeForm,
        hyper: Mapping[str, Any],
        swept: Sequence[str],
        reading: FileDiagnostics,
    ) -> Mapping[str, Any]:
        """Return the arguments with one that a job may say beside them."""
        if not form.takes(key):
            _refuse(given, key, reading, f"{form.name} takes no {key}", "leave it out")
        elif key in hyper or key in swept:
            where = "hyper" if key in hyper else "sweep"
            _refuse(given, key, reading, f"{key} stands in {where} and beside it", "leave out one")
        else:
            return {**hyper, key: given.get(key)}
        return hyper

    def _with_mode(
        self, given: ParsedMap, entry: JobEntry, form: RecipeForm, hyper: Mapping[str, Any], reading: FileDiagnostics
    ) -> tuple[Mapping[str, Any], str]:
        if form.takes("mode"):
            return {"mode": entry.mode, **hyper}, ""
        if entry.mode not in OLDER_MODES:
            message = f"job {entry.name}: there is no mode {shown(entry.mode)}; there are {', '.join(OLDER_MODES)}"
            _refuse(given, "mode", reading, message, f"{form.name} has no ways of its own to choose from")
        self._remark(form, "mode")
        return hyper, entry.mode

    def _remark(self, form: RecipeForm, key: str) -> None:
        if not form.takes(key):
            self.notes[f"{form.name} has no argument {key}: it tells jobs apart, and changes nothing else"] = None

    def _check_sweep(self, job: ParsedJobEntry, form: RecipeForm, reading: FileDiagnostics) -> Sweep | None:
        sweep = job.sweep
        if sweep is None:
            return None
        key = f"{job.given.key}.sweep"
        for axis in axes_of(sweep):
            if axis.path not in form.schema.leaves and axis.origin is not None:
                message = f"{form.name} has no argument {axis.path!r}"
                hint = form.suggestion(axis.path)
                reading.add([fault_at(axis.origin, message, hint=hint, key=f"{key}.{axis.path}")])
        made, faults = typed(sweep, form.schema)
        reading.add([_below(fault, key) for fault in faults])
        return made

    def _check_program(self, job: ParsedJobEntry, entry: JobEntry, reading: FileDiagnostics) -> CheckedJob:
        given = job.given
        swept = paths_of(job.sweep) if job.sweep is not None else ()
        params: dict[str, Any] = dict(entry.hyper)
        for key, value in (("seed", entry.seed), ("mode", entry.mode or None)):
            if value is None:
                continue
            if key in params or key in swept:
                _refuse(given, key, reading, f"{key} stands in hyper or sweep and beside it", "leave out one")
            params[key] = value
        program = ProgramWords(argv=entry.command, folder=self._folder, capacity=Capacity(cpu=1))
        paths = [*flat(params), *swept]
        for fault in program.faults(paths):
            hint = fault.hint if "before --" not in fault.hint else "hyper or sweep gives it one"
            _refuse(given, "command", reading, f"{fault.where} {fault.message}", hint)
        for remark in program.remarks(paths):
            self.notes[f"{entry.name}: {remark}"] = None
        form = self.form_of(RECIPE)
        return CheckedJob(
            job=job,
            entry=entry,
            form=form,
            values=params,
            given_names=tuple(params),
            sweep=job.sweep,
            mode=entry.mode,
            program=program,
        )


def check_values(
    catalogue: Catalogue, jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], reading: FileDiagnostics
) -> Manifest:
    """Note what is wrong with the values of a manifest's jobs; give the manifest."""
    checks = JobChecks(catalogue)
    firsts: dict[str, str] = {}
    for job in jobs:
        checked = checks.check(job, reading)
        if checked is not None and checked.is_good and checked.sweep is None:
            first = firsts.setdefault(_identity_text(checked), checked.entry.name)
            if first != checked.entry.name:
                refuse_same(checked, checked.entry.name, first, reading)
    reading.sort()
    return Manifest(jobs=tuple(job.entry for job in jobs if job.entry is not None), hosts=hosts)


def refuse_same(checked: CheckedJob, name: str, first: str, reading: FileDiagnostics) -> None:
    """Note that a job would have the id of an earlier one."""
    message = f"job {name} is the same as {first}: same recipe, same values"
    _refuse(checked.job.given, "name", reading, message, "leave out one, or give it another seed")


def _identity_text(checked: CheckedJob) -> str:
    """Return the part of a job that makes its id, files by their paths: equal texts mean equal ids."""
    entry, form = checked.entry, checked.form
    if checked.program is not None:
        data = sorted(entry.data.items())
        own: Sequence[Any] = (entry.command, sorted(flat(checked.values).items()), data, entry.outputs, entry.ranks)
        own = (*own, str(entry.code))
    else:
        values = form.identity(checked.values, form.own(checked.given_names), str)
        base = form.identity(form.base, [name for name in values if name in form.base], str)
        own = sorted((name, value) for name, value in values.items() if name not in base or value != base[name])
    return repr((form.name, own, checked.mode, entry.split_recipe, entry.train_hosts))


def count_of(sweep: Sweep | None) -> int:
    """Return how many jobs a sweep makes."""
    return 1 if sweep is None else size(sweep)


def note_value_fault(given: ParsedMap, fault: Diagnostic, reading: FileDiagnostics) -> None:
    """Note a fault in a job's values, as near to where it stands as the file says it."""
    path = fault.where
    top = path.partition(".")[0]
    if top in (*_BESIDE_HYPER, "mode") and given.says(top) and top not in given.get("hyper", {}):
        reading.refuse(given.at(top), f"{given.key}.{top}", fault.message, fault.hint)
        return
    node, is_there = _find(given.at("hyper"), path) if given.says("hyper") else (given.node, False)
    key = f"{given.key}.hyper.{path}" if path else given.key
    is_unknown = is_there and "has no argument" in fault.message
    reading.refuse(node, key, fault.message, fault.hint, at_key=is_unknown)


def _find(node: LocatedValue, path: str) -> tuple[LocatedValue, bool]:
    """Return the value at a dotted path, or the map where the way to it ends."""
    if not path:
        return node, False
    inner: Any = node.value
    if type(inner) is dict and path in inner:
        return inner[path], True
    for step in path.split("."):
        if type(node.value) is not dict or step not in node.value:
            return node, False
        node = node.value[step]
    return node, True


def _refuse(given: ParsedMap, key: str, reading: FileDiagnostics, message: str, hint: str) -> None:
    reading.refuse(given.at(key), f"{given.key}.{key}", message, hint)


def _below(fault: Diagnostic, key: str) -> Diagnostic:
    where, colon, path = fault.where.rpartition(": ")
    return Diagnostic(f"{where}{colon}{key}.{path}", fault.message, fault.hint, fault.shown)


@lru_cache(maxsize=1024)
def _tops(hyper: tuple[str, ...], swept: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.partition(".")[0] for path in (*hyper, *swept)))
