"""The values of one trial, made from those of all: only what a point changes is copied.

The value of each choice of an axis is read once and remembered. References are resolved again for each trial, since
they may refer to what the point sets. Trials share values as one object, which must not be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from stoker.config.positions import ConfigLayer, ValueOrigin
from stoker.config.sweep import AxisValue, ValueForm
from stoker.config.typed_values import check_value, owner_of, value_of
from stoker.config.values import ABSENT, DeclaredLeaf, found, merged, refers, replaced, with_value, without
from stoker.core.digests import Digest
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.frozen import fresh, frozen

# An axis may have a billion values; the first ones are remembered.
_REMEMBERED = 10_000

PointChoices = Sequence[tuple[str, AxisValue]]
Resolve = Callable[[dict[str, Any], Mapping[str, ValueOrigin]], "ResolvedReferences"]


@frozen
class ResolvedReferences:
    """The result of resolving the references of one tree."""

    leaves: Mapping[str, Any] = fresh(factory=dict)
    """The leaves that had references, by their path."""
    faults: Sequence[Diagnostic] = ()
    read: Mapping[str, Digest] = fresh(factory=dict)
    """The variables that were read, each with a digest of its value."""
    touched: frozenset[str] = frozenset()
    """The leaves that contain a variable."""


@frozen
class TrialBase:
    """The base of every trial."""

    leaves: Mapping[str, DeclaredLeaf]
    root: dict[str, Any]
    """All values, notes among them, with references as written."""
    values: dict[str, Any]
    """The same without notes, resolved."""
    referring: Mapping[str, ValueOrigin]
    notes: Sequence[str]
    required: Sequence[str]
    """The leaves that only points set, and every point has to."""
    resolve: Resolve


@frozen
class _Target:
    """Where the choices of one path are set."""

    path: str
    owner: str
    """The leaf: the path itself, or the list or the declared map that it leads into."""
    steps: tuple[str, ...]
    """Of the owner."""
    inner: tuple[str, ...]
    """From the owner to the place in it."""
    declared: DeclaredLeaf | None
    """Of the owner."""
    known: dict[str, tuple[AxisValue, Any]]
    """Values of choices, by their text."""


class Trials:
    """Returns the values of points."""

    def __init__(self, base: TrialBase) -> None:
        self.read: dict[str, Digest] = {}
        """The variables that references of points read, each with a digest of its value."""
        self._base = base
        self._targets: dict[str, _Target] = {}

    def at(self, choices: PointChoices) -> dict[str, Any]:
        """Return the values of one point. Raises `InvalidConfig` if they are invalid."""
        base = self._base
        if base.required:
            self._refuse_missing(choices)
        if not choices:
            return dict(base.values)
        if base.referring or any(choice.refers for _, choice in choices):
            return self._resolved(choices)
        root = dict(base.values)
        for path, choice in choices:
            target = self._targets.get(path) or self._target(path)
            self._put(root, target, self._meaning(root, target, choice))
        return root

    def depend_on(self, path: str, choices: Iterable[AxisValue]) -> bool:
        """Return True if a choice may be wrong only beside others: because of references, or as an item of a leaf."""
        is_inside = bool(self._target(path).inner)
        return bool(self._base.referring) or is_inside or any(choice.refers for choice in choices)

    def _refuse_missing(self, choices: PointChoices) -> None:
        given = {path for path, _ in choices}
        faults = [
            Diagnostic(path, f"is required ({self._base.leaves[path].says})", "a point of the sweep does not set it")
            for path in self._base.required
            if path not in given
        ]
        if faults:
            raise faulty(faults, "in one point of the sweep")

    def _meaning(self, root: dict[str, Any], target: _Target, choice: AxisValue) -> Any:
        """Return the value of a leaf for a choice."""
        if target.inner:
            return self._meaning_inside(root, target, choice)
        met = target.known.get(choice.text)
        if met is not None and (met[0] is choice or met[0].form is choice.form is ValueForm.PLAIN):
            return met[1]
        try:
            value = value_of(choice, target.declared)
        except ValueError as error:
            raise _refused(target.path, choice, str(error)) from None
        if len(target.known) < _REMEMBERED:
            target.known[choice.text] = (choice, value)
        return value

    def _meaning_inside(self, root: dict[str, Any], target: _Target, choice: AxisValue) -> Any:
        # Text that the fixed rules read as a number is still text if the leaf takes text.
        tries = [choice.value, choice.text] if choice.form is ValueForm.PLAIN else [choice.value]
        refused = ""
        for value in tries:
            whole = replaced(found(root, target.steps), target.inner, value)
            if whole is ABSENT:
                raise _refused(target.path, choice, "there is no such item")
            try:
                return whole if refers(whole) else check_value(whole, target.declared)
            except ValueError as error:
                refused = refused or str(error)
        raise _refused(target.path, choice, refused)

    def _put(self, root: dict[str, Any], target: _Target, value: Any) -> None:
        """Put a value into a tree whose top is ours already; every map on the way is copied."""
        into = root
        for step in target.steps[:-1]:
            inner = into.get(step)
            into[step] = into = dict(inner) if type(inner) is dict else {}
        last = target.steps[-1]
        if type(value) is dict and target.declared is None and type(into.get(last)) is dict:
            value = merged(into[last], value)
        into[last] = value

    def _resolved(self, choices: PointChoices) -> dict[str, Any]:
        base = self._base
        root = dict(base.root)
        referring = dict(base.referring)
        for path, choice in choices:
            target = self._target(path)
            self._put(root, target, self._unresolved(root, target, choice))
            for other in [one for one in referring if one == target.owner or one.startswith(f"{target.owner}.")]:
                del referring[other]
            if refers(found(root, target.steps)):
                referring[target.owner] = _origin(path, choice)
        resolved = base.resolve(root, referring)
        self.read.update(resolved.read)
        if resolved.faults:
            raise faulty(resolved.faults, "in one point of the sweep")
        return finished(root, resolved.leaves, base.notes)

    def _unresolved(self, root: dict[str, Any], target: _Target, choice: AxisValue) -> Any:
        if not choice.refers or target.inner:
            return self._meaning(root, target, choice)
        return choice.text if type(choice.value) is str else choice.value

    def _target(self, path: str) -> _Target:
        if path not in self._targets:
            owner = owner_of(path, self._base.root, self._base.leaves)
            steps, all_steps = owner.split("."), path.split(".")
            self._targets[path] = _Target(
                path=path,
                owner=owner,
                steps=tuple(steps),
                inner=tuple(all_steps[len(steps) :]),
                declared=self._base.leaves.get(owner),
                known={},
            )
        return self._targets[path]


def finished(root: dict[str, Any], resolved: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    """Return a tree with its references resolved, and without the notes."""
    for path, value in resolved.items():
        root = with_value(root, path.split("."), value)
    for path in notes:
        root = without(root, path.split("."))
    return root


def faulty(faults: Sequence[Diagnostic], where: str) -> InvalidConfig:
    """Return the one error for some faults."""
    message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors {where}"
    return InvalidConfig(message, faults=tuple(faults))


def _origin(path: str, choice: AxisValue) -> ValueOrigin:
    return ValueOrigin(layer=ConfigLayer.SWEEP, where=f"{path}={choice.text}")


def _refused(path: str, choice: AxisValue, message: str) -> InvalidConfig:
    return faulty([Diagnostic(str(_origin(path, choice)), message)], "")


P = TypeVar("P")

_MOST_TOLD = 20
# 128 bits: no two of any feasible number of points share them by accident.
_KEPT_DIGITS = 32


@frozen
class MergedPoint:
    """A point that was left out because it equals an earlier one. Numbers count all points, from 1."""

    number: int
    label: str
    same_as: int


class DistinctPoints(Generic[P]):
    """An iterator over the points whose fingerprint was not seen before, each with its fingerprint; others are merged.

    Only digests are remembered, so memory is that of the fingerprints, not of the points.
    """

    def __init__(
        self, points: Iterable[P], fingerprint_of: Callable[[P], Digest], *, label_of: Callable[[P], str]
    ) -> None:
        self._points = enumerate(points, start=1)
        self._fingerprint_of = fingerprint_of
        self._label_of = label_of
        self._seen: dict[bytes, int] = {}
        self.merged_count = 0
        self.merged: list[MergedPoint] = []
        """The first of those that were merged; `merged_count` has all."""

    def __iter__(self) -> Iterator[tuple[P, Digest]]:
        return self

    def __next__(self) -> tuple[P, Digest]:
        for number, point in self._points:
            fingerprint = self._fingerprint_of(point)
            first = self._seen.setdefault(bytes.fromhex(fingerprint[:_KEPT_DIGITS]), number)
            if first == number:
                return point, fingerprint
            self.merged_count += 1
            if len(self.merged) < _MOST_TOLD:
                self.merged.append(MergedPoint(number=number, label=self._label_of(point), same_as=first))
        raise StopIteration
