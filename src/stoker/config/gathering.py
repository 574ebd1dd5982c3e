"""The files of a composition gathered: which are read, in which order, with which options of groups chosen.

The command line chooses options, and so does each point of a sweep that varies a group. What all trials start from has
the first option of each group that is swept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from stoker.config.axis import Axis
from stoker.config.caret import fault_at
from stoker.config.combining import combined
from stoker.config.groups import GroupChoice, Groups, choice_of, key_of
from stoker.config.located import FileLayer
from stoker.config.origin import Layer, Origin
from stoker.config.override import Kind, Override
from stoker.config.schema import Declared
from stoker.config.shelf import Shelf
from stoker.config.sweep import Sweep, axes_of
from stoker.config.sweeping import sweep_in, words_of
from stoker.model.faults import Fault
from stoker.model.frozen import changed


class Gathering:
    """Gathers the files once; `fixed` are the options that a point of the sweep chooses."""

    def __init__(
        self,
        shelf: Shelf,
        files: Sequence[str],
        overrides: Sequence[Override],
        leaves: Mapping[str, Declared],
        fixed: Mapping[str, str],
    ) -> None:
        self.groups = Groups(shelf, files, leaves)
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
        """Give the files in the order in which they count, and find the sweep. Faults go to the shelf's."""
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
        """Give the options that were chosen, by group."""
        return dict(self._chosen)

    def swept_groups(self, sweep: Sweep | None) -> dict[str, Axis]:
        """Give the axes of a sweep that vary groups."""
        return {axis.path: axis for axis in axes_in(sweep) if self.groups.is_group(axis.path)}

    def _expand(self, choices: Mapping[str, GroupChoice]) -> list[FileLayer]:
        """Follow the defaults lists of all files."""
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
        forced = [one for one in choices.values() if one.kind is Kind.FORCE and one.key not in self._used]
        if not forced:
            return layers
        return self._expand({**choices, **{one.key: changed(one, kind=Kind.ADD) for one in forced}})

    def _choices(self) -> dict[str, GroupChoice]:
        choices: dict[str, GroupChoice] = {}
        for override in self._choosing:
            key = key_of(override)
            choices[key] = choice_of(override, self._fixed.get(key) if type(override.value) is Axis else None)
        for key, option in self._fixed.items():
            if key not in choices:
                origin = Origin(layer=Layer.SWEEP, where=f"{key}={option}")
                choices[key] = GroupChoice(kind=Kind.CHANGE, key=key, options=(option,), origin=origin)
        return choices

    def _sweep_of(self, layers: Sequence[FileLayer]) -> tuple[Sweep | None, list[Fault]]:
        """Give the sweep of the files and the overrides together; of several files the last that has one counts."""
        of_file: Sweep | None = None
        faults: list[Fault] = []
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
        """Take a choice whose group no list has: a deletion may mean a leaf, anything else is a mistake."""
        group = choice.key.partition("@")[0]
        if choice.kind is Kind.DELETE:
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
    """Give the axes of a sweep, if there is one."""
    return axes_of(sweep) if sweep is not None else iter(())
