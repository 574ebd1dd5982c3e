"""Scales of a plot: from a value to a place between 0 and 1, with the marks that people read.

They are made for values that `can_be_drawn`: a number of two hundred digits is as good as infinite to a picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from stoker.model.frozen import changed, frozen

_LARGEST = 1e100
_MANY_DECADES = 8
_FEW_DECADES = 1.5
# Two labels nearer than this share of an axis would touch.
_CLOSEST = 0.12


def can_be_drawn(value: float) -> bool:
    """Say whether a value has a place on a scale. NaN has none."""
    return abs(value) <= _LARGEST


@frozen
class Scale:
    """An axis from `low` to `high`; on one with categories these are positions, 0 for the first."""

    low: float
    high: float
    is_log: bool = False
    categories: tuple[str, ...] = ()
    marked: tuple[float, ...] = ()
    """Values to mark, where they are few enough to be marked all."""

    def place(self, value: float) -> float:
        """Give where a value stands: 0 at the low end, 1 at the high end."""
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        """Say whether a value has a place on this scale."""
        return can_be_drawn(value) and (not self.is_log or value >= 1 / _LARGEST)

    def ticks(self, wanted: int) -> list[tuple[float, str]]:
        """Give values worth marking, with what to write there."""
        if self.categories:
            return [(float(place), name) for place, name in enumerate(self.categories)]
        if self.marked:
            return [(value, tick_text(value)) for value in self.marked]
        values = _log_ticks(self.low, self.high) if self.is_log else _even_ticks(self.low, self.high, wanted)
        return [(value, tick_text(value)) for value in values]


def scale_over(values: Sequence[float], *, is_log: bool = False) -> Scale:
    """Give a scale on which all values fit with a little room."""
    low, high = min(values), max(values)
    if is_log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return Scale(low=low / room, high=high * room, is_log=True)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return Scale(low=low - room, high=high + room)


def scale_through(values: Sequence[float]) -> Scale:
    """Give a scale for values that somebody chose: logarithmic if they were, each of them marked if there is room."""
    scale = scale_over(values, is_log=is_geometric(values))
    distinct = sorted(set(values))
    places = [scale.place(value) for value in distinct]
    has_room = all(after - before >= _CLOSEST for before, after in pairwise(places))
    return changed(scale, marked=tuple(distinct)) if has_room else scale


def scale_of(categories: Sequence[str]) -> Scale:
    """Give a scale with a place for each category."""
    return Scale(low=-0.5, high=len(categories) - 0.5, categories=tuple(categories))


def is_geometric(values: Sequence[float]) -> bool:
    """Say whether values are spread more evenly on a logarithmic scale: positive, over a decade or more."""
    distinct = sorted(set(values))
    if not distinct or not spans(distinct, 10):
        return False
    return _largest_gap([math.log(value) for value in distinct]) <= _largest_gap(distinct)


def spans(values: Sequence[float], factor: float) -> bool:
    """Say whether all values are positive and the largest is this many times the smallest."""
    low, high = min(values), max(values)
    return low >= 1 / _LARGEST and high / low >= factor


def tick_text(value: float) -> str:
    """Write a number beside an axis."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _largest_gap(ordered: Sequence[float]) -> float:
    """Give the largest gap between neighbours as a share of the whole."""
    gaps = [after - before for before, after in pairwise(ordered)]
    return max(gaps) / sum(gaps)


def _even_ticks(low: float, high: float, wanted: int) -> list[float]:
    step = _round_step((high - low) / wanted)
    # A hair's breadth of room: 0.3 / 0.1 is a little less than 3.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded to the step's own digits, or 3 × 0.1 would be written in full.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(place * step, digits) for place in range(first, last + 1)]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(nice for nice in (1, 2, 5, 10) if nice * power >= step * 0.999)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = math.log10(high) - math.log10(low)
    if decades < 0.5:
        return _even_ticks(low, high, 4)
    factors = (1, 2, 5) if decades < _FEW_DECADES else (1,)
    every = max(1, math.ceil(decades / _MANY_DECADES))
    values = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return [value for value in values if low <= value <= high]
