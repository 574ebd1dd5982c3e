"""A recipe's arguments, made ready for very many jobs that each say little: defaults are filled in once.

Whatever is given is checked by its declared type, exactly as `ArgsSchema.check` does it; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stoker.config.schema import Schema
from stoker.model.faults import Fault
from stoker.model.suggest import did_you_mean_path
from stoker.plan.args import ArgSpec, RecordType
from stoker.plan.recipe import Recipe

_MOST_SUGGESTED = 100


class RecipeForm:
    """What one recipe takes."""

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
        """Say whether it has an argument of that name at its top."""
        return name in self.recipe.args.specs

    def filled(self, hyper: Mapping[str, Any], swept: Iterable[str] = ()) -> tuple[dict[str, Any], list[Fault]]:
        """Give all values, defaults filled, and all faults, `where` being a dotted path. What is swept comes later."""
        values = dict(self.base)
        faults: list[Fault] = []
        specs = self.recipe.args.specs
        given = _nested(hyper, self.schema.leaves) if "." in "".join(hyper) else hyper
        for name, value in given.items():
            spec = specs.get(name)
            if spec is None:
                faults.append(Fault(name, f"{self.name} has no argument {name!r}", self.suggestion(name)))
            elif isinstance(spec.type, RecordType):
                values[name], found = spec.type.faults_in(value, name)
                faults += found
            else:
                try:
                    values[name] = spec.check(value)
                except ValueError as error:
                    faults.append(Fault(name, str(error), _help(spec)))
        if self._required:
            faults += self._missing(given, swept)
        return values, faults

    def suggestion(self, name: str) -> str:
        """Give what may be meant by a name that is no argument's."""
        # Each takes milliseconds among many names, and nobody reads the hundredth.
        self._suggested += 1
        if self._suggested > _MOST_SUGGESTED:
            return ""
        known = list(self.schema.leaves)
        return did_you_mean_path(name, known) or (f"known: {', '.join(known)}" if known else "it takes none")

    def base_identity(self) -> dict[str, Any]:
        """Give what of the defaults belongs to every job's id; a path among them is of each job's own."""
        fixed = [name for name in self.base if name not in self._with_paths]
        return self.identity(self.base, fixed, _no_path)

    def own(self, names: tuple[str, ...]) -> list[str]:
        """Give which arguments a job that says these has of its own."""
        known = self._own.get(names)
        if known is None:
            known = self._own[names] = [*dict.fromkeys((*names, *self._with_paths))]
        return known

    def identity(
        self, values: Mapping[str, Any], names: Iterable[str], digest_of: Callable[[str], str]
    ) -> dict[str, Any]:
        """Give what of some arguments belongs to a job's id, files as their digests."""
        specs = self.recipe.args.specs
        return {
            name: specs[name].type.identity(values[name], digest_of) for name in names if not specs[name].is_runtime
        }

    def _missing(self, given: Mapping[str, Any], swept: Iterable[str]) -> Iterator[Fault]:
        tops = {path.partition(".")[0] for path in swept}
        for spec in self._required:
            if spec.name not in given and spec.name not in tops:
                yield Fault("", f"{self.name} needs {spec.name} ({spec.type.describe()})", spec.help)


def _no_path(_path: str) -> str:
    return ""


def _help(spec: ArgSpec) -> str:
    return f"{spec.name}: {spec.help}" if spec.help else f"{spec.name} is {spec.type.describe()}"


def _nested(hyper: Mapping[str, Any], leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Give values by their steps where these are written in one: `"model.depth" = 3`."""
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
