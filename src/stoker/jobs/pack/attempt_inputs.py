"""Inputs in a job's arguments: paths of this machine in place of those of the submitting machine.

env:DATA        a program's variable
at:data/corpus  a path below a program's folder, where it is placed
arg:data        an argument that is a path
arg:inputs.1    of an argument that holds several paths, the second; repositories of the hub count, too
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from stoker.core.errors import BadInput
from stoker.core.job import contents_of
from stoker.engine.recipe import Recipe
from stoker.protocol.job_checks import ARG, AT, ENV

DATA = "data"
"""The argument of programs that has their data: by variable, or by the path at which it is placed."""


def with_inputs(
    recipe: Recipe, args: Mapping[str, Any], paths: Mapping[str, str], identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments with this machine's paths. An argument without a local path stays unchanged.

    `identity` is that of the job: what it has by content is an input.
    """
    made = dict(args)
    data = {where.partition(":")[2]: path for where, path in paths.items() if where.startswith((ENV, AT))}
    if data:
        made[DATA] = {**made.get(DATA, {}), **data}
    for name, value in args.items():
        own = {where: path for where, path in paths.items() if where.partition(".")[0] == f"{ARG}{name}"}
        if own:
            contents = {text for text, _ in contents_of(identity.get(name), value)}
            made[name] = _with_own(recipe, name, value, own, contents)
    return made


def is_input(text: str, contents: Container[str]) -> bool:
    """Return True if a text inside an argument counts as an input: a whole path, or one that is known by content."""
    return os.path.isabs(text) or text in contents


def without_runtime(args: dict[str, Any], leaves: Sequence[str]) -> dict[str, Any]:
    """Return the arguments with the runtime leaves of records (`trees.verbose`) beside the records.

    The rest of a record is then what the job's identity has of it, and can be compared without the recipe.
    """
    made = dict(args)
    for path in leaves:
        *steps, last = path.split(".")
        into = made
        for step in steps:
            into[step] = into = dict(into[step])
        made[path] = into.pop(last)
    return made


def with_runtime(recipe: Recipe, args: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `without_runtime`. Raises `BadInput` for a leaf that the recipe does not declare as a runtime argument."""
    made = dict(args)
    for path in [name for name in args if "." in name]:
        if path not in recipe.args.nested_runtime():
            raise BadInput(f"{path} is not a runtime argument of {recipe.name}", hint="submit the job again")
        *steps, last = path.split(".")
        into = made
        for step in steps:
            into[step] = into = dict(into.get(step, {}))
        into[last] = made.pop(path)
    return made


def places_of(recipe: Recipe, args: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the paths in a recipe's arguments with their places; a program's variables have names of their own."""
    for name, value in args.items():
        spec = recipe.args.specs.get(name)
        if spec is None or value is None:
            continue
        found = spec.type.paths(value)
        if found and isinstance(value, str):
            yield f"{ARG}{name}", value
        else:
            yield from ((f"{ARG}{name}.{number}", path) for number, path in enumerate(found))


def _with_own(recipe: Recipe, name: str, value: Any, own: Mapping[str, str], contents: Container[str]) -> Any:
    if isinstance(value, str):
        return own.get(f"{ARG}{name}", value)
    return recipe.args.specs[name].type.with_paths(value, _counted(f"{ARG}{name}", own, contents))


def _counted(prefix: str, own: Mapping[str, str], contents: Container[str]) -> Callable[[str], str]:
    count = -1

    def change(path: str) -> str:
        nonlocal count
        # A submitted path is whole; another text is a name, perhaps of a repository.
        if not is_input(path, contents):
            return path
        count += 1
        return own.get(f"{prefix}.{count}", path)

    return change
