"""Recipes: catalogue entries with typed arguments that compile to a plan; cookbooks: packs of them."""

from __future__ import annotations

import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stoker.core.errors import BadCookbook
from stoker.core.frozen import fresh, frozen
from stoker.engine.args import ArgsSchema
from stoker.engine.kinds import Kind
from stoker.engine.plan import Plan
from stoker.engine.stage import Shares, Stage

if TYPE_CHECKING:
    from stoker.devices.admission import MachineMemory
    from stoker.devices.estimate.terms import Correction, EstimatedWork


class Category(StrEnum):
    """What a recipe is for, in the order in which work goes."""

    DATA_PREP = "data_prep"
    PRETRAIN = "pretrain"
    TRAIN = "train"
    EVAL = "eval"
    GATE = "gate"
    EXPORT = "export"
    PIPELINE = "pipeline"
    USER = "user"


@frozen
class Recipe:
    """One entry of the catalogue."""

    name: str
    version: int
    summary: str
    category: Category
    backend: str
    inputs: tuple[type[Kind[Any]], ...]
    output: type[Kind[Any]]
    args: ArgsSchema
    compile: Callable[..., Plan]
    shares: Shares | None = None
    """Says of arguments what such a job shares with its like; nothing: it works alone."""
    brings: Mapping[str, str] = fresh(factory=dict)
    """Arguments that may name a repository of the hub in place of a folder, each with the small file of it by which
    `shares` knows how large it is; `datasets/` before the file if they name a data set. A machine of the fleet brings
    it, and puts its folder there."""

    # one object for each that is declared: it equals itself alone
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def leaf(self) -> str:
        """The last part of the name: the default name of its jobs."""
        return self.name.rpartition("/")[2]


def recipe(  # noqa: PLR0913 - a declaration says everything at once
    name: str,
    *,
    output: type[Kind[Any]],
    category: Category = Category.USER,
    version: int = 1,
    summary: str = "",
    backend: str = "python",
    inputs: tuple[type[Kind[Any]], ...] = (),
    shares: Shares | None = None,
    brings: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Plan]], Recipe]:
    """Declare a function from arguments to a plan as a recipe.

    `shares` says of the same arguments what such a job may have in common with its like. It is asked whenever one is
    submitted, so it reads no more than a few small files beside what it has digested; it may raise `StokerError`.
    """

    def declare(compile_plan: Callable[..., Plan]) -> Recipe:
        hints = typing.get_type_hints(compile_plan)
        parameters = list(inspect.signature(compile_plan).parameters)
        if parameters not in ([], ["args"]) or (parameters and "args" not in hints):
            message = f"recipe {name}: it takes nothing, or `args` annotated with a dataclass"
            raise TypeError(message)
        return Recipe(
            name=name,
            version=version,
            summary=summary or (compile_plan.__doc__ or "").strip().split("\n")[0],
            category=category,
            backend=backend,
            inputs=inputs,
            output=output,
            args=ArgsSchema(hints.get("args")),
            compile=compile_plan,
            shares=shares,
            brings=brings or {},
        )

    return declare


@frozen
class Cookbook:
    """A pack of recipes, stages and kinds, found through the entry point group `stoker.cookbooks`."""

    name: str
    summary: str = ""
    recipes: tuple[Recipe, ...] = ()
    stages: tuple[Stage, ...] = ()
    kinds: tuple[type[Kind[Any]], ...] = ()
    prefill: Mapping[str, Mapping[str, Any]] = fresh(factory=dict)
    """Example arguments by recipe; they win over defaults when a recipe is shown."""
    preload: tuple[str, ...] = ()
    """Modules worth importing once before the first stage runs in a child, unless only other stages use them."""

    # one object for each that is declared: it equals itself alone
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def preload_for(self, stages: Iterable[Stage]) -> tuple[str, ...]:
        """Return the modules to import for these stages: without those of libraries that only its other stages use."""
        used = {library for stage in stages for library in stage.uses}
        others = {library for stage in self.stages for library in stage.uses} - used
        return tuple(name for name in self.preload if name.partition(".")[0] not in others)


# Describe cookbooks for the index: recipes as plain data, checked against each other.


def describe(cookbooks: Sequence[Cookbook]) -> list[dict[str, Any]]:
    """Return every recipe as data, in the order of categories, then by name."""
    entries: dict[str, dict[str, Any]] = {}
    for cookbook in cookbooks:
        for recipe in cookbook.recipes:
            if recipe.name in entries:
                first = entries[recipe.name]["cookbook"]
                where = f"is in two cookbooks, {first} and {cookbook.name}"
                raise BadCookbook(
                    f"recipe {recipe.name} {where if first != cookbook.name else f'is twice in cookbook {first}'}",
                    hint="uninstall one, or rename its recipe",
                )
            entries[recipe.name] = {
                "name": recipe.name,
                "cookbook": cookbook.name,
                "summary": recipe.summary,
                "category": str(recipe.category),
                "backend": recipe.backend,
                "version": recipe.version,
                "inputs": [str(kind.ref()) for kind in recipe.inputs],
                "output": str(recipe.output.ref()),
                "args": recipe.args.schema(),
                "prefill": recipe.args.prefill(cookbook.prefill.get(recipe.name, {})),
            }
    order = [str(category) for category in Category]
    return sorted(entries.values(), key=lambda entry: (order.index(entry["category"]), entry["name"]))


def files_of(cookbooks: Mapping[str, Cookbook]) -> list[str]:
    """Return the source files that cookbooks, by the module that has them, are made of as far as they are imported."""
    packages: set[str] = set()
    for declaring, cookbook in cookbooks.items():
        modules = {recipe.compile.__module__ for recipe in cookbook.recipes} | {
            stage.module for stage in cookbook.stages
        }
        packages |= {declaring, *modules, *(module.rpartition(".")[0] or module for module in modules)}
    files = set()
    inside = tuple(f"{package}." for package in packages)
    for name, module in list(sys.modules.items()):
        if name in packages or name.startswith(inside):
            file = getattr(module, "__file__", None)
            if file and os.path.isfile(file):
                files.add(os.path.abspath(file))
    return sorted(files)


# What a recipe may know of this machine while its plan is made; `app` passes it in. It is never part of a key.


@frozen
class MeasuredPeakCorrection:
    """What measured peaks say of one estimate."""

    names: tuple[str, ...] = ()
    """Under which they are kept; none: they are not."""
    correction: Correction | None = None


@frozen
class MachineContext:
    """Places and devices of this machine."""

    hub_cache: Callable[[], str] = lambda: ""
    """Gives where models that were fetched lie, asked only if one is wanted; empty: unknown."""
    environments: Callable[[], str] = lambda: ""
    """Returns the folder of the Python environments that Stoker made, asked only if one is wanted; empty: unknown."""
    count_gpus: Callable[[], int] = lambda: 0
    """Gives how many devices this machine has, asked only if it makes a difference."""
    rooms: Callable[[], Mapping[str, int]] = dict
    """Gives how much memory each of them has, in bytes by its name; without those whose size is unknown."""
    memory: Callable[[], MachineMemory | None] = lambda: None
    """Gives what the machine itself has of memory; nothing where the work is done elsewhere."""
    remembered: Callable[[EstimatedWork], MeasuredPeakCorrection] = lambda _: MeasuredPeakCorrection()
    """Returns the correction of an estimate by earlier runs; called only where device memory is estimated."""
    stand_ins: frozenset[str] = frozenset()
    """Arguments that say something else than is meant, since what is meant is not here: nothing is judged by them."""
    fetches: Callable[[], bool] = lambda: False
    """Says whether what only has to be fetched comes by itself, so that it is no fault beside others."""


_NOTHING = MachineContext()
_NOW: ContextVar[MachineContext] = ContextVar("surroundings", default=_NOTHING)


def surroundings() -> MachineContext:
    """Return what the plan that is being made may know."""
    return _NOW.get()


@contextmanager
def surrounded_by(given: MachineContext) -> Iterator[None]:
    """Make plans within, knowing this."""
    token = _NOW.set(given)
    try:
        yield
    finally:
        _NOW.reset(token)
