"""Curves out of files of metrics: one per name, thinned while reading, so that memory stays flat.

What a program reported itself goes before what was read off its output under the same name. Of two values at one step
the later counts: an attempt that goes on from a checkpoint writes some steps again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stoker.model.frozen import frozen
from stoker.plan.metrics.file import Frame, OnDamage, Source, pass_over, read_frames

POINTS = 1000
"""Of one curve: more than a screen has columns."""
ALL_POINTS = 1_000_000
"""Of all curves together; where there are very many, each gets fewer."""
_FEWEST = 20
_KEPT_PER_PART = 5

Point = tuple[int, float]


@frozen
class LastValue:
    """The newest value of a metric."""

    value: float
    step: int
    at_s: float
    source: Source


def last_values(paths: Sequence[str], *, on_damage: OnDamage = pass_over) -> dict[str, LastValue]:
    """Give the newest value of each metric, in the order in which the names came up."""
    newest: dict[str, LastValue] = {}
    for path in paths:
        for frame in read_frames(path, on_damage=on_damage):
            last_row = {index: at for at, index in enumerate(frame.name_of)}
            for index, at in last_row.items():
                name = frame.names[index]
                before = newest.get(name)
                if before is None or frame.source <= before.source:
                    newest[name] = LastValue(
                        value=frame.values[at], step=frame.steps[at], at_s=frame.times_s[at], source=frame.source
                    )
    return newest


def curves(
    paths: Sequence[str], *, points: int = POINTS, names: Sequence[str] | None = None, on_damage: OnDamage = pass_over
) -> dict[str, list[Point]]:
    """Give (step, value) for each metric, or for those of some `names`, ordered by step.

    A curve of more than `points` values is thinned: of each of its parts there remain the first, last, lowest and
    highest value and the first one that is not finite.
    """
    gathered = _Gathered(points, None if names is None else frozenset(names))
    for path in paths:
        for frame in read_frames(path, on_damage=on_damage):
            gathered.add(frame)
    return gathered.curves()


class _Gathered:
    def __init__(self, points: int, wanted: frozenset[str] | None) -> None:
        self._limit = max(points, _FEWEST)
        self._wanted = wanted
        self._names: dict[str, None] = {}
        self._raw: dict[tuple[str, Source], list[Point]] = {}

    def add(self, frame: Frame) -> None:
        lists = [self._list_of(name, frame.source) for name in frame.names]
        for step, value, index in zip(frame.steps, frame.values, frame.name_of, strict=True):
            lists[index].append((step, value))
        for points in lists:
            if len(points) >= 2 * self._limit:
                points[:] = thin(points, self._limit)

    def curves(self) -> dict[str, list[Point]]:
        found = {}
        for name in self._names:
            reported, from_stdout = ((name, source) for source in (Source.REPORTED, Source.STDOUT))
            found[name] = thin(self._raw.get(reported) or self._raw[from_stdout], self._limit)
        return found

    def _list_of(self, name: str, source: Source) -> list[Point]:
        if self._wanted is not None and name not in self._wanted:
            return []
        points = self._raw.get((name, source))
        if points is None:
            points = self._raw[name, source] = []
            self._names[name] = None
            self._limit = max(_FEWEST, min(self._limit, ALL_POINTS // len(self._raw)))
        return points


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """Order points by step, the later of two at one step; if that is more than `limit`, leave out the dull ones."""
    # A map keeps the place of the first and the value of the last, and the sort is on steps that differ.
    ordered = sorted(dict(points).items())
    if len(ordered) <= limit:
        return ordered
    parts = max(1, limit // _KEPT_PER_PART)
    first_step = ordered[0][0]
    span = ordered[-1][0] - first_step + 1
    kept: list[Point] = []
    part: list[Point] = []
    part_number = 0
    for point in ordered:
        number = (point[0] - first_step) * parts // span
        if number != part_number:
            kept += _telling(part)
            part, part_number = [], number
        part.append(point)
    return kept + _telling(part)


def _telling(part: list[Point]) -> list[Point]:
    if len(part) <= _KEPT_PER_PART:
        return part
    finite = [point for point in part if math.isfinite(point[1])]
    chosen = {part[0], part[-1]}
    if finite:
        chosen |= {min(finite, key=_value), max(finite, key=_value)}
    if len(finite) < len(part):
        chosen.add(next(point for point in part if not math.isfinite(point[1])))
    return sorted(chosen, key=_step)


def _step(point: Point) -> int:
    return point[0]


def _value(point: Point) -> float:
    return point[1]
