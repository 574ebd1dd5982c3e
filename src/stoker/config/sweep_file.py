"""A sweep in a file: a map whose order is the order of the axes, the first slowest.

    sweep:
      lr: [1e-3, 1e-4]                            # a list is an axis; so is text such as "log:1e-4:1e-1:4"
      model: {depth: "3,5,7"}                     # or model.depth: [3, 5, 7]
      zip: {width: [64, 128], heads: [4, 8]}      # walked together; several zips stand in a list
      repeat: 3                                   # an axis `seed` of 0, 1, 2; or {n: 3, path: train.seed}
      concat: [{a: [1, 2]}, {b: [1, 2]}]          # one sweep after the other
      axes: {repeat: [1, 2]}                      # paths that are words of this page themselves
      exclude: [{lr: 1e-3, model.depth: 7}]       # leaves out what agrees in all of this
      sample: {n: 10, seed: 0}                    # of what is left, so many

Exclusion and sampling come last, wherever they are written. A list of values inside a list is one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.config.overrides import is_key
from stoker.config.positions import ValueOrigin, fault_at
from stoker.config.sweep import (
    Axis,
    AxisValue,
    AxisValues,
    Concat,
    Exclude,
    ListedAxisValues,
    Sweep,
    SweepProduct,
    SweepSample,
    ValueForm,
    Zip,
    paths_of,
    size,
)
from stoker.config.value_grammar import Unreadable, read_value_or_axis
from stoker.config.values import fill_text
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.text import did_you_mean, whole_number

SweepPlace = tuple[str | int, ...]
"""Keys and indexes that lead to a value, starting at the sweep's own map."""

MOST_NESTED = 16
SEED_PATH = "seed"
_WORDS = ("zip", "repeat", "concat", "axes", "exclude", "sample")


def read_sweep(
    tree: Any, origin_of: Callable[[SweepPlace], ValueOrigin], *, key: str = "sweep"
) -> tuple[Sweep | None, list[Diagnostic]]:
    """Read the map under `key`; nothing if there are faults, which have the places of `origin_of`."""
    reader = _Reader(origin_of, key)
    sweep = reader.sweep(tree, ())
    return (None if reader.faults else sweep), reader.faults


class _Reader:
    def __init__(self, origin_of: Callable[[SweepPlace], ValueOrigin], key: str) -> None:
        self.origin_of = origin_of
        self.key = key
        self.faults: list[Diagnostic] = []

    def sweep(self, tree: Any, at: SweepPlace) -> Sweep | None:
        if not self.is_map(tree, at, "a sweep is a map of paths and their values"):
            return None
        before = len(self.faults)
        parts: list[Sweep] = []
        for key, item in tree.items():
            parts += self.parts(key, item, (*at, key))
        self.refuse_twice(parts, at)
        if not parts and len(self.faults) == before:
            self.fault(at, "the sweep has no axis", hint="such as lr: [1e-3, 1e-4]")
        if not parts or len(self.faults) > before:
            return None
        made = parts[0] if len(parts) == 1 else SweepProduct(tuple(parts))
        if "exclude" in tree:
            made = self.exclude(made, tree["exclude"], (*at, "exclude"))
        if "sample" in tree:
            made = self.sample(made, tree["sample"], (*at, "sample"))
        return made

    def parts(self, key: Any, item: Any, at: SweepPlace) -> list[Sweep]:
        """Read one key of a sweep's map; exclusion and sampling are read when all axes are known."""
        match key:
            case "exclude" | "sample":
                return []
            case "zip":
                return self.zips(item, at)
            case "repeat":
                return self.repeat(item, at)
            case "concat":
                return self.concat(item, at)
            case "axes":
                return (
                    [*self.axes(item, at)] if self.is_map(item, at, "axes is a map of paths and their values") else []
                )
        return [*self.axes({key: item}, at[:-1])]

    def axes(self, tree: Mapping[Any, Any], at: SweepPlace, above: str = "") -> Iterator[Axis]:
        """Read paths and their values; a map is a step of the path."""
        for key, item in tree.items():
            place, path = (*at, key), f"{above}.{key}" if above else str(key)
            if type(key) is not str or not is_key(path):
                self.fault(place, f"{key!r} is not a path such as lr or model.depth")
            elif isinstance(item, Mapping) and item:
                yield from self.axes(item, place, path)
            elif (choices := self.choices(path, item, place)) is not None:
                yield Axis(path=path, choices=choices, origin=self.origin_of(place))

    def choices(self, path: str, item: Any, at: SweepPlace) -> AxisValues | None:
        if isinstance(item, list | tuple | Mapping) and not item:
            self.fault(at, f"{path} has no values", hint="an axis has at least one")
            return None
        if isinstance(item, list | tuple):
            return ListedAxisValues(tuple(_given(value) for value in item))
        if type(item) is not str:
            return ListedAxisValues((_given(item),))
        try:
            found = read_value_or_axis(item)
        except Unreadable as error:
            as_text = "in a list it is text as it stands" if error.may_be_text else ""
            self.fault(at, str(error), hint="; ".join(filter(None, (error.hint, as_text))))
            return None
        return ListedAxisValues((found,)) if isinstance(found, AxisValue) else found

    def zips(self, item: Any, at: SweepPlace) -> list[Sweep]:
        if isinstance(item, list) and item:
            return [made for index, one in enumerate(item) for made in self.zips_one(one, (*at, index))]
        return self.zips_one(item, at)

    def zips_one(self, item: Any, at: SweepPlace) -> list[Sweep]:
        if not self.is_map(item, at, "zip is a map of paths and their values, or a list of such maps"):
            return []
        axes = tuple(self.axes(item, at))
        if unequal := unequal_lengths(axes):
            self.fault(at, unequal, hint="what is zipped is walked together, so the counts are equal")
        return [Zip(axes)] if axes else []

    def repeat(self, item: Any, at: SweepPlace) -> list[Sweep]:
        count, path = (item.get("n"), item.get("path", SEED_PATH)) if isinstance(item, Mapping) else (item, SEED_PATH)
        self.refuse_unknown(item, at, ("n", "path"))
        count = whole_number(count)
        if count is None or count < 1:
            self.fault(at, "repeat is a whole number from 1", hint="such as 3, or {n: 3, path: train.seed}")
            return []
        if type(path) is not str or not is_key(path):
            self.fault((*at, "path"), f"{path!r} is not a path such as seed or train.seed")
            return []
        choices = self.choices(path, f"range:{count}", at)
        return [Axis(path=path, choices=choices, origin=self.origin_of(at))] if choices is not None else []

    def concat(self, item: Any, at: SweepPlace) -> list[Sweep]:
        if not isinstance(item, list) or not item:
            self.fault(at, "concat is a list of sweeps", hint="such as [{a: [1, 2]}, {b: [1, 2]}]")
            return []
        if len(at) > 2 * MOST_NESTED:
            self.fault(at, f"sweeps are nested deeper than {MOST_NESTED} levels")
            return []
        made = [self.sweep(one, (*at, index)) for index, one in enumerate(item)]
        return [Concat(tuple(one for one in made if one is not None))]

    def exclude(self, made: Sweep, item: Any, at: SweepPlace) -> Sweep:
        conditions: list[dict[str, Any]] = []
        for index, one in enumerate(item if isinstance(item, list) else [item]):
            place = (*at, index) if isinstance(item, list) else at
            if self.is_map(one, place, "exclude is a list of maps, each with the paths and values to leave out"):
                conditions += self.condition(made, one, place)
        if not conditions:
            return made
        without = Exclude(of=made, conditions=tuple(conditions))
        try:
            left = size(without)
        except InvalidConfig as error:
            self.fault(at, error.message, hint=error.hint)
            return made
        if left < 1:
            self.fault(at, "every point is left out")
        return without

    def condition(self, made: Sweep, item: Mapping[Any, Any], at: SweepPlace) -> list[dict[str, Any]]:
        known = paths_of(made)
        condition = dict(_flattened(item, known))
        for path in condition:
            if path not in known:
                hint = did_you_mean(path, known) or f"axes: {', '.join(known)}"
                self.fault((*at, path) if path in item else at, f"{path} is not an axis of this sweep", hint=hint)
                return []
        if not condition or size(Exclude(of=made, conditions=(condition,))) == size(made):
            self.fault(at, "no point of the sweep is like this", hint="text is not a number: '0.1' is not 0.1")
            return []
        return [condition]

    def sample(self, made: Sweep, item: Any, at: SweepPlace) -> Sweep:
        count, seed = (item.get("n"), item.get("seed", 0)) if isinstance(item, Mapping) else (item, 0)
        self.refuse_unknown(item, at, ("n", "seed"))
        count, seed = whole_number(count), whole_number(seed)
        if count is None or count < 1 or seed is None:
            self.fault(at, "sample has a whole number n from 1, and a seed", hint="such as {n: 10, seed: 0}")
            return made
        return SweepSample(of=made, count=count, seed=seed)

    def refuse_twice(self, parts: list[Sweep], at: SweepPlace) -> None:
        seen: set[str] = set()
        for part in parts:
            for path in paths_of(part):
                if path in seen:
                    self.fault(at, f"{path} is swept twice", hint="concat has sweeps one after the other")
                seen.add(path)

    def refuse_unknown(self, item: Any, at: SweepPlace, known: tuple[str, ...]) -> None:
        for key in item if isinstance(item, Mapping) else ():
            if key not in known:
                hint = did_you_mean(str(key), known) or f"known: {', '.join(known)}"
                self.fault((*at, key), f"there is no {key!r} here", hint=hint)

    def is_map(self, item: Any, at: SweepPlace, says: str) -> bool:
        if isinstance(item, Mapping):
            return True
        word = at[-1] if at else ""
        hint = f"a parameter of this name is swept under axes: {{{word}: …}}" if word in _WORDS else ""
        self.fault(at, says, hint=hint)
        return False

    def fault(self, at: SweepPlace, message: str, *, hint: str = "") -> None:
        key = ".".join(map(str, (self.key, *at)))
        self.faults.append(fault_at(self.origin_of(at), message, hint=hint, key=key))


def unequal_lengths(axes: tuple[Axis, ...]) -> str:
    """Return the message that axes can't be zipped, with their lengths; empty if they can."""
    if all(axis.count == axes[0].count for axis in axes):
        return ""
    return f"zip of unequal lengths: {', '.join(f'{axis.path} has {axis.count}' for axis in axes)}"


def _given(value: Any) -> AxisValue:
    try:
        return AxisValue(fill_text(value), value, ValueForm.VALUE)
    except TypeError:
        # No plain value, such as a date of TOML: it was refused at its place when the file was read.
        return AxisValue(str(value), str(value), ValueForm.VALUE)


def _flattened(item: Mapping[Any, Any], known: tuple[str, ...], above: str = "") -> Iterator[tuple[str, Any]]:
    """Return a condition's values by dotted path; a map is a value only if the axis itself is named."""
    for key, value in item.items():
        path = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and path not in known:
            yield from _flattened(value, known, path)
        else:
            yield path, value
