"""Composing: from files, the environment and overrides to one configuration, every fault at once.

Later wins: declared defaults, files in their order, the environment (`STOKER__a__b`), overrides in their order, and for
each trial the choices of its point. References are resolved once, after all of that. Every choice of every axis is
read before any point is made, so that a sweep with a mistake in it is refused without being expanded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from stoker.config.axis import Axis, Choice
from stoker.config.caret import fault_at
from stoker.config.composed import Composed, Facts, Options
from stoker.config.environment import put_environment
from stoker.config.gathering import Gathering, axes_in
from stoker.config.layering import Layering
from stoker.config.origin import Layer, Origin
from stoker.config.override import Override
from stoker.config.overriding import Overriding
from stoker.config.schema import Schema
from stoker.config.shelf import Shelf
from stoker.config.sweep import Sweep
from stoker.config.trees import ABSENT, found
from stoker.config.trial import Base, Resolved, Trials, faulty, finished
from stoker.config.typed import typed
from stoker.config.vocabulary import Vocabulary, check_resolved
from stoker.model.errors import ConfigFaults
from stoker.model.faults import Fault
from stoker.model.frozen import frozen

# So many choices of an axis are tried ahead where each means composing or resolving again.
_TRIED = 200


def compose(
    files: Sequence[str],
    overrides: Sequence[Override],
    schema: Schema,
    environment: Mapping[str, str],
    folder: str,
) -> Composed:
    """Compose one configuration. Files are named relative to `folder`.

    Raises `ConfigFaults` with everything that is wrong, or `LocalFile` for a file that isn't there.
    """
    request = _Request(files=files, overrides=overrides, schema=schema, environment=environment, folder=folder)
    composition = _Composition(request, {})
    composed = composition.run()
    composition.try_groups()
    composition.refuse("in the configuration")
    return composed


@frozen
class _Request:
    files: Sequence[str]
    overrides: Sequence[Override]
    schema: Schema
    environment: Mapping[str, str]
    folder: str


class _Composition:
    """One pass over all layers, with an option fixed for each group that a sweep varies."""

    def __init__(self, request: _Request, fixed: Mapping[str, str]) -> None:
        self.faults: list[Fault] = []
        self._request = request
        self._words = Vocabulary(request.schema)
        self._shelf = Shelf(request.folder, self.faults)
        self._files = Gathering(self._shelf, request.files, request.overrides, request.schema.leaves, fixed)

    def run(self) -> Composed:
        """Compose, noting faults."""
        layers = self._files.layers()
        tree = Layering(self._words, self.faults)
        tree.put_defaults()
        for layer in layers:
            tree.put_file(layer)
        put_environment(tree, self._request.environment)
        has_files = bool(self._request.files)
        overriding = Overriding(tree, has_files=has_files, swept=self._files.swept_by_files)
        for override in self._files.setting:
            if type(override.value) is not Axis:
                overriding.apply(override)
            elif overriding.may_set(override, override.path, override.origin) and overriding.is_note(override.path):
                message = "is no part of what is wanted, so it can't be swept"
                hint = self._words.suggestion(override.path, [])
                self.faults.append(fault_at(override.origin, message, hint=hint, key=override.path))
        return self._finish(tree, tuple(overriding.notes))

    def refuse(self, where: str) -> None:
        """Raise if anything is wrong, each fault told once."""
        if self.faults:
            raise faulty(list(dict.fromkeys(self.faults)), where)

    def try_groups(self) -> None:
        """Compose once with each option of each swept group, and note what goes wrong."""
        axes = self._files.swept_groups(self._files.sweep)
        first = {path: axis.choices.at(0).text for path, axis in axes.items()}
        for path, axis in axes.items():
            for choice in islice(axis.choices, 1, _TRIED):
                variant = _Composition(self._request, first | {path: choice.text})
                variant.run()
                known = {(fault.where, fault.message) for fault in self.faults}
                for fault in variant.faults:
                    if (fault.where, fault.message) not in known:
                        said = f"{fault.message}, with {path}={choice.text}"
                        self.faults.append(Fault(fault.where, said, fault.hint, fault.shown))

    def _finish(self, tree: Layering, notes: tuple[str, ...]) -> Composed:
        sweep = self._typed_sweep()
        swept_groups = frozenset(self._files.swept_groups(sweep))
        axes = {axis.path: axis for axis in axes_in(sweep) if axis.path not in swept_groups}
        self._refuse_unknown_axes(tree, axes)
        required = self._required(tree)
        self.faults += [
            Fault(path, f"is required ({self._words.leaves[path].says})", f"write {path}=…")
            for path in required
            if path not in axes
        ]
        root, referring, lent = _with_first_choices(tree, axes)
        resolved = self._resolved(root, referring)
        self.faults += resolved.faults
        values = finished(root, resolved.leaves, (*notes, *lent))
        trials = Trials(
            Base(
                leaves=self._words.leaves,
                root=tree.root,
                values=values,
                referring=tree.referring,
                notes=notes,
                required=tuple(path for path in axes if path in required),
                resolve=self._resolved,
            )
        )
        if not self.faults:
            self._try_choices(trials, axes)
        facts = Facts(
            schema=self._request.schema,
            values=values,
            origins={path: tuple(stack) for path, stack in tree.stacks.items()},
            notes={path: resolved.leaves.get(path, found(tree.root, path.split("."))) for path in notes},
            sweep=sweep,
            groups=self._files.chosen(),
            read_from_environment={**resolved.read, **trials.read},
            environment_leaves=resolved.touched,
        )
        return Composed(facts, trials, swept_groups=swept_groups, variant=self._variant)

    def _typed_sweep(self) -> Sweep | None:
        if self._files.sweep is None:
            return None
        sweep, faults = typed(self._files.sweep, self._request.schema)
        self.faults += faults
        return sweep

    def _variant(self, chosen: Options) -> Composed:
        composition = _Composition(self._request, dict(chosen))
        composed = composition.run()
        composition.refuse(f"with {', '.join(f'{group}={option}' for group, option in chosen)}")
        return composed

    def _resolved(self, root: dict[str, Any], referring: Mapping[str, Origin]) -> Resolved:
        if not referring:
            return Resolved()
        from stoker.config.interpolation import Resolution  # noqa: PLC0415 - most configurations have no reference

        leaves = self._words.leaves
        resolution = Resolution(
            root,
            referring,
            environment=self._request.environment,
            folder=self._request.folder,
            typed=lambda path, value: check_resolved(value, leaves.get(path)),
        )
        done = resolution.resolve_all()
        return Resolved(
            leaves=done, faults=resolution.faults, read=resolution.read, touched=frozenset(resolution.touched)
        )

    def _refuse_unknown_axes(self, tree: Layering, axes: Mapping[str, Axis]) -> None:
        """Refuse axes of files that a closed schema does not know; those of overrides were asked about before."""
        for path, axis in axes.items():
            origin = axis.origin
            if origin is None or not origin.line:
                continue
            if path in self._words.branches:
                tree.refuse_group(origin, path)
            elif not self._words.is_open and tree.owner_of(path) not in self._words.leaves:
                tree.refuse(origin, "there is no such key", self._words.suggestion(path, []), key=path)

    def _required(self, tree: Layering) -> list[str]:
        """Give the leaves that nobody set and that have no default; unknown while a file is only half read."""
        if self._shelf.is_torn:
            return []
        return [
            path
            for path, declared in self._words.leaves.items()
            if declared.is_required and path not in tree.refused and tree.at(path) is ABSENT
        ]

    def _try_choices(self, trials: Trials, axes: Mapping[str, Axis]) -> None:
        """Try each choice beside the first ones of the other axes, where a combination can go wrong."""
        first = {path: axis.choices.at(0) for path, axis in axes.items()}
        for path, axis in axes.items():
            if trials.depend_on(path, islice(axis.choices, _TRIED)):
                for choice in islice(axis.choices, _TRIED):
                    self.faults += _faults_at(trials, first | {path: choice})


def _with_first_choices(
    tree: Layering, axes: Mapping[str, Axis]
) -> tuple[dict[str, Any], Mapping[str, Origin], tuple[str, ...]]:
    """Lend each leaf that only the sweep sets its first choice, so that what refers to it can be tried.

    Gives the values, the leaves that refer, and the leaves to which something was lent.
    """
    absent = {path: axis for path, axis in axes.items() if tree.at(path) is ABSENT}
    if not absent or not tree.referring:
        return tree.root, tree.referring, ()
    lent = tree.copied()
    for path, axis in absent.items():
        lent.put_choice(path, axis.choices.at(0), axis.origin or Origin(layer=Layer.SWEEP, where="sweep"))
    return lent.root, lent.referring, tuple(absent)


def _faults_at(trials: Trials, choices: Mapping[str, Choice]) -> Sequence[Fault]:
    try:
        trials.at(list(choices.items()))
    except ConfigFaults as error:
        return error.faults
    return ()
