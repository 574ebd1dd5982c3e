"""Charts as PNG bytes. Imports matplotlib, so import it only when needed."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stoker.core.text import one_line
from stoker.views.charts import Chart, ChartLine, Panel, Scale
from stoker.views.html_pages import COLOURS, colour_of

_FAINT: Final = "#BBBBBB"
_STYLE: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 144,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": "#E2E2E2",
    "legend.frameon": False,
}


def to_png(chart: Chart) -> bytes:
    """Return a chart as PNG; deterministic."""
    columns = max(1, chart.columns)
    rows = -(-len(chart.panels) // columns)
    with _style():
        below = 0.2 * len(chart.legend)
        size = (chart.panel_width / 96 * columns, chart.panel_height / 96 * rows + below)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(chart.panels):
                _draw(axes, chart.panels[place])
            else:
                axes.set_axis_off()
        if chart.legend:
            named = [Line2D([], [], color=colour_of(line), linewidth=_width(line)) for line in chart.legend]
            labels = [f"{_plain(line.label, 100)}{' (best)' * line.is_best}" for line in chart.legend]
            figure.legend(named, labels, loc="outside lower left")
        png = io.BytesIO()
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(png, metadata={"Software": None})
    return png.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """Draw in a fixed style, independent of the user's settings."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        # Characters that the font lacks are drawn as boxes; the table shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        yield


def _draw(axes: Axes, panel: Panel) -> None:
    _scale(axes, panel.x, is_x=True)
    _scale(axes, panel.y, is_x=False)
    axes.set_xlabel(_plain(panel.x_title))
    axes.set_ylabel(_plain(panel.y_title))
    for line in sorted(panel.lines, key=lambda line: -line.rank if line.rank >= 0 else -math.inf):
        points = [(x, y if panel.y.holds(y) else math.nan) for x, y in line.points]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=colour_of(line) or _FAINT,
            linewidth=_width(line),
            linestyle="--" if line.rank < 0 else "-",
        )
    for is_best, colour, size, alpha in ((False, COLOURS[1], 18, 0.55), (True, COLOURS[0], 44, 1.0)):
        marks = [mark for mark in panel.marks if mark.is_best is is_best]
        axes.scatter(
            [mark.x for mark in marks], [mark.y for mark in marks], s=size, color=colour, alpha=alpha, zorder=3
        )


def _scale(axes: Axes, scale: Scale, *, is_x: bool) -> None:
    axis: Any = axes.xaxis if is_x else axes.yaxis
    if scale.is_log:
        (axes.set_xscale if is_x else axes.set_yscale)("log")
    ticks = scale.ticks(5)
    axis.set_ticks([value for value, _ in ticks], [_plain(text, 9) for _, text in ticks])
    axis.set_ticks([], minor=True)
    (axes.set_xlim if is_x else axes.set_ylim)(scale.low, scale.high)


def _width(line: ChartLine) -> float:
    return 2.4 if line.is_best else 1.2 if colour_of(line) else 0.7


def _plain(text: str, longest: int = 40) -> str:
    """Return a text that is safe in a plot: short, on one line, not read as a formula."""
    return one_line(text, longest).replace("$", r"\$")
