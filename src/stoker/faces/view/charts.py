"""Which pictures a comparison is worth, as data: panels, axes, marks and lines. How they are drawn is for others.

`metrics`: what came out against each parameter that varies. `curves`: how it came to that, trials over each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stoker.faces.view.arguments import value_text
from stoker.faces.view.scales import Scale, can_be_drawn, scale_of, scale_over, scale_through, spans
from stoker.faces.view.stages import number
from stoker.model.frozen import frozen
from stoker.plan.ranking import Direction, Measure
from stoker.worker.comparison import CURVES_DRAWN, Comparison, Curves, TrialRow

LEGEND = 8
"""How many trials a legend names."""
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
class Line:
    """Points joined in order; where a value is not finite, it breaks."""

    label: str
    points: tuple[tuple[float, float], ...]
    rank: int
    """0 for the best of those drawn; what is not in the legend is drawn faintly. Below 0: a guide, not a trial."""
    is_best: bool = False


@frozen
class Panel:
    """One plot."""

    x_label: str
    y_label: str
    x: Scale
    y: Scale
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def x_title(self) -> str:
        return f"{self.x_label} (log)" if self.x.is_log else self.x_label

    @property
    def y_title(self) -> str:
        return f"{self.y_label} (log)" if self.y.is_log else self.y_label


@frozen
class Chart:
    """One picture of one or more plots, laid out in rows of `columns`."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int
    panel_width: int = 360
    panel_height: int = 260
    legend: tuple[Line, ...] = ()
    note: str = ""
    """What is not in it."""


def metrics_chart(comparison: Comparison) -> Chart | None:
    """Plot the metrics that matter most against each varying parameter."""
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
        columns=len(parameters) if len(drawn) == len(panels) else min(3, len(drawn)),
        note="; ".join(note for note in notes if note),
    )


def curves_chart(comparison: Comparison, found: Sequence[Curves]) -> Chart | None:
    """Plot curves over each other, the best trial in front."""
    best = comparison.best
    drawn = {row.n for curves in found for row, _ in curves.lines}
    ranks = {row.n: rank for rank, row in enumerate(row for row in comparison.rows if row.n in drawn)}
    panels = []
    legend: dict[int, Line] = {}
    for curves in found:
        lines = [
            Line(
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


def curves_of_panels(panels: Sequence[Panel], legend: Sequence[Line], note: str = "") -> Chart:
    """Put panels of curves side by side; one alone has room to be larger."""
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


def curve_panel(metric: str, lines: Sequence[Line]) -> Panel | None:
    """Plot lines over steps, or nothing if none of them has a finite value."""
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
        # The best one last, so that it lies on top.
        marks=tuple(sorted(marks, key=lambda mark: mark.is_best)),
        lines=() if x.categories else _guide(marks, metric, comparison.measure),
    )


def _across(values: Sequence[Any]) -> tuple[list[float | None], Scale | None]:
    """Give each value its place on an axis: by size if all are numbers, else a strip for each different one."""
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
    """Spread the marks of a strip, the same way every time: the golden ratio never repeats itself."""
    return ((count * 0.618034) % 1.0 - 0.5) * 0.5


def _guide(marks: Sequence[Mark], metric: str, measure: Measure | None) -> tuple[Line, ...]:
    """Join the best value at each place: what the parameter can do when the others are right."""
    if measure is None or metric != measure.metric:
        return ()
    pick = min if measure.direction is Direction.SMALLER else max
    heights: dict[float, list[float]] = {}
    for mark in marks:
        heights.setdefault(mark.x, []).append(mark.y)
    points = tuple((x, pick(heights[x])) for x in sorted(heights))
    return (Line(label="best at each value", points=points, rank=-1),) if len(points) > 1 else ()


def _told(row: TrialRow, metric: str) -> str:
    return f"{row.label or 'trial'} (trial {row.n}): {metric} {number(row.metrics[metric])}"


def _as_floats(point: tuple[int, float]) -> tuple[float, float]:
    return float(point[0]), point[1]
