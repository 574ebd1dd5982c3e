"""Curves of any length out of metrics files, whole or a range of steps, by the levels beside the files.

Several files are one curve: those of a stage and of its program, and of one attempt after the other. What a program
reported itself goes before what was read off its output. Of two values at one step the later counts; where a later
stretch of a curve covers steps of an earlier one and only levels are read, the earlier stretch is left out there.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from stoker.core.frozen import frozen
from stoker.engine.metrics.curves import thin
from stoker.engine.metrics.metric_levels import KINDS, LEVELS, NONE, LevelBlocks, SeriesPart, TimedPoint, series_parts
from stoker.engine.metrics.metric_names import Direction, known_direction, preference
from stoker.engine.metrics.metrics_file import MetricSource

_RAW_BYTES = 1 << 20
"""Of metrics files, read value by value; beyond it levels are used."""
_DETAIL_BYTES = 32 << 20
"""The same if all values of the range are wanted."""
_BLOCKS_PER_PART = 2
_KEPT_PER_PART = 5


@frozen
class ReadCurve:
    """One metric over its steps, thinned."""

    name: str
    points: tuple[TimedPoint, ...]
    total: int
    """Number of values in the range; of a long one with borders inside blocks, about."""
    direction: Direction | None
    best: TimedPoint | None
    """Of the whole curve, as is `last`."""
    last: TimedPoint | None
    source: MetricSource


class CurveReader:
    """The curves of some metrics files, the later ones of which go before the earlier. Reads what was there first."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._parts: dict[str, dict[MetricSource, list[SeriesPart]]] = {}
        for path in paths:
            for (name, source), parts in series_parts(path).items():
                self._parts.setdefault(name, {}).setdefault(source, []).extend(parts)
        self.names = sorted(self._parts, key=preference)
        """All metrics, the most telling first."""

    def curve(
        self, name: str, *, points: int, first: int | None = None, last: int | None = None, shown: str = ""
    ) -> ReadCurve | None:
        """Return a metric between two steps, both included, perhaps under another name; None: no such metric."""
        by_source = self._parts.get(name)
        if by_source is None:
            return None
        source = min(by_source)
        parts = by_source[source]
        low, high = _LOWEST if first is None else first, _HIGHEST if last is None else last
        found, total = _read(parts, points, low, high)
        whole = found if first is None and last is None else _read(parts, _KEPT_PER_PART, _LOWEST, _HIGHEST)[0]
        direction = known_direction(name)
        return ReadCurve(
            name=shown or name,
            points=tuple(thin(found, points)),
            total=total,
            direction=direction,
            best=_best(whole, direction),
            last=max(whole, key=_step, default=None),
            source=source,
        )


_LOWEST, _HIGHEST = -(1 << 63), 1 << 63


def _read(parts: Sequence[SeriesPart], points: int, low: int, high: int) -> tuple[list[TimedPoint], int]:
    """Return values in a range of steps of which a curve of so many points can be made, and how many there are."""
    parts = [part for part in parts if part.high >= low and part.low <= high]
    size_bytes = sum(part.end_bytes - part.start_bytes for part in parts if part.columns is None)
    if size_bytes <= (_DETAIL_BYTES if sum(part.count for part in parts) <= points else _RAW_BYTES):
        found = {point[0]: point for part in parts for point in part.points() if low <= point[0] <= high}
        return list(found.values()), len(found)
    wanted = _BLOCKS_PER_PART * max(1, points // _KEPT_PER_PART)
    level = next(
        (level for level in range(len(LEVELS) - 1, 0, -1) if sum(part.blocks[level] for part in parts) >= wanted), 0
    )
    blocks = [one for one in _blocks(parts, level) if max(one[1])[0] >= low and min(one[1])[0] <= high]
    later = _later([block for _, block in blocks])
    return [point for point in later if low <= point[0] <= high], sum(count for count, _ in blocks)


_Block = list[TimedPoint]
"""Telling values of a block, its first and last value among them."""


def _blocks(parts: Iterable[SeriesPart], level: int) -> Iterator[tuple[int, _Block]]:
    """Return blocks in the order of the file, each with the number of its values."""
    for part in parts:
        if part.blocks[0]:
            yield from _points_of(part.level(level))
        else:
            # The rest of a file: each stretch of ascending steps counts as one block.
            block: _Block = []
            for point in part.points():
                if block and point[0] <= block[-1][0]:
                    yield len(block), block
                    block = []
                block.append(point)
            if block:
                yield len(block), block


def _points_of(blocks: LevelBlocks) -> Iterator[tuple[int, _Block]]:
    kinds = [zip(blocks.steps[kind], blocks.values[kind], blocks.times_s[kind], strict=True) for kind in range(KINDS)]
    for count, telling in zip(blocks.counts, zip(*kinds, strict=True), strict=True):
        yield count, [point for point in telling if point[0] != NONE]


def _later(blocks: Sequence[_Block]) -> Iterator[TimedPoint]:
    """Return the points of blocks without those in steps that a later stretch of ascending blocks covers."""
    ranges = [(min(block)[0], max(block)[0]) for block in blocks]
    starts = [0, *(at for at in range(1, len(blocks)) if ranges[at][0] <= ranges[at - 1][1])]
    if len(starts) == 1:
        for block in blocks:
            yield from block
        return
    covered = _Covered()
    for begin, end in reversed(list(zip(starts, [*starts[1:], len(blocks)], strict=True))):
        for at in range(begin, end):
            if not covered.touches(*ranges[at]):
                yield from blocks[at]
            else:
                yield from (point for point in blocks[at] if not covered.touches(point[0], point[0]))
        covered.add(ranges[begin][0], ranges[end - 1][1])


class _Covered:
    """Ranges of steps, as few as possible, in order."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def touches(self, low: int, high: int) -> bool:
        at = bisect_left(self._highs, low)
        return at < len(self._lows) and self._lows[at] <= high

    def add(self, low: int, high: int) -> None:
        begin, end = bisect_left(self._highs, low), bisect_right(self._lows, high)
        if begin < end:
            low, high = min(low, self._lows[begin]), max(high, self._highs[end - 1])
        self._lows[begin:end] = [low]
        self._highs[begin:end] = [high]


def _best(points: Sequence[TimedPoint], direction: Direction | None) -> TimedPoint | None:
    finite = [point for point in points if math.isfinite(point[1])]
    if direction is None or not finite:
        return None
    # Of equal ones the first that was reached.
    if direction is Direction.SMALLER:
        return min(finite, key=lambda point: (point[1], point[0]))
    return max(finite, key=lambda point: (point[1], -point[0]))


def _step(point: TimedPoint) -> int:
    return point[0]
