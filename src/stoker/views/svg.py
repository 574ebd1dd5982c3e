"""Charts as SVG text, without a library.

Colours follow the reader's light or dark mode, alone and inside a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from stoker.core.text import one_line
from stoker.views.charts import LEGEND, Chart, ChartLine, Panel

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
"""Distinct with any colour vision; the first is the best trial's."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 14, 44
_LEGEND_ROW = 18
_LONGEST_TICK = 9

# Light colours are attributes, which every viewer supports; dark mode uses classes.
_INK = 'class="ink" fill="#222222"'
_SOFT = 'class="soft" fill="#666666"'
_GRID = 'class="grid" stroke="#e2e2e2"'
_FRAME = 'class="frame" stroke="#999999" fill="none"'
_PAPER = 'class="paper" fill="#ffffff"'
_FAINT = 'class="faint" stroke="#bbbbbb"'
_GUIDE = 'class="faint" stroke="#bbbbbb" stroke-dasharray="4 3"'
_DARK = (
    "@media (prefers-color-scheme:dark){.stoker-chart .ink{fill:#ddd}.stoker-chart .soft{fill:#aaa}"
    ".stoker-chart .grid{stroke:#333}.stoker-chart .frame{stroke:#777}.stoker-chart .paper{fill:#16181c}"
    ".stoker-chart .faint{stroke:#555}}"
)


def to_svg(chart: Chart) -> str:
    """Return a chart as one self-contained `<svg>` element."""
    columns = max(1, chart.columns)
    rows = -(-len(chart.panels) // columns)
    below = _LEGEND_ROW * len(chart.legend) + (8 if chart.legend else 0)
    width, height = columns * chart.panel_width, rows * chart.panel_height + below
    look = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="stoker-chart" role="img" {look}>',
        f"<title>{_text(chart.title)}</title>",
        f"<style>{_DARK}</style>",
        f'<rect {_PAPER} width="{width}" height="{height}"/>',
    ]
    for place, panel in enumerate(chart.panels):
        across, down = place % columns, place // columns
        parts.append(f'<g transform="translate({across * chart.panel_width} {down * chart.panel_height})">')
        parts += _Pen(panel, chart.panel_width, chart.panel_height).panel()
        parts.append("</g>")
    for place, line in enumerate(chart.legend):
        y = rows * chart.panel_height + 12 + place * _LEGEND_ROW
        width_of_line = 3 if line.is_best else 1.5
        parts.append(
            f'<path d="M{_LEFT} {y}h24" stroke="{colour_of(line)}" stroke-width="{width_of_line}"/>'
            f'<text {_INK} x="{_LEFT + 32}" y="{y + 4}">{_text(line.label, 100)}{" (best)" * line.is_best}</text>'
        )
    parts.append("</svg>")
    return "\n".join(parts)


def colour_of(line: ChartLine) -> str:
    """Return the colour of a trial's line; "" for a faint one."""
    return COLOURS[line.rank] if 0 <= line.rank < min(LEGEND, len(COLOURS)) else ""


class _Pen:
    """Draws one panel from its upper left corner."""

    def __init__(self, panel: Panel, width: int, height: int) -> None:
        self._panel = panel
        self._right = width - _RIGHT
        self._bottom = height - _BOTTOM

    def panel(self) -> Iterator[str]:
        panel = self._panel
        yield from self._axes()
        # The best one last, so that it is on top.
        for line in sorted(panel.lines, key=lambda line: -line.rank if line.rank >= 0 else -math.inf):
            yield self._line(line)
        for mark in panel.marks:
            look = f'r="5" fill="{COLOURS[0]}"' if mark.is_best else f'r="3.5" fill="{COLOURS[1]}" fill-opacity="0.55"'
            where = f'cx="{self._x(mark.x)}" cy="{self._y(mark.y)}"'
            yield f"<circle {where} {look}><title>{_text(mark.label, 300)}</title></circle>"

    def _axes(self) -> Iterator[str]:
        panel, right, bottom = self._panel, self._right, self._bottom
        for value, text in panel.x.ticks(5):
            x = self._x(value)
            yield f'<path {_GRID} d="M{x} {_TOP}V{bottom}"/>'
            yield f'<text {_INK} x="{x}" y="{bottom + 14}" text-anchor="middle">{_text(text, _LONGEST_TICK)}</text>'
        for value, text in panel.y.ticks(5):
            y = self._y(value)
            yield f'<path {_GRID} d="M{_LEFT} {y}H{right}"/>'
            yield f'<text {_INK} x="{_LEFT - 6}" y="{y + 3.5:g}" text-anchor="end">{_text(text, _LONGEST_TICK)}</text>'
        yield f'<path {_FRAME} d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        middle = (_LEFT + right) / 2
        yield f'<text {_SOFT} x="{middle:g}" y="{bottom + 32}" text-anchor="middle">{_text(panel.x_title, 46)}</text>'
        middle = (_TOP + bottom) / 2
        turned = f'text-anchor="middle" transform="rotate(-90 14 {middle:g})"'
        yield f'<text {_SOFT} x="14" y="{middle:g}" {turned}>{_text(panel.y_title, 40)}</text>'

    def _line(self, line: ChartLine) -> str:
        colour = colour_of(line)
        look = _GUIDE if line.rank < 0 else f'stroke="{colour}"' if colour else _FAINT
        width = 2.5 if line.is_best else 1.3 if colour else 0.8
        title = f"<title>{_text(line.label, 300)}</title>"
        return f'<path d="{self._path(line.points)}" fill="none" {look} stroke-width="{width}">{title}</path>'

    def _path(self, points: Sequence[tuple[float, float]]) -> str:
        words = []
        is_pen_down = False
        for x, y in points:
            if not self._panel.y.holds(y):
                is_pen_down = False
                continue
            words.append(f"{'L' if is_pen_down else 'M'}{self._x(x)} {self._y(y)}")
            is_pen_down = True
        return "".join(words)

    def _x(self, value: float) -> str:
        return f"{_LEFT + self._panel.x.place(value) * (self._right - _LEFT):.1f}"

    def _y(self, value: float) -> float:
        return round(self._bottom - self._panel.y.place(value) * (self._bottom - _TOP), 1)


def _text(text: str, longest: int = 60) -> str:
    """Return a text that is safe in SVG: escaped, on one line, cut to a length."""
    return escape(one_line(text, longest))
