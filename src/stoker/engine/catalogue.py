"""The catalogue: every recipe of every cookbook, listed without importing any of their code.

Cookbooks are found through entry points. Importing them all costs what they cost, so what they declare is written to an
index once and read from there until a cookbook's files or the set of cookbooks change. Only running, showing a plan or
building the index imports a cookbook. Two cookbooks with one recipe name is an error that names both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from stoker.core.errors import BadCookbook, StokerError, UnknownRecipe
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import did_you_mean
from stoker.host.durable import write_file
from stoker.host.folders import make_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.engine.recipe import Cookbook, Recipe

GROUP = "stoker.cookbooks"
_FORMAT = 2


@frozen
class RecipeEntry:
    """One recipe as the index knows it."""

    name: str
    cookbook: str
    summary: str
    category: str
    backend: str
    version: int
    inputs: tuple[str, ...]
    output: str
    args: dict[str, Any]
    """JSON Schema."""
    prefill: dict[str, Any]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RecipeEntry:
        """Read what the index holds. Raises `KeyError` or `TypeError` if it is not an entry."""
        return cls(**{**raw, "inputs": tuple(raw["inputs"])})


@frozen
class CookbookSource:
    """Where a cookbook is, as an entry point says."""

    name: str
    value: str
    """`module:attribute`."""

    @property
    def module(self) -> str:
        return self.value.partition(":")[0]


class Catalogue:
    """Recipes by name. Reads the index; loads a cookbook only when one of its recipes is wanted."""

    def __init__(self, index_path: str, sources: Sequence[CookbookSource] | None = None) -> None:
        self._index_path = index_path
        self._given = sources
        self._entries: list[RecipeEntry] | None = None
        self._cookbooks: dict[str, Cookbook] = {}
        self.troubles: list[str] = []
        """Cookbooks that could not be loaded, and why."""

    def entries(self) -> list[RecipeEntry]:
        """Return every recipe, in the order of categories, then by name."""
        if self._entries is None:
            self._entries = self._read_index()
        if self._entries is None:
            self._entries = self._build_index()
        return self._entries

    def find(self, name: str) -> RecipeEntry:
        """Return the entry of a recipe; a bare leaf name will do if only one recipe ends in it."""
        entries = self.entries()
        for entry in entries:
            if entry.name == name:
                return entry
        ending = [entry for entry in entries if entry.name.rpartition("/")[2] == name]
        if len(ending) == 1:
            return ending[0]
        if ending:
            raise UnknownRecipe(f"{name!r} could be {' or '.join(entry.name for entry in ending)}")
        hint = did_you_mean(name, [entry.name for entry in entries]) or "`stoker recipes` lists them"
        if self.troubles:
            hint = f"{hint}; not loaded: {'; '.join(self.troubles)}"
        raise UnknownRecipe(f"there is no recipe {name!r}", hint=hint)

    def swaps(self, name: str) -> list[RecipeEntry]:
        """Return the recipes that could stand in for one: same inputs, same output."""
        wanted = self.find(name)
        return [
            entry
            for entry in self.entries()
            if entry.name != wanted.name and (entry.inputs, entry.output) == (wanted.inputs, wanted.output)
        ]

    def load(self, name: str) -> Recipe:
        """Import the cookbook of a recipe and return the recipe."""
        if "/" not in name and any(source.name == name for source in self._sources()):
            # A cookbook's own recipe, as `command` is: no other cookbook has to be imported for it.
            for recipe in self.cookbook(name).recipes:
                if recipe.name == name:
                    return recipe
        entry = self.find(name)
        cookbook = self.cookbook(entry.cookbook)
        for recipe in cookbook.recipes:
            if recipe.name == entry.name:
                return recipe
        raise UnknownRecipe(f"cookbook {entry.cookbook} no longer has {entry.name}", hint="run the command again")

    def cookbook(self, name: str) -> Cookbook:
        """Import a cookbook."""
        if name not in self._cookbooks:
            source = next((source for source in self._sources() if source.name == name), None)
            if source is None:
                raise BadCookbook(f"cookbook {name} is no longer installed", hint="run the command again")
            self._cookbooks[name] = load_cookbook(source)
        return self._cookbooks[name]

    def cookbooks(self) -> list[Cookbook]:
        """Import every cookbook; those that can't be are left to `troubles`."""
        self.troubles = []
        loaded = []
        for source in self._sources():
            try:
                loaded.append(self.cookbook(source.name))
            except StokerError as error:
                self.troubles.append(str(error))
        return loaded

    def loaded(self) -> list[Cookbook]:
        """Return the cookbooks that have been imported so far."""
        return list(self._cookbooks.values())

    def _sources(self) -> Sequence[CookbookSource]:
        if self._given is None:
            self._given = find_sources(sys.path)
        return self._given

    def _read_index(self) -> list[RecipeEntry] | None:
        try:
            with open(self._index_path, "rb") as file:
                index = loads(file.read())
            if index["format"] != _FORMAT or index["stamp"] != self._stamp(index["files"]):
                return None
            return [RecipeEntry.from_json(raw) for raw in index["recipes"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _build_index(self) -> list[RecipeEntry]:
        from stoker.engine.recipe import describe, files_of  # noqa: PLC0415 - only when the index is stale

        index: dict[str, Any] = {"format": _FORMAT, "recipes": describe(self.cookbooks())}
        if not self.troubles:
            # With a cookbook missing there is no telling which file would mend it, so it is tried again each time.
            modules = {source.name: source.module for source in self._sources()}
            files = files_of({modules[name]: cookbook for name, cookbook in self._cookbooks.items()})
            index.update(stamp=self._stamp(files), files=files)
            self._write_index(index)
        # As if it had been read from the file, so that a listing is the same the first time and later.
        return [RecipeEntry.from_json(raw) for raw in loads(dumps(index))["recipes"]]

    def _write_index(self, index: dict[str, Any]) -> None:
        try:
            make_state(os.path.dirname(self._index_path))
            write_file(self._index_path, dumps(index).encode())
        except (StokerError, OSError):
            # Without an index every listing imports the cookbooks: slow, not wrong.
            return

    def _stamp(self, files: list[str]) -> list[Any]:
        stamp: list[Any] = [f"{source.name}={source.value}" for source in self._sources()]
        for path in files:
            info = os.stat(path)
            stamp.append([path, info.st_size, info.st_mtime_ns])
        return stamp


def load_cookbook(source: CookbookSource) -> Cookbook:
    """Import what an entry point names and make sure that it is a cookbook."""
    from stoker.engine.recipe import Cookbook  # noqa: PLC0415 - listing from the index must not pay for it

    attribute = source.value.partition(":")[2]
    try:
        cookbook = getattr(import_module(source.module), attribute)
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        raise BadCookbook(f"cookbook {source.name} can't be loaded: {text}", hint="reinstall or remove it") from error
    if not isinstance(cookbook, Cookbook):
        raise BadCookbook(f"{source.value} is not a cookbook")
    if cookbook.name != source.name:
        raise BadCookbook(
            f"cookbook {cookbook.name!r} is registered as {source.name!r}: both names must be the same",
            hint="give its entry point, or its module if STOKER_COOKBOOKS names it, the name of the cookbook",
        )
    return cookbook


def find_sources(search: Sequence[str]) -> list[CookbookSource]:
    """Find cookbooks by reading the entry point files of installed distributions, the first of a name winning."""
    found: dict[str, CookbookSource] = {}
    for folder in search:
        try:
            modified_ns = os.stat(folder or ".").st_mtime_ns
            for source in _sources_in(os.path.abspath(folder), modified_ns):
                found.setdefault(source.name, source)
        except OSError:
            continue
    return sorted(found.values(), key=lambda source: source.name)


@lru_cache(maxsize=64)
def _sources_in(folder: str, _modified_ns: int) -> tuple[CookbookSource, ...]:
    """Return the cookbooks of a folder, read once: installing or removing a distribution modifies the folder."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".dist-info"))
    return tuple(
        source for name in names for source in _read_entry_points(os.path.join(folder, name, "entry_points.txt"))
    )


def read_sources(text: str) -> list[CookbookSource]:
    """Read what STOKER_COOKBOOKS names beside the installed cookbooks: `module:attribute`, several by comma."""
    sources = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        module, colon, attribute = part.partition(":")
        if not (module and colon and attribute):
            raise BadCookbook(f"STOKER_COOKBOOKS: {part!r} names no cookbook", hint="write module:COOKBOOK")
        sources.append(CookbookSource(name=module.partition(".")[0], value=part))
    return sources


def _read_entry_points(path: str) -> list[CookbookSource]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    sources, is_ours = [], False
    for line in lines:
        text = line.strip()
        if text.startswith("["):
            is_ours = text == f"[{GROUP}]"
        elif is_ours and "=" in text and not text.startswith(("#", ";")):
            name, _, value = text.partition("=")
            sources.append(CookbookSource(name=name.strip(), value=value.strip()))
    return sources
