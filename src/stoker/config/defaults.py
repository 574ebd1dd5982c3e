"""Defaults lists followed through: from one file to all the files it is built on, in the order in which they count.

A file comes after those that it names, unless its `_self_` says otherwise. A group's option is put under the group's
name, below whatever the naming file is put under. An outer file's `override` wins over an inner one's, and the command
line over both. Entries are followed from the last one on, so an `override` reaches only groups that are listed before
the file it is in. A circle, a group chosen twice, an option that isn't there and an override that reaches no group are
faults at the entry that causes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from stoker.config.caret import fault_at
from stoker.config.defaults_entry import GLOBAL, HERE, Entry, read_defaults
from stoker.config.groups import GroupChoice
from stoker.config.located import FileLayer, Located, Source
from stoker.config.origin import Layer, Origin
from stoker.config.override import Kind
from stoker.config.shelf import Shelf
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.model.suggest import did_you_mean

MOST_FILES = 1000

_HEADER = re.compile(r"\s*#\s*@package\s+(\S+)\s*")
_PACKAGE = re.compile(r"[^\s.@/]+(?:\.[^\s.@/]+)*")


@frozen
class _Place:
    """From where a file's own list is read: its folder below the first file's, its package, and who named it."""

    folder: str
    package: str
    chain: tuple[Source, ...]


class Expansion:
    """Follows the defaults lists of one file."""

    def __init__(self, shelf: Shelf, choices: Mapping[str, GroupChoice]) -> None:
        self.chosen: dict[str, tuple[str, ...]] = {}
        """Options by group, as they came out."""
        self.used: set[str] = set()
        """The choices of the command line that met their group."""
        self._shelf = shelf
        self._faults = shelf.faults
        self._choices = choices
        self._overrides: dict[str, Entry] = {}
        self._entries: dict[str, Entry] = {}
        self._root = ""
        self._count = 0

    def expand(self, name: str) -> list[FileLayer]:
        """Give a file and all that it is built on, the first to count first. A missing file is an error at once."""
        self._root = os.path.dirname(name)
        source, tree = self._shelf.take(name)
        if tree is None:
            return []
        layers = self._expand(source, tree, _Place(folder="", package="", chain=(source,)), self._additions())
        for key, entry in self._overrides.items():
            if key not in self.chosen:
                hint = did_you_mean(key, self.chosen) or f"write - {key}: OPTION"
                self._fault(entry.origin, f"no defaults list has a group {key} to override", hint)
        return layers

    def _expand(self, source: Source, tree: Located, place: _Place, added: Sequence[Entry]) -> list[FileLayer]:
        entries = [*read_defaults(source, tree, self._faults), *added]
        for entry in entries:
            if entry.is_override:
                self._override(self._key(entry, place), entry)
        # Later entries first: what they override may stand before them.
        parts = [self._expand_entry(entry, source, tree, place) for entry in reversed(entries)]
        return [layer for part in reversed(parts) for layer in part]

    def _override(self, key: str, entry: Entry) -> None:
        """Register an override, unless an outer one comes first. A group that was chosen before it is a fault."""
        if key in self._overrides:
            return
        self._overrides[key] = entry
        choice = self._choices.get(key)
        if key in self.chosen and (choice is None or choice.kind in (Kind.ADD, Kind.DELETE)):
            listed = str(self._entries[key].origin)
            hint = f"list the group {key} before the entry that names this file"
            self._fault(entry.origin, f"the group {key} is already chosen at {listed}, so it can't be overridden", hint)

    def _expand_entry(self, entry: Entry, source: Source, tree: Located, place: _Place) -> list[FileLayer]:
        if entry.is_override:
            return []
        if entry.is_self:
            return [FileLayer(source=source, tree=tree, package=place.package)]
        if not entry.is_group:
            folder, name = os.path.split(_below(place.folder, entry.path))
            package = _dotted(os.path.dirname(entry.path))
            return self._file(entry, entry.origin, place, folder=folder, name=name, package=package)
        key = self._key(entry, place)
        if key in self.chosen:
            # Entries are met from the last one on, so it is the one met before that comes second.
            again = self._entries[key].origin
            is_typed = again.layer is Layer.OVERRIDE
            hint = f"write {key}=OPTION, without +" if is_typed else f"write - override {key}: OPTION"
            self._fault(again, f"the group {key} is chosen twice", hint)
            return []
        self._entries[key] = entry
        options, origin = self._options(key, entry)
        self.chosen[key] = options
        layers = []
        for option in options:
            folder, name = os.path.split(os.path.join(_below(place.folder, entry.path), option))
            package = _dotted(entry.path)
            layers += self._file(entry, origin, place, folder=folder, name=name, package=package)
        return layers

    def _options(self, key: str, entry: Entry) -> tuple[tuple[str, ...], Origin]:
        listed = self._overrides.get(key, entry)
        choice = self._choices.get(key)
        if choice is None or choice.kind is Kind.ADD:
            return listed.options, listed.origin
        if choice.kind is Kind.DELETE and choice.options not in (None, listed.options):
            return listed.options, listed.origin
        self.used.add(key)
        return () if choice.kind is Kind.DELETE else choice.options or (), choice.origin

    def _additions(self) -> list[Entry]:
        """Give entries for the groups that the command line adds, as far as this file's folder has them."""
        entries = []
        for key, choice in self._choices.items():
            group, _, package = key.partition("@")
            if choice.kind is Kind.ADD and self._shelf.options(os.path.join(self._root, group)):
                self.used.add(key)
                entry = Entry(
                    origin=choice.origin,
                    path=group,
                    package=package or None,
                    options=choice.options or (),
                    is_group=True,
                )
                entries.append(entry)
        return entries

    def _file(
        self, entry: Entry, origin: Origin, place: _Place, *, folder: str, name: str, package: str
    ) -> list[FileLayer]:
        found = self._shelf.find(os.path.join(self._root, folder), name)
        if found is None:
            if not entry.is_optional:
                self._fault_missing(origin, folder, name)
            return []
        taken = self._shelf.take_named(found)
        if isinstance(taken, StokerError):
            self._fault(origin, taken.message, taken.hint)
            return []
        source, tree = taken
        if tree is None or not self._may_follow(source, origin, place):
            return []
        header = _header(source)
        if entry.package is None and header is not None and header != "_group_":
            # A header speaks for the file wherever it is named from.
            wanted = self._package(header, _Place(folder="", package="", chain=()), origin)
        else:
            wanted = self._package(entry.package or package, place, origin)
        return self._expand(source, tree, _Place(folder=folder, package=wanted, chain=(*place.chain, source)), ())

    def _fault_missing(self, origin: Origin, folder: str, name: str) -> None:
        files = self._shelf.options(os.path.join(self._root, folder))
        what = f"there is no option {name!r} of the group {folder}" if folder else f"there is no file {name}.yaml"
        if not files:
            self._fault(origin, what, f"there is no configuration file in {os.path.join(self._root, folder) or '.'}")
            return
        self._fault(origin, what, did_you_mean(name, files) or f"there are: {', '.join(list(files)[:10])}")

    def _may_follow(self, source: Source, origin: Origin, place: _Place) -> bool:
        if any(before.path == source.path for before in place.chain):
            chain = " → ".join(one.name for one in (*place.chain, source))
            self._fault(origin, f"the defaults lists go in a circle: {chain}")
            return False
        self._count += 1
        if self._count == MOST_FILES:
            self._fault(origin, f"the defaults lists name more than {MOST_FILES} files")
        return self._count < MOST_FILES

    def _key(self, entry: Entry, place: _Place) -> str:
        """Give the name of an entry's group: with its package, unless that is the group's own path."""
        group = _below(place.folder, entry.path)
        package = self._package(entry.package or _dotted(entry.path), place, entry.origin)
        return group if package == _dotted(group) else f"{group}@{package or GLOBAL}"

    def _package(self, wanted: str, place: _Place, origin: Origin) -> str:
        """Give the dotted path that a package stands for, seen from the file that names it."""
        if wanted in (GLOBAL, HERE):
            return "" if wanted == GLOBAL else place.package
        inner = wanted.removeprefix(f"{GLOBAL}.")
        if inner and not inner.isidentifier() and _PACKAGE.fullmatch(inner) is None:
            self._fault(origin, f"{wanted!r} is not a package", "write names with dots between them, or _global_")
            return place.package
        return inner if inner != wanted else _joined(place.package, wanted)

    def _fault(self, origin: Origin, message: str, hint: str = "") -> None:
        fault = fault_at(origin, message, hint=hint)
        if fault not in self._faults:
            self._faults.append(fault)


def _below(folder: str, path: str) -> str:
    joined = path[1:] if path.startswith("/") else f"{folder}/{path}" if folder else path
    return os.path.normpath(joined) if ".." in joined else joined


def _dotted(path: str) -> str:
    return path.strip("/").replace("/", ".")


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner else outer or inner


def _header(source: Source) -> str | None:
    """Give the package that a file's first comments name, as Hydra's files do."""
    if "@package" not in source.text:
        return None
    for line in source.lines:
        found = _HEADER.fullmatch(line)
        if found:
            return found[1]
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return None
