"""Sweeps: a tree of axes that defines the points, and their order, without making them.

The order is part of the contract: in a product the first part is slowest, as in nested loops; a concatenation gives
its parts one after the other; leaving points out or sampling keeps the order of the rest. Points are made one at a
time, so memory does not grow with their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from itertools import islice, repeat
from math import prod
from typing import Any, Protocol

from stoker.config.positions import ValueOrigin
from stoker.config.values import same, scalar, text_of
from stoker.core.digests import digest_value
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.text import lazy_pattern


class ValueForm(Enum):
    """How a value was given, which decides how a declared type reads it."""

    PLAIN = "plain"
    """Text without quotes: the declared type reads it."""
    QUOTED = "quoted"
    """Text in quotes: text wherever the field can hold text."""
    VALUE = "value"
    """A value already, from a file: the declared type only checks it."""


@frozen_by_position
class AxisValue:
    """One value as given: its text, and its value."""

    text: str
    """Without quotes and escapes if it is a single value, as typed if it is a list or a map."""
    value: Any
    """Read by the rules for fields without a declared type (`values`), or by the declared type once that is known."""
    form: ValueForm = ValueForm.PLAIN

    @property
    def refers(self) -> bool:
        """It contains a `${…}`, so its value is known only when references are resolved."""
        return "${" in self.text


class AxisValues(Protocol):
    """The values of an axis, in order; never empty."""

    @property
    def count(self) -> int: ...

    def at(self, index: int) -> AxisValue:
        """Return the choice of an index from 0."""

    def __iter__(self) -> Iterator[AxisValue]: ...

    def indexes_of(self, value: Any) -> Sequence[int]:
        """Return the indexes of this value."""


@frozen_by_position
class ListedAxisValues:
    """Listed values."""

    items: tuple[AxisValue, ...]

    @property
    def count(self) -> int:
        return len(self.items)

    def at(self, index: int) -> AxisValue:
        return self.items[index]

    def __iter__(self) -> Iterator[AxisValue]:
        return iter(self.items)

    def indexes_of(self, value: Any) -> Sequence[int]:
        return [index for index, choice in enumerate(self.items) if same(choice.value, value)]


@frozen
class Axis:
    """A path and the values that it takes, in order.

    Values are listed, or computed one at a time (`sweep_ranges`), so an axis of a billion values costs as much as one
    of two.
    """

    path: str
    """Dotted; or the name of a group, whose options are swept."""
    choices: AxisValues
    origin: ValueOrigin | None = None

    @property
    def count(self) -> int:
        return self.choices.count


_SAFE = lazy_pattern(r"[A-Za-z0-9_.+-]{1,40}", re.ASCII)
_UNSAFE = lazy_pattern(r"[^A-Za-z0-9_.+-]+", re.ASCII)
# Paths have neither + nor %, so nothing else is written like this.
_IN_PATHS = str.maketrans({"/": "+", "$": "%"})
_FROM_LABELS = str.maketrans({"+": "/", "%": "$"})
_LONGEST_BYTES = 120
_SHORTENED = 24
_VALUE_DIGITS, _LABEL_DIGITS = 12, 16


def label_of(values: Iterable[tuple[str, Any]]) -> str:
    """Name a point by its paths and values: `lr=0.001,model.depth=3`.

    It needs no quotes in a shell, is a valid folder name, and two points of one sweep whose values differ never share
    it. Numbers are written in their shortest exact form, so 1e-3 and 0.001 are one name. A value that is long or has
    special characters is shortened and ends in `@` and a digest of itself; so does a label that grows too long.
    """
    label = ",".join(f"{path.translate(_IN_PATHS)}={_value_label(value)}" for path, value in values)
    encoded = label.encode()
    if len(encoded) <= _LONGEST_BYTES:
        return label
    kept = encoded[:_LONGEST_BYTES].decode(errors="ignore")
    return f"{kept}@{digest_value('label', label)[:_LABEL_DIGITS]}"


def read_label(label: str) -> dict[str, Any]:
    """Return the values by path that a label names; none if it does not name them all exactly."""
    parts = (part.partition("=") for part in label.split(","))
    values = {path.translate(_FROM_LABELS): scalar(text) for path, _, text in parts}
    return values if label_of(values.items()) == label else {}


def _value_label(value: Any) -> str:
    readable: str = value if type(value) is str else text_of(value)
    if _stands(readable, type(value) is str):
        return readable
    plain = _UNSAFE.sub("_", readable[: 2 * _SHORTENED]).strip("_")[:_SHORTENED]
    return f"{plain}@{digest_value('label', value)[:_VALUE_DIGITS]}"


@lru_cache(maxsize=1024)
def _stands(readable: str, is_text: bool) -> bool:  # noqa: FBT001 - by position it is found again sooner
    """Return True if a value can be used as it is written. Ten thousand points have a few hundred values."""
    # Text that looks like a number or a word of the grammar is not the same as that.
    return _SAFE.fullmatch(readable) is not None and (scalar(readable) is readable) is is_text


Condition = Mapping[str, Any]
"""Values by path; a point matches it if it has all of these."""

# A part of a product that is walked repeatedly is kept up to this many points.
_KEPT = 4096
# Counting what overlapping conditions exclude may take a step for every set of them that can hold together.
_MOST_STEPS = 5_000
_MOST_WALKED = 100_000

_Choices = tuple[tuple[str, AxisValue], ...]


@frozen_by_position
class SweepProduct:
    """Every combination of its parts' points."""

    parts: tuple[Sweep, ...]


@frozen_by_position
class Zip:
    """Axes of one length, walked together."""

    parts: tuple[Axis, ...]


@frozen_by_position
class Concat:
    """One sweep after the other."""

    parts: tuple[Sweep, ...]


@frozen
class Exclude:
    """A sweep without the points that match one of these conditions."""

    of: Sweep
    conditions: tuple[Condition, ...]


@frozen
class SweepSample:
    """A number of points of a sweep (or all, if it has fewer), chosen by a seed and nothing else."""

    of: Sweep
    count: int
    seed: int = 0


Sweep = Axis | SweepProduct | Zip | Concat | Exclude | SweepSample


@frozen_by_position
class SweepPoint:
    """One trial's choices: path and choice of each axis, in the order of the axes."""

    choices: tuple[tuple[str, AxisValue], ...]

    @property
    def label(self) -> str:
        """Its name: valid in a shell and as a folder, and unique within a sweep."""
        return label_of((path, choice.value) for path, choice in self.choices)


def size(sweep: Sweep) -> int:
    """Count the points without making them, duplicates included."""
    return _count(sweep, {})


def points(sweep: Sweep) -> Iterator[SweepPoint]:
    """Return the points one at a time, in order."""
    return map(SweepPoint, _walk(sweep))


def paths_of(sweep: Sweep) -> tuple[str, ...]:
    """Return every path that the sweep sets at some point, in order."""
    return tuple(dict.fromkeys(axis.path for axis in axes_of(sweep)))


def axes_of(sweep: Sweep) -> Iterator[Axis]:
    """Return every axis of the tree, in order."""
    match sweep:
        case Axis():
            yield sweep
        case Exclude() | SweepSample():
            yield from axes_of(sweep.of)
        case _:
            for part in sweep.parts:
                yield from axes_of(part)


def _walk(sweep: Sweep) -> Iterator[_Choices]:
    match sweep:
        case Axis():
            return zip(_walk_pairs(sweep))
        case SweepProduct():
            return _walk_product(sweep.parts)
        case Zip():
            return zip(*map(_walk_pairs, sweep.parts), strict=True)
        case Concat():
            return (choices for part in sweep.parts for choices in _walk(part))
        case Exclude():
            return (choices for choices in _walk(sweep.of) if not _agrees_with_any(choices, sweep.conditions))
        case SweepSample():
            return _walk_sample(sweep)


def _walk_pairs(axis: Axis) -> Iterator[tuple[str, AxisValue]]:
    return zip(repeat(axis.path), axis.choices)


def _walk_product(parts: tuple[Sweep, ...]) -> Iterator[_Choices]:
    """Count like an odometer, so that neither memory nor the stack grows with the number of parts."""
    if not parts:
        yield ()
        return
    again = [_walk_again(part) for part in parts]
    last = len(parts) - 1
    walks = [iter(again[0]())]
    heads: list[_Choices] = [()]
    while walks:
        if len(walks) > last:
            head = heads[-1]
            for choices in walks.pop():
                yield head + choices
            heads.pop()
            continue
        found = next(walks[-1], None)
        if found is None:
            walks.pop()
            heads.pop()
        else:
            heads.append(heads[-1] + found)
            walks.append(iter(again[len(walks)]()))


def _walk_again(part: Sweep) -> Callable[[], Iterable[_Choices]]:
    if size(part) > _KEPT:
        return lambda: _walk(part)
    kept = list(_walk(part))
    return lambda: kept


def _walk_sample(sample: SweepSample) -> Iterator[_Choices]:
    if sample.count >= size(sample.of):
        yield from _walk(sample.of)
        return
    base, conditions = (sample.of.of, sample.of.conditions) if isinstance(sample.of, Exclude) else (sample.of, ())
    chosen: list[int] = []
    for index in _shuffled(size(base), sample.seed):
        if not conditions or not _agrees_with_any(_at(base, index), conditions):
            chosen.append(index)
        if len(chosen) == sample.count:
            break
    for index in sorted(chosen):
        yield _at(base, index)


def _shuffled(count: int, seed: int) -> Iterator[int]:
    """Return the numbers below `count` in an order that the seed decides, the same in every version of Python."""
    moved: dict[int, int] = {}
    for drawn in range(count):
        digest = sha256(b"stoker/sample\0%d:%d" % (seed, drawn)).digest()
        other = drawn + int.from_bytes(digest) % (count - drawn)
        yield moved.get(other, other)
        moved[other] = moved.pop(drawn, drawn)


def _at(sweep: Sweep, index: int) -> _Choices:
    """Return the choices of one point by its index from 0."""
    match sweep:
        case Axis():
            return ((sweep.path, sweep.choices.at(index)),)
        case SweepProduct():
            found: list[_Choices] = []
            for part in reversed(sweep.parts):
                index, own = divmod(index, size(part))
                found.append(_at(part, own))
            return tuple(choice for choices in reversed(found) for choice in choices)
        case Zip():
            return tuple((axis.path, axis.choices.at(index)) for axis in sweep.parts)
        case Concat():
            for part in sweep.parts:
                if index < size(part):
                    return _at(part, index)
                index -= size(part)
            raise IndexError(index)
        case Exclude() | SweepSample():
            return next(islice(_walk(sweep), index, None))


def _agrees_with_any(choices: _Choices, conditions: tuple[Condition, ...]) -> bool:
    values = {path: choice.value for path, choice in choices}
    return any(
        all(path in values and same(values[path], value) for path, value in condition.items())
        for condition in conditions
    )


def _count(sweep: Sweep, condition: Condition) -> int:
    """Count the points that match a condition."""
    match sweep:
        case Axis():
            return _count_rows((sweep,), condition)
        case Zip():
            return _count_rows(sweep.parts, condition)
        case SweepProduct():
            return _count_product(sweep.parts, condition)
        case Concat():
            return sum(_count(part, condition) for part in sweep.parts)
        case Exclude():
            return _count(sweep.of, condition) - _count_any(sweep.of, condition, sweep.conditions)
        case SweepSample():
            return _count_sample(sweep, condition)


def _count_rows(axes: tuple[Axis, ...], condition: Condition) -> int:
    """Count among axes that are zipped."""
    if not condition:
        return axes[0].count
    if len(axes) == len(condition) == 1 and axes[0].path in condition:
        return len(axes[0].choices.indexes_of(condition[axes[0].path]))
    by_path = {axis.path: axis for axis in axes}
    if not condition.keys() <= by_path.keys():
        return 0
    found = [by_path[path].choices.indexes_of(value) for path, value in condition.items()]
    return len(found[0]) if len(found) == 1 else len(set(found[0]).intersection(*found[1:]))


def _count_product(parts: tuple[Sweep, ...], condition: Condition) -> int:
    if not condition:
        return prod(size(part) for part in parts)
    total, met = 1, 0
    for part in parts:
        known = (part.path,) if isinstance(part, Axis) else paths_of(part)
        own = {path: condition[path] for path in known if path in condition}
        met += len(own)
        total *= _count(part, own)
    return total if met == len(condition) else 0


def _count_sample(sample: SweepSample, condition: Condition) -> int:
    if not condition:
        return min(sample.count, size(sample.of))
    return sum(1 for choices in _walk(sample) if _agrees_with_any(choices, (condition,)))


def _count_any(of: Sweep, condition: Condition, others: tuple[Condition, ...]) -> int:
    """Count the points that match a condition and at least one of some others.

    By inclusion and exclusion: every set of the others that can hold together is added or subtracted. Sets that can't
    are cut off early, so in practice there are few; if there are many, the points are walked if they are not too many.
    """
    total, steps = 0, 0
    pending: list[tuple[int, Condition, int]] = [(0, condition, 1)]
    while pending:
        first, held, sign = pending.pop()
        for index in range(first, len(others)):
            steps += 1
            if steps > _MOST_STEPS:
                return _walk_and_count(of, condition, others)
            both = _both(held, others[index])
            found = _count(of, both) if both is not None else 0
            if both is not None and found:
                total += sign * found
                pending.append((index + 1, both, -sign))
    return total


def _both(one: Condition, other: Condition) -> Condition | None:
    if any(path in one and not same(one[path], value) for path, value in other.items()):
        return None
    return {**one, **other}


def _walk_and_count(of: Sweep, condition: Condition, others: tuple[Condition, ...]) -> int:
    if size(of) > _MOST_WALKED:
        message = f"{len(others)} exclusions overlap in too many ways to be counted"
        raise InvalidConfig(message, faults=(Diagnostic("sweep.exclude", message),), hint="exclude less, or sweep less")
    return sum(
        1 for choices in _walk(of) if _agrees_with_any(choices, (condition,)) and _agrees_with_any(choices, others)
    )
