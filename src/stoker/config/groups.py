"""Which overrides choose options of groups, and which set leaves.

A word without dots names a group if a folder of that name beside one of the files holds configuration files. A declared
leaf of the same name goes first, unless a file's own defaults list has the group: a folder `data` with one stray file
in it must not take `data=train.csv` for itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from stoker.config.axis import Axis, Choice
from stoker.config.located import Located
from stoker.config.origin import Origin
from stoker.config.override import Kind, Override
from stoker.config.schema import Declared
from stoker.config.shelf import Shelf
from stoker.model.frozen import frozen

_CHOOSING = (Kind.CHANGE, Kind.ADD, Kind.FORCE, Kind.DELETE)


@frozen
class GroupChoice:
    """What a command line says about a group."""

    kind: Kind
    key: str
    """The group, and its package where it is not the group's own: `model`, `db@backup`."""
    options: tuple[str, ...] | None
    """Nothing for a deletion of whatever is chosen."""
    origin: Origin


class Groups:
    """The groups beside some files."""

    def __init__(self, shelf: Shelf, files: Sequence[str], leaves: Mapping[str, Declared]) -> None:
        self._shelf = shelf
        self._files = files
        self._leaves = leaves

    def is_group(self, name: str) -> bool:
        """Say whether a name such as `model` or `db@backup` is that of a group."""
        path = name.partition("@")[0]
        if "." in path or not any(self._shelf.options(os.path.join(os.path.dirname(one), path)) for one in self._files):
            return False
        return path not in self._leaves or any(path in self._named(one) for one in self._files)

    def chooses(self, override: Override) -> bool:
        """Say whether an override is about a group."""
        if override.names_group:
            return True
        value = override.value
        is_map = type(value) is Choice and type(value.value) is dict
        return override.kind in _CHOOSING and not is_map and self.is_group(override.path)

    def _named(self, name: str) -> set[str]:
        """Give the groups in a file's own defaults list."""
        from stoker.config.defaults_entry import read_defaults  # noqa: PLC0415 - a job without files has no lists

        source, tree = self._shelf.take(name)
        entries = read_defaults(source, tree or Located({}, 1, 1, 1, 1), [])
        return {entry.path.lstrip("/") for entry in entries if entry.is_group}


def key_of(override: Override) -> str:
    """Give the name of the group that an override is about."""
    return override.path if override.package is None else f"{override.path}@{override.package}"


def choice_of(override: Override, option: str | None) -> GroupChoice:
    """Give an override as the choice of an option; of a swept group, of the one that is named."""
    options: tuple[str, ...] | None = None
    if option is not None:
        options = (option,)
    elif type(override.value) is Axis:
        options = (override.value.choices.at(0).text,)
    elif type(override.value) is Choice:
        options = options_in(override.value)
    return GroupChoice(kind=override.kind, key=key_of(override), options=options, origin=override.origin)


def options_in(choice: Choice) -> tuple[str, ...]:
    """Give the options that a choice names: none for null, several for a list."""
    if choice.value is None:
        return ()
    return tuple(map(str, choice.value)) if type(choice.value) is list else (choice.text,)
