"""Inputs put into a job's arguments: paths of this machine in the place of those of whoever submitted it.

env:DATA        a program's variable
arg:data        an argument that is a path
arg:inputs.1    of an argument that holds several paths, the second
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.plan.recipe import Recipe

ENV, ARG = "env:", "arg:"
DATA = "data"
"""The argument of programs that holds their data's variables."""


def with_inputs(recipe: Recipe, args: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Give arguments that name this machine's paths. Where nothing lies here for one, it stays as it was."""
    made = dict(args)
    variables = {where.removeprefix(ENV): path for where, path in paths.items() if where.startswith(ENV)}
    if variables:
        made[DATA] = {**made.get(DATA, {}), **variables}
    for name, value in args.items():
        own = {where: path for where, path in paths.items() if where.partition(".")[0] == f"{ARG}{name}"}
        if own:
            made[name] = _with_own(recipe, name, value, own)
    return made


def places_of(recipe: Recipe, args: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give where in a recipe's arguments paths stand, and the paths; a program's variables have words of their own."""
    for name, value in args.items():
        spec = recipe.args.specs.get(name)
        if spec is None or value is None:
            continue
        found = spec.type.paths(value)
        if found and isinstance(value, str):
            yield f"{ARG}{name}", value
        else:
            yield from ((f"{ARG}{name}.{number}", path) for number, path in enumerate(found))


def _with_own(recipe: Recipe, name: str, value: Any, own: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return own.get(f"{ARG}{name}", value)
    return recipe.args.specs[name].type.with_paths(value, _counted(f"{ARG}{name}", own))


def _counted(prefix: str, own: Mapping[str, str]) -> Callable[[str], str]:
    count = -1

    def change(path: str) -> str:
        nonlocal count
        count += 1
        return own.get(f"{prefix}.{count}", path)

    return change
