"""The files of a composition: which are read, in which order, with which options of groups.

The command line chooses options, and so does each point of a sweep that varies a group. The base of all trials has the
first option of each swept group.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.config.config_file import ConfigFiles
from stoker.config.defaults import ConfigGroups, GroupChoice, choice_of, key_of
from stoker.config.overrides import Override, OverrideKind
from stoker.config.positions import ConfigLayer, FileLayer, LocatedValue, SourceFile, ValueOrigin, fault_at
from stoker.config.sweep import (
    Axis,
    AxisValue,
    Concat,
    Exclude,
    ListedAxisValues,
    Sweep,
    SweepProduct,
    SweepSample,
    Zip,
    axes_of,
    paths_of,
    size,
)
from stoker.config.values import DeclaredLeaf
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.frozen import changed

Words = Mapping[str, Axis | AxisValue | None]
"""The last value of each path on a command line: an axis, a value, or nothing if it is deleted."""


def combined(sweep: Sweep | None, words: Words) -> tuple[Sweep | None, list[Diagnostic]]:
    """Return the sweep of a file and a command line together, or nothing if no path is swept, and every fault.

    An axis of the command line takes the place of the file's axis of that path, wherever it stands; beside a zipped
    axis it has to have the same length. A single value takes the path out of the sweep, and so does deleting it. Axes
    that the file does not have come last, so they are fastest, in the order of the words. What the file leaves out and
    samples is taken of the whole.
    """
    faults: list[Diagnostic] = []
    made = _with_all(sweep if sweep is not None else SweepProduct(()), words, faults)
    if made is None or not paths_of(made):
        return None, faults
    try:
        if not faults and size(made) == 0:
            faults.append(Diagnostic("sweep.exclude", "every point is left out", "exclude less, or give other values"))
    except InvalidConfig as error:
        faults += error.faults
    return made, faults


def _with_all(sweep: Sweep, words: Words, faults: list[Diagnostic]) -> Sweep | None:
    """Replace axes of a sweep by those of the command line, and multiply it with the new ones."""
    match sweep:
        case SweepSample():
            inner = _with_all(sweep.of, words, faults)
            return SweepSample(of=inner, count=sweep.count, seed=sweep.seed) if inner is not None else None
        case Exclude():
            inner = _with_all(sweep.of, words, faults)
            # A single value stays as an axis if a condition refers to it.
            conditioned = dict.fromkeys(path for condition in sweep.conditions for path in condition)
            single = [
                Axis(path=path, choices=ListedAxisValues((word,)))
                for path in conditioned
                if isinstance(word := words.get(path), AxisValue)
            ]
            whole = SweepProduct((*_parts_of(inner), *single)) if single else inner
            return Exclude(of=whole, conditions=sweep.conditions) if whole is not None else None
    here = set(paths_of(sweep))
    replaced = _replaced(sweep, words, faults)
    new = [word for path, word in words.items() if isinstance(word, Axis) and path not in here]
    if not new:
        return replaced
    return SweepProduct((*_parts_of(replaced), *new))


def _replaced(sweep: Sweep, words: Words, faults: list[Diagnostic]) -> Sweep | None:
    """Replace axes of a sweep; None if no axis is left."""
    match sweep:
        case Axis():
            word = words.get(sweep.path, sweep)
            return word if isinstance(word, Axis) else None
        case Zip():
            return _replaced_zip(sweep, words, faults)
        case Concat():
            here = set(paths_of(sweep))
            own = {path: word for path, word in words.items() if path in here}
            return Concat(tuple(_with_all(part, own, faults) or SweepProduct(()) for part in sweep.parts))
        case SweepProduct():
            parts = [_replaced(part, words, faults) for part in sweep.parts]
            kept = tuple(part for part in parts if part is not None)
            return SweepProduct(kept) if kept else None
        case Exclude() | SweepSample():
            return _with_all(sweep, words, faults)


def _replaced_zip(sweep: Zip, words: Words, faults: list[Diagnostic]) -> Sweep | None:
    found = [words.get(axis.path, axis) for axis in sweep.parts]
    axes = tuple(axis for axis in found if isinstance(axis, Axis))
    from stoker.config.sweep_file import unequal_lengths  # noqa: PLC0415 - only sweeps of files need it

    if axes and (unequal := unequal_lengths(axes)):
        given = next(axis for axis in axes if axis.path in words)
        hint = "these are zipped in the file: give as many values as the others have, or all of them"
        if given.origin is not None:
            faults.append(fault_at(given.origin, unequal, hint=hint))
        else:
            faults.append(Diagnostic("sweep.zip", unequal, hint))
        return sweep
    return Zip(axes) if axes else None


def _parts_of(sweep: Sweep | None) -> tuple[Sweep, ...]:
    if sweep is None:
        return ()
    return sweep.parts if isinstance(sweep, SweepProduct) else (sweep,)


# The sweep of a configuration: the `sweep` of a file, and the last value of each path.


def sweep_in(source: SourceFile, node: LocatedValue, key: str = "sweep") -> tuple[Sweep | None, list[Diagnostic]]:
    """Read `sweep`, or another key, of a file; nothing if there are faults."""
    from stoker.config.sweep_file import SweepPlace, read_sweep  # noqa: PLC0415 - only sweeps of files need it

    def origin_of(place: SweepPlace) -> ValueOrigin:
        at = node
        for step in place:
            inner: Any = at.value
            is_there = step in inner if type(inner) is dict else type(inner) is list and step in range(len(inner))
            if not is_there:
                break
            at = inner[step]
        return source.value_of(at)

    return read_sweep(node.plain(), origin_of, key=key)


def words_of(overrides: Iterable[Override]) -> dict[str, Axis | AxisValue | None]:
    """Return the last value of a command line for each path that it sets or deletes."""
    words: dict[str, Axis | AxisValue | None] = {}
    for override in overrides:
        if override.kind not in (OverrideKind.APPEND, OverrideKind.REMOVE):
            words.pop(key_of(override), None)
            words[key_of(override)] = None if override.kind is OverrideKind.DELETE else override.value
    return words


class ConfigGatherer:
    """Collects the files once; `fixed` are the options that a point of the sweep chooses."""

    def __init__(
        self,
        shelf: ConfigFiles,
        files: Sequence[str],
        overrides: Sequence[Override],
        leaves: Mapping[str, DeclaredLeaf],
        fixed: Mapping[str, str],
    ) -> None:
        self.groups = ConfigGroups(shelf, files, leaves)
        self.setting: list[Override] = []
        """The overrides that are not about groups."""
        self.sweep: Sweep | None = None
        self.swept_by_files: frozenset[str] = frozenset()
        """The paths that the files themselves sweep."""
        self._choosing: list[Override] = []
        self._shelf = shelf
        self._files = files
        self._overrides = overrides
        self._fixed = dict(fixed)
        self._used: set[str] = set()
        self._chosen: dict[str, tuple[str, ...]] = {}
        for override in overrides:
            (self._choosing if self.groups.chooses(override) else self.setting).append(override)

    def layers(self) -> list[FileLayer]:
        """Return the files in the order in which they count, and find the sweep. Faults go to `files`."""
        choices = self._choices()
        layers = self._expand(choices)
        sweep, faults = self._sweep_of(layers)
        first = {path: axis.choices.at(0).text for path, axis in self.swept_groups(sweep).items()}
        if not first.keys() <= choices.keys():
            self._fixed = first | self._fixed
            choices = self._choices()
            layers = self._expand(choices)
            sweep, faults = self._sweep_of(layers)
        for choice in choices.values():
            if choice.key not in self._used:
                self._take_unmet(choice)
        self._shelf.faults += faults
        self.sweep = sweep
        return layers

    def chosen(self) -> dict[str, tuple[str, ...]]:
        """Return the options that were chosen, by group."""
        return dict(self._chosen)

    def swept_groups(self, sweep: Sweep | None) -> dict[str, Axis]:
        """Return the axes of a sweep that vary groups."""
        return {axis.path: axis for axis in axes_in(sweep) if self.groups.is_group(axis.path)}

    def _expand(self, choices: Mapping[str, GroupChoice]) -> list[FileLayer]:
        """Expand the defaults lists of all files."""
        if not self._files:
            return []
        from stoker.config.defaults import Expansion  # noqa: PLC0415 - a job without files has no lists

        self._used, self._chosen = set(), {}
        layers: list[FileLayer] = []
        for name in self._files:
            expansion = Expansion(self._shelf, choices)
            layers += expansion.expand(name)
            self._used |= expansion.used
            self._chosen |= expansion.chosen
        forced = [one for one in choices.values() if one.kind is OverrideKind.FORCE and one.key not in self._used]
        if not forced:
            return layers
        return self._expand({**choices, **{one.key: changed(one, kind=OverrideKind.ADD) for one in forced}})

    def _choices(self) -> dict[str, GroupChoice]:
        choices: dict[str, GroupChoice] = {}
        for override in self._choosing:
            key = key_of(override)
            choices[key] = choice_of(override, self._fixed.get(key) if type(override.value) is Axis else None)
        for key, option in self._fixed.items():
            if key not in choices:
                origin = ValueOrigin(layer=ConfigLayer.SWEEP, where=f"{key}={option}")
                choices[key] = GroupChoice(kind=OverrideKind.CHANGE, key=key, options=(option,), origin=origin)
        return choices

    def _sweep_of(self, layers: Sequence[FileLayer]) -> tuple[Sweep | None, list[Diagnostic]]:
        """Return the sweep of the files and the overrides together; of several files the last that has one counts."""
        of_file: Sweep | None = None
        faults: list[Diagnostic] = []
        nodes = [
            (layer.source, layer.tree.value["sweep"])
            for layer in layers
            if not layer.package and "sweep" in layer.tree.value
        ]
        if nodes:
            of_file, faults = sweep_in(*nodes[-1])
        self.swept_by_files = frozenset(axis.path for axis in axes_in(of_file))
        sweep, others = combined(of_file, words_of(self._overrides))
        return sweep, [*faults, *others]

    def _take_unmet(self, choice: GroupChoice) -> None:
        """Handle a choice whose group is in no list: a deletion may mean a leaf, anything else is a mistake."""
        group = choice.key.partition("@")[0]
        if choice.kind is OverrideKind.DELETE:
            self.setting.append(next(one for one in self._choosing if key_of(one) == choice.key))
        elif self.groups.is_group(group):
            hint = f"write +{choice.key}={','.join(choice.options or ())} to add it"
            self._refuse(choice, f"no defaults list has the group {choice.key}", hint)
        else:
            folders = ", ".join(sorted({os.path.dirname(one) or "." for one in self._files}))
            hint = f"it would be a folder with configuration files, in {folders}" if folders else "no file is given"
            self._refuse(choice, f"there is no group {group}", hint)

    def _refuse(self, choice: GroupChoice, message: str, hint: str) -> None:
        self._shelf.faults.append(fault_at(choice.origin, message, hint=hint))


def axes_in(sweep: Sweep | None) -> Iterator[Axis]:
    """Return the axes of a sweep, if there is one."""
    return axes_of(sweep) if sweep is not None else iter(())
