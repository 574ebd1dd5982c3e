"""Defaults lists, expanded: from one file to all the files it is built on, in the order in which they count.

A file comes after those that it names, unless its `_self_` says otherwise. A group's option is put under the group's
name, below whatever the naming file is put under. An outer file's `override` wins over an inner one's, and the command
line over both. Entries are followed from the last one on, so an `override` reaches only groups that are listed before
the file it is in. A circle, a group chosen twice, an option that isn't there and an override that reaches no group are
faults at the entry that causes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from stoker.config.config_file import ConfigFiles
from stoker.config.overrides import Override, OverrideKind
from stoker.config.positions import ConfigLayer, FileLayer, LocatedValue, SourceFile, ValueOrigin, fault_at
from stoker.config.sweep import Axis, AxisValue
from stoker.config.values import DeclaredLeaf
from stoker.core.errors import Diagnostic, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean, lazy_pattern

_NAME = lazy_pattern(
    r"(?:(?P<word>optional|override)\s+)?(?P<path>/?[^\s@/]+(?:/[^\s@/]+)*)(?:@(?P<package>[^\s@/]+))?\s*"
)
GLOBAL = "_global_"
HERE = "_here_"
SELF = "_self_"


@frozen
class DefaultsEntry:
    """One entry of a defaults list: another file that a file is built on.

    An option may be null (nothing, until an override chooses) or a list of options. A name that begins with a slash is
    relative to the folder of the first file, others to the file that names them.
    """

    origin: ValueOrigin
    path: str
    """Of a group if it has options, else of a file; a slash in front counts from the first file's folder."""
    package: str | None = None
    options: tuple[str, ...] = ()
    is_group: bool = False
    is_optional: bool = False
    is_override: bool = False

    @property
    def is_self(self) -> bool:
        return not self.is_group and self.path == SELF


def read_defaults(source: SourceFile, tree: LocatedValue, faults: list[Diagnostic]) -> list[DefaultsEntry]:
    """Read a file's defaults list, which always contains the file's own place."""
    node = tree.value.get("defaults")
    if node is None:
        return [_ITSELF]
    entries: list[DefaultsEntry] = []
    if type(node.value) is list:
        read = (_read_entry(source, item, faults) for item in node.value)
        entries = [entry for entry in read if entry is not None]
    else:
        faults.append(fault_at(source.value_of(node), "a defaults list is a list", hint="write - base", key="defaults"))
    if not any(entry.is_self for entry in entries):
        entries.append(_ITSELF)
    return entries


def _read_entry(source: SourceFile, item: LocatedValue, faults: list[Diagnostic]) -> DefaultsEntry | None:
    if type(item.value) is str:
        return _entry(source.value_of(item), item.value, None, faults)
    if item.is_map and len(item.value) == 1:
        ((name, node),) = item.value.items()
        options = _options_of(source, node, faults)
        return None if options is None else _entry(source.key_of(node), name, options, faults)
    message = "an entry of a defaults list is a name, or one group and its option"
    hint = "write - base, or - model: small"
    faults.append(fault_at(source.value_of(item), message, hint=hint, key="defaults"))
    return None


def _options_of(source: SourceFile, node: LocatedValue, faults: list[Diagnostic]) -> tuple[str, ...] | None:
    if node.value is None:
        return ()
    items = node.value if type(node.value) is list else [node]
    for item in items:
        if type(item.value) is not str:
            message = "an option is the name of a file, or null"
            faults.append(fault_at(source.value_of(item), message, hint="put it in quotes", key="defaults"))
            return None
        if "${" in item.value:
            message = "a defaults list has no references: they are resolved only when all files are read"
            faults.append(fault_at(source.value_of(item), message, key="defaults"))
            return None
    return tuple(item.value for item in items)


def _entry(
    origin: ValueOrigin, name: str, options: tuple[str, ...] | None, faults: list[Diagnostic]
) -> DefaultsEntry | None:
    found = _NAME.fullmatch(name)
    if found is None or (found["word"] == "override" and options is None):
        hint = "write - base, - model: small, - optional model: small, or - override model: small"
        faults.append(fault_at(origin, f"{name!r} is not an entry of a defaults list", hint=hint, key="defaults"))
        return None
    return DefaultsEntry(
        origin=origin,
        path=found["path"],
        package=found["package"],
        options=options or (),
        is_group=options is not None,
        is_optional=found["word"] == "optional",
        is_override=found["word"] == "override",
    )


_ITSELF = DefaultsEntry(origin=ValueOrigin(layer=ConfigLayer.FILE, where=""), path=SELF)


_CHOOSING = (OverrideKind.CHANGE, OverrideKind.ADD, OverrideKind.FORCE, OverrideKind.DELETE)


@frozen
class GroupChoice:
    """A choice of the command line for a group."""

    kind: OverrideKind
    key: str
    """The group, and its package where it is not the group's own: `model`, `db@backup`."""
    options: tuple[str, ...] | None
    """None to delete the choice."""
    origin: ValueOrigin


class ConfigGroups:
    """The groups beside some files.

    A word without dots names a group if a folder of that name beside one of the files holds configuration files. A
    declared leaf of the same name goes first, unless a file's own defaults list has the group: a folder `data` with one
    stray file in it must not take `data=train.csv` for itself.
    """

    def __init__(self, shelf: ConfigFiles, files: Sequence[str], leaves: Mapping[str, DeclaredLeaf]) -> None:
        self._shelf = shelf
        self._files = files
        self._leaves = leaves

    def is_group(self, name: str) -> bool:
        """Return True if a name such as `model` or `db@backup` is that of a group."""
        path = name.partition("@")[0]
        if "." in path or not any(self._shelf.options(os.path.join(os.path.dirname(one), path)) for one in self._files):
            return False
        return path not in self._leaves or any(path in self._named(one) for one in self._files)

    def chooses(self, override: Override) -> bool:
        """Return True if an override is about a group."""
        if override.names_group:
            return True
        value = override.value
        is_map = type(value) is AxisValue and type(value.value) is dict
        return override.kind in _CHOOSING and not is_map and self.is_group(override.path)

    def _named(self, name: str) -> set[str]:
        """Return the groups in a file's own defaults list."""
        source, tree = self._shelf.take(name)
        entries = read_defaults(source, tree or LocatedValue({}, 1, 1, 1, 1), [])
        return {entry.path.lstrip("/") for entry in entries if entry.is_group}


def key_of(override: Override) -> str:
    """Return the name of an override's group."""
    return override.path if override.package is None else f"{override.path}@{override.package}"


def choice_of(override: Override, option: str | None) -> GroupChoice:
    """Return an override as the choice of an option; of a swept group, of the one that is named."""
    options: tuple[str, ...] | None = None
    if option is not None:
        options = (option,)
    elif type(override.value) is Axis:
        options = (override.value.choices.at(0).text,)
    elif type(override.value) is AxisValue:
        options = options_in(override.value)
    return GroupChoice(kind=override.kind, key=key_of(override), options=options, origin=override.origin)


def options_in(choice: AxisValue) -> tuple[str, ...]:
    """Return the options that a choice names: none for null, several for a list."""
    if choice.value is None:
        return ()
    return tuple(map(str, choice.value)) if type(choice.value) is list else (choice.text,)


MOST_FILES = 1000

_HEADER = lazy_pattern(r"\s*#\s*@package\s+(\S+)\s*")
_PACKAGE = lazy_pattern(r"[^\s.@/]+(?:\.[^\s.@/]+)*")


@frozen
class _Place:
    """Context of a file's own list: its folder below the first file's, its package, and the files that named it."""

    folder: str
    package: str
    chain: tuple[SourceFile, ...]


class Expansion:
    """Follows the defaults lists of one file."""

    def __init__(self, shelf: ConfigFiles, choices: Mapping[str, GroupChoice]) -> None:
        self.chosen: dict[str, tuple[str, ...]] = {}
        """Options by group, as chosen."""
        self.used: set[str] = set()
        """The choices of the command line whose group exists."""
        self._shelf = shelf
        self._faults = shelf.faults
        self._choices = choices
        self._overrides: dict[str, DefaultsEntry] = {}
        self._entries: dict[str, DefaultsEntry] = {}
        self._root = ""
        self._count = 0

    def expand(self, name: str) -> list[FileLayer]:
        """Return a file and all that it is built on, the first to count first. A missing file is an error at once."""
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

    def _expand(
        self, source: SourceFile, tree: LocatedValue, place: _Place, added: Sequence[DefaultsEntry]
    ) -> list[FileLayer]:
        entries = [*read_defaults(source, tree, self._faults), *added]
        for entry in entries:
            if entry.is_override:
                self._override(self._key(entry, place), entry)
        # Later entries first: what they override may come before them.
        parts = [self._expand_entry(entry, source, tree, place) for entry in reversed(entries)]
        return [layer for part in reversed(parts) for layer in part]

    def _override(self, key: str, entry: DefaultsEntry) -> None:
        """Register an override, unless an outer one comes first. A group that was chosen before it is a fault."""
        if key in self._overrides:
            return
        self._overrides[key] = entry
        choice = self._choices.get(key)
        if key in self.chosen and (choice is None or choice.kind in (OverrideKind.ADD, OverrideKind.DELETE)):
            listed = str(self._entries[key].origin)
            hint = f"list the group {key} before the entry that names this file"
            self._fault(entry.origin, f"the group {key} is already chosen at {listed}, so it can't be overridden", hint)

    def _expand_entry(
        self, entry: DefaultsEntry, source: SourceFile, tree: LocatedValue, place: _Place
    ) -> list[FileLayer]:
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
            # Entries are visited from the last one on, so the one visited before is the second.
            again = self._entries[key].origin
            is_typed = again.layer is ConfigLayer.OVERRIDE
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

    def _options(self, key: str, entry: DefaultsEntry) -> tuple[tuple[str, ...], ValueOrigin]:
        listed = self._overrides.get(key, entry)
        choice = self._choices.get(key)
        if choice is None or choice.kind is OverrideKind.ADD:
            return listed.options, listed.origin
        if choice.kind is OverrideKind.DELETE and choice.options not in (None, listed.options):
            return listed.options, listed.origin
        self.used.add(key)
        return () if choice.kind is OverrideKind.DELETE else choice.options or (), choice.origin

    def _additions(self) -> list[DefaultsEntry]:
        """Return entries for the groups that the command line adds, as far as this file's folder has them."""
        entries = []
        for key, choice in self._choices.items():
            group, _, package = key.partition("@")
            if choice.kind is OverrideKind.ADD and self._shelf.options(os.path.join(self._root, group)):
                self.used.add(key)
                entry = DefaultsEntry(
                    origin=choice.origin,
                    path=group,
                    package=package or None,
                    options=choice.options or (),
                    is_group=True,
                )
                entries.append(entry)
        return entries

    def _file(
        self, entry: DefaultsEntry, origin: ValueOrigin, place: _Place, *, folder: str, name: str, package: str
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
            # A header applies to the file wherever it is named from.
            wanted = self._package(header, _Place(folder="", package="", chain=()), origin)
        else:
            wanted = self._package(entry.package or package, place, origin)
        return self._expand(source, tree, _Place(folder=folder, package=wanted, chain=(*place.chain, source)), ())

    def _fault_missing(self, origin: ValueOrigin, folder: str, name: str) -> None:
        files = self._shelf.options(os.path.join(self._root, folder))
        what = f"there is no option {name!r} of the group {folder}" if folder else f"there is no file {name}.yaml"
        if not files:
            self._fault(origin, what, f"there is no configuration file in {os.path.join(self._root, folder) or '.'}")
            return
        self._fault(origin, what, did_you_mean(name, files) or f"there are: {', '.join(list(files)[:10])}")

    def _may_follow(self, source: SourceFile, origin: ValueOrigin, place: _Place) -> bool:
        if any(before.path == source.path for before in place.chain):
            chain = " → ".join(one.name for one in (*place.chain, source))
            self._fault(origin, f"the defaults lists form a cycle: {chain}")
            return False
        self._count += 1
        if self._count == MOST_FILES:
            self._fault(origin, f"the defaults lists name more than {MOST_FILES} files")
        return self._count < MOST_FILES

    def _key(self, entry: DefaultsEntry, place: _Place) -> str:
        """Return the name of an entry's group: with its package, unless that is the group's own path."""
        group = _below(place.folder, entry.path)
        package = self._package(entry.package or _dotted(entry.path), place, entry.origin)
        return group if package == _dotted(group) else f"{group}@{package or GLOBAL}"

    def _package(self, wanted: str, place: _Place, origin: ValueOrigin) -> str:
        """Return the dotted path of a package, relative to the file that names it."""
        if wanted in (GLOBAL, HERE):
            return "" if wanted == GLOBAL else place.package
        inner = wanted.removeprefix(f"{GLOBAL}.")
        if inner and not inner.isidentifier() and _PACKAGE.fullmatch(inner) is None:
            self._fault(origin, f"{wanted!r} is not a package", "write names with dots between them, or _global_")
            return place.package
        return inner if inner != wanted else _joined(place.package, wanted)

    def _fault(self, origin: ValueOrigin, message: str, hint: str = "") -> None:
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


def _header(source: SourceFile) -> str | None:
    """Return the package that a file's first comments name, as Hydra's files do."""
    if "@package" not in source.text:
        return None
    for line in source.lines:
        found = _HEADER.fullmatch(line)
        if found:
            return found[1]
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return None
