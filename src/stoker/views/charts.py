"""The charts of a comparison as data: panels, axes, marks and lines; `svg` and `png` draw them.

`metrics`: metrics against each varied parameter. `curves`: metrics over steps, all trials in one panel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stoker.core.frozen import changed, frozen
from stoker.engine.metrics.metric_names import Direction
from stoker.engine.ranking import Measure
from stoker.jobs.comparison import CURVES_DRAWN, Comparison, Curves, TrialRow
from stoker.views.stage_lines import number
from stoker.views.text_tables import value_text

# Scales of a plot: from a value to a position between 0 and 1, with tick marks.
#
# Only for values that `can_be_drawn`: a number of two hundred digits counts as infinite.

_LARGEST = 1e100
_MANY_DECADES = 8
_FEW_DECADES = 1.5
# Two labels nearer than this share of an axis would touch.
_CLOSEST = 0.12


def can_be_drawn(value: float) -> bool:
    """Return True if a value can be drawn. NaN can't."""
    return abs(value) <= _LARGEST


@frozen
class Scale:
    """An axis from `low` to `high`; on one with categories these are positions, 0 for the first."""

    low: float
    high: float
    is_log: bool = False
    categories: tuple[str, ...] = ()
    marked: tuple[float, ...] = ()
    """Values to mark, if there are few enough."""

    def place(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        """Return True if a value is on this scale."""
        return can_be_drawn(value) and (not self.is_log or value >= 1 / _LARGEST)

    def ticks(self, wanted: int) -> list[tuple[float, str]]:
        """Return the tick marks with their labels."""
        if self.categories:
            return [(float(place), name) for place, name in enumerate(self.categories)]
        if self.marked:
            return [(value, tick_text(value)) for value in self.marked]
        values = _log_ticks(self.low, self.high) if self.is_log else _even_ticks(self.low, self.high, wanted)
        return [(value, tick_text(value)) for value in values]


def scale_over(values: Sequence[float], *, is_log: bool = False) -> Scale:
    """Return a scale for all values with a margin."""
    low, high = min(values), max(values)
    if is_log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return Scale(low=low / room, high=high * room, is_log=True)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return Scale(low=low - room, high=high + room)


def scale_through(values: Sequence[float]) -> Scale:
    """Return a scale for swept values: logarithmic if they were, with all values marked if they fit."""
    scale = scale_over(values, is_log=is_geometric(values))
    distinct = sorted(set(values))
    places = [scale.place(value) for value in distinct]
    has_room = all(after - before >= _CLOSEST for before, after in pairwise(places))
    return changed(scale, marked=tuple(distinct)) if has_room else scale


def scale_of(categories: Sequence[str]) -> Scale:
    """Return a scale with a position for each category."""
    return Scale(low=-0.5, high=len(categories) - 0.5, categories=tuple(categories))


def is_geometric(values: Sequence[float]) -> bool:
    """Return True if values are spread more evenly on a logarithmic scale: positive, over a decade or more."""
    distinct = sorted(set(values))
    if not distinct or not spans(distinct, 10):
        return False
    return _largest_gap([math.log(value) for value in distinct]) <= _largest_gap(distinct)


def spans(values: Sequence[float], factor: float) -> bool:
    """Return True if all values are positive and the largest is this many times the smallest."""
    low, high = min(values), max(values)
    return low >= 1 / _LARGEST and high / low >= factor


def tick_text(value: float) -> str:
    """Return a number as an axis label."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _largest_gap(ordered: Sequence[float]) -> float:
    """Return the largest gap between neighbours as a fraction of the whole."""
    gaps = [after - before for before, after in pairwise(ordered)]
    return max(gaps) / sum(gaps)


def _even_ticks(low: float, high: float, wanted: int) -> list[float]:
    step = _round_step((high - low) / wanted)
    # A small tolerance: 0.3 / 0.1 is a little less than 3.
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


LEGEND = 8
"""Maximum number of trials in a legend."""
_PARAMETERS = 6
_METRICS = 3
_MARKS = 2000
_CATEGORIES = 12
_LOG_FROM = 100.0


@frozen
class Mark:
    """One trial in a panel."""

    x: float
    y: float
    label: str
    is_best: bool = False


@frozen
class ChartLine:
    """Points joined in order; a gap where a value is not finite."""

    label: str
    points: tuple[tuple[float, float], ...]
    rank: int
    """0 for the best trial; lines outside of the legend are faint. Below 0: a guide line."""
    is_best: bool = False


@frozen
class Panel:
    """One plot."""

    x_label: str
    y_label: str
    x: Scale
    y: Scale
    marks: tuple[Mark, ...] = ()
    lines: tuple[ChartLine, ...] = ()

    @property
    def x_title(self) -> str:
        return f"{self.x_label} (log)" if self.x.is_log else self.x_label

    @property
    def y_title(self) -> str:
        return f"{self.y_label} (log)" if self.y.is_log else self.y_label


@frozen
class Chart:
    """One or more plots, in rows of `columns`."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int
    panel_width: int = 360
    panel_height: int = 260
    legend: tuple[ChartLine, ...] = ()
    note: str = ""
    """What the chart leaves out."""


def metrics_chart(comparison: Comparison) -> Chart | None:
    """Return a chart of the most important metrics against each varied parameter."""
    measure = comparison.measure
    if measure is None or not comparison.varying:
        return None
    done = [row for row in comparison.rows if not row.is_failed][:_MARKS]
    parameters = comparison.varying[:_PARAMETERS]
    metrics = [name for name in comparison.metrics if _varies(done, name)][:_METRICS]
    panels = [_panel(done, parameter, metric, comparison) for metric in metrics for parameter in parameters]
    drawn = [panel for panel in panels if panel is not None]
    if not drawn:
        return None
    left_out = len(comparison.rows) - sum(can_be_drawn(row.metrics.get(measure.metric, math.nan)) for row in done)
    notes = [
        f"{left_out} without a value of {measure.metric} not drawn" if left_out else "",
        _more(comparison.varying[_PARAMETERS:], "parameters"),
    ]
    return Chart(
        name="metrics",
        title="Metrics against parameters",
        panels=tuple(drawn),
        # A row for each metric; of a single parameter, or with gaps, as many beside each other as fit.
        columns=len(parameters) if len(drawn) == len(panels) and len(parameters) > 1 else min(3, len(drawn)),
        note="; ".join(note for note in notes if note),
    )


def curves_chart(comparison: Comparison, found: Sequence[Curves]) -> Chart | None:
    """Return a chart of curves, the best trial in front."""
    best = comparison.best
    drawn = {row.n for curves in found for row, _ in curves.lines}
    ranks = {row.n: rank for rank, row in enumerate(row for row in comparison.rows if row.n in drawn)}
    panels = []
    legend: dict[int, ChartLine] = {}
    for curves in found:
        lines = [
            ChartLine(
                label=row.label or comparison.job,
                points=tuple(map(_as_floats, points)),
                rank=ranks[row.n],
                is_best=row is best,
            )
            for row, points in curves.lines
        ]
        panel = curve_panel(curves.metric, lines)
        if panel is not None:
            panels.append(panel)
            legend.update({line.rank: line for line in lines if line.rank < LEGEND})
    if not panels:
        return None
    with_curves = sum(1 for row in comparison.rows if row.curve_files)
    return curves_of_panels(
        panels,
        [legend[rank] for rank in sorted(legend)],
        note=f"the best {CURVES_DRAWN} of {with_curves} are drawn" if with_curves > CURVES_DRAWN else "",
    )


def curves_of_panels(panels: Sequence[Panel], legend: Sequence[ChartLine], note: str = "") -> Chart:
    """Return panels of curves side by side; a single one is larger."""
    width, height = (640, 360) if len(panels) == 1 else (440, 300)
    return Chart(
        name="curves",
        title="Curves over each other",
        panels=tuple(panels),
        columns=len(panels),
        panel_width=width,
        panel_height=height,
        legend=tuple(legend),
        note=note,
    )


def curve_panel(metric: str, lines: Sequence[ChartLine]) -> Panel | None:
    """Return a panel of lines over steps; None if none has a finite value."""
    points = [point for line in lines for point in line.points if can_be_drawn(point[1])]
    if not points:
        return None
    heights = [y for _, y in points]
    steps = [x for x, _ in points]
    low, high = min(steps), max(steps)
    return Panel(
        x_label="step",
        y_label=metric,
        x=Scale(low=low, high=high) if high > low else scale_over(steps),
        y=scale_over(heights, is_log=spans(heights, _LOG_FROM)),
        lines=tuple(lines),
    )


def _varies(rows: Sequence[TrialRow], metric: str) -> bool:
    return len({row.metrics[metric] for row in rows if can_be_drawn(row.metrics.get(metric, math.nan))}) > 1


def _more(names: Sequence[str], what: str) -> str:
    return f"{len(names)} more {what} not drawn: {', '.join(names)}" if names else ""


def _panel(rows: Sequence[TrialRow], parameter: str, metric: str, comparison: Comparison) -> Panel | None:
    shown = [row for row in rows if can_be_drawn(row.metrics.get(metric, math.nan))]
    values = [row.params.get(parameter) for row in shown]
    places, x = _across(values)
    best = comparison.best
    marks = [
        Mark(x=place, y=row.metrics[metric], label=_told(row, metric), is_best=row is best)
        for row, place in zip(shown, places, strict=True)
        if place is not None
    ]
    if x is None or not marks:
        return None
    heights = [mark.y for mark in marks]
    return Panel(
        x_label=parameter,
        y_label=metric,
        x=x,
        y=scale_over(heights, is_log=spans(heights, _LOG_FROM)),
        # The best one last, so that it is on top.
        marks=tuple(sorted(marks, key=lambda mark: mark.is_best)),
        lines=() if x.categories else _guide(marks, metric, comparison.measure),
    )


def _across(values: Sequence[Any]) -> tuple[list[float | None], Scale | None]:
    """Return the position of each value on an axis: by size if all are numbers, else a strip per value."""
    numbers = [float(value) for value in values if type(value) in (int, float) and can_be_drawn(value)]
    if numbers and len(numbers) == len(values):
        return list(numbers), scale_through(numbers)
    texts = [value_text(value) for value in values]
    names = list(dict.fromkeys(texts))[:_CATEGORIES]
    seen: dict[str, int] = {}
    places: list[float | None] = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        places.append(names.index(text) + _jitter(seen[text]) if text in names else None)
    return places, scale_of(names) if names else None


def _jitter(count: int) -> float:
    """Spread the marks of a strip deterministically, by the golden ratio."""
    return ((count * 0.618034) % 1.0 - 0.5) * 0.5


def _guide(marks: Sequence[Mark], metric: str, measure: Measure | None) -> tuple[ChartLine, ...]:
    """Return a line through the best value at each position."""
    if measure is None or metric != measure.metric:
        return ()
    pick = min if measure.direction is Direction.SMALLER else max
    heights: dict[float, list[float]] = {}
    for mark in marks:
        heights.setdefault(mark.x, []).append(mark.y)
    points = tuple((x, pick(heights[x])) for x in sorted(heights))
    return (ChartLine(label="best at each value", points=points, rank=-1),) if len(points) > 1 else ()


def _told(row: TrialRow, metric: str) -> str:
    return f"{row.label or 'trial'} (trial {row.n}): {metric} {number(row.metrics[metric])}"


def _as_floats(point: tuple[int, float]) -> tuple[float, float]:
    return float(point[0]), point[1]
