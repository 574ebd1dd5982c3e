"""Charts as SVG, and a comparison as one self-contained HTML page: no network, a sortable table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from stoker.core.text import format_size, one_line
from stoker.jobs.comparison import Comparison, Curves, TrialRow
from stoker.jobs.job_diff import SECTIONS, ComparisonSide, Fact
from stoker.views.charts import LEGEND, Chart, ChartLine, Panel, curve_panel, curves_of_panels
from stoker.views.comparison_lines import (
    COST_HEADS,
    best_line,
    change_text,
    fact_text,
    headline,
    measure_line,
    state_text,
    verdict,
)
from stoker.views.stage_lines import number
from stoker.views.text_tables import span, value_text

# The page may run its own script and show its own images; it fetches nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root { color-scheme: light dark; --line: #ddd; --soft: #666; --mark: #e8f2fb; --paper: #fff; --ink: #222; }
@media screen and (prefers-color-scheme: dark) {
  :root { --line: #3a3d42; --soft: #aaa; --mark: #1d2f3d; --paper: #16181c; --ink: #ddd; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
h3 { font-size: 1rem; } pre { background: var(--mark); overflow-x: auto; padding: .6rem .8rem; }
.soft { color: var(--soft); } .wide { overflow-x: auto; } svg { height: auto; max-width: 100%; }
table { border-collapse: collapse; } tr.best { background: var(--mark); } tr.failed { color: var(--soft); }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: left; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } td.text { max-width: 40rem; white-space: normal; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid; }
@media (max-width: 600px) { body { margin: 1rem; } svg { max-width: none; } }
@media print {
  tr.best, pre { print-color-adjust: exact; }
  :root { color-scheme: light; } body { font-size: 11px; margin: 0; } h2, h3 { break-after: avoid; }
  svg, tr, pre { break-inside: avoid; } thead { display: table-header-group; } .wide { overflow: visible; }
  th, td { padding: .15rem .5rem; white-space: normal; overflow-wrap: anywhere; } pre { white-space: pre-wrap; }
}
th[aria-sort=ascending] button::after { content: " ↑"; } th[aria-sort=descending] button::after { content: " ↓"; }
"""

# Sorts by the values of the cells; cells without a value stay at the end.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[place].dataset.value ?? "";
    const compare = (one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    };
    [...body.rows].sort(compare).forEach(row => body.append(row));
  }));
}
"""

_Cell = tuple[str, str, bool]
"""Text, sort value, and whether the text may wrap."""


def comparison_page(comparison: Comparison, charts: Sequence[Chart], near: str) -> str:
    """Return the page of a job's trials; paths are relative to the folder `near`."""
    measure, best = one_line(measure_line(comparison)), best_line(comparison, near)
    parts = [
        f"<p>{escape(measure)}<br><strong>{escape(best)}</strong></p>",
        *map(figure, charts),
        "<h2>Trials</h2>",
        _trials(comparison),
        _fixed(comparison),
    ]
    about = f"{comparison.recipe} · {comparison.attempt}"
    return page(headline(comparison), about, parts)


def page(title: str, about: str, parts: Sequence[str]) -> str:
    """Return a page with HTML parts."""
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(one_line(title))}</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(one_line(title))}</h1><p class="soft">{escape(one_line(about))}</p>',
        *(part for part in parts if part),
        f"<script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(lines) + "\n"


def figure(chart: Chart, heading: str = "h2") -> str:
    """Return a chart with its title and note."""
    note = f'<p class="soft">{escape(chart.note)}</p>' if chart.note else ""
    return f'<{heading}>{escape(chart.title)}</{heading}><div class="wide">{to_svg(chart)}</div>{note}'


def _trials(comparison: Comparison) -> str:
    best = comparison.best
    named = ["label"] * any(row.is_named for row in comparison.rows)
    names = ["place", "trial", *named, *comparison.varying, *comparison.metrics, *COST_HEADS, ""]
    head = "".join(f'<th><button type="button">{escape(name) or "state"}</button></th>' for name in names)
    lines = []
    placed = [(place, row) for ground in comparison.grounds for place, row in enumerate(ground.trials, 1)]
    for place, row in placed:
        cells = "".join(map(_cell, _cells(place, row, comparison, has_label=bool(named))))
        look = ' class="best"' if row is best else ' class="failed"' if row.is_failed else ""
        lines.append(f"<tr{look}>{cells}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table class="sorts"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(place: int, row: TrialRow, comparison: Comparison, *, has_label: bool) -> list[_Cell]:
    state = state_text(row) or row.state
    label = one_line(row.label) if row.is_named else ""
    return [
        (str(place), str(place), False),
        (str(row.n), str(row.n), False),
        *([(label, label, False)] * has_label),
        *(_param(row, name) for name in comparison.varying),
        *(_metric(row, name) for name in comparison.metrics),
        (span(row.seconds), "" if row.seconds is None else repr(row.seconds), False),
        *((format_size(size) if size else "", str(size or ""), False) for size in (row.peak_bytes, row.peak_gpu_bytes)),
        (state, state, True),
    ]


def _param(row: TrialRow, name: str) -> _Cell:
    text = one_line(value_text(row.params.get(name)))
    return text, text, len(text) > 40


def _metric(row: TrialRow, name: str) -> _Cell:
    if name not in row.metrics:
        return "", "", False
    value = row.metrics[name]
    return number(value), repr(value) if math.isfinite(value) else "", False


def _cell(cell: _Cell) -> str:
    text, value, is_text = cell
    look = ' class="text"' if is_text else ""
    return f'<td{look} data-value="{escape(value)}">{escape(text)}</td>'


def _fixed(comparison: Comparison) -> str:
    if not comparison.fixed:
        return ""
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="text">{escape(one_line(value_text(value)))}</td></tr>'
        for name, value in comparison.fixed.items()
    )
    return f"<h2>The same in every trial</h2><table><tbody>{rows}</tbody></table>"


# The comparison of jobs as one page.


def sides_chart(sides: Sequence[ComparisonSide], found: Sequence[Sequence[Curves]]) -> Chart | None:
    """Return a chart of the sides' curves for each metric."""
    by_metric: dict[str, list[ChartLine]] = {}
    for rank, (side, curves) in enumerate(zip(sides, found, strict=True)):
        for one in curves:
            # The first curve is that trial's, or of the best trial with a curve.
            _, points = one.lines[0]
            line = ChartLine(label=side.label, points=tuple((float(step), value) for step, value in points), rank=rank)
            by_metric.setdefault(one.metric, []).append(line)
    panels = [panel for metric, lines in by_metric.items() if (panel := curve_panel(metric, lines)) is not None]
    if not panels:
        return None
    named = {line.rank: line for lines in by_metric.values() for line in lines if line.rank < LEGEND}
    return curves_of_panels(panels, [named[rank] for rank in sorted(named)])


def sides_page(facts: Sequence[Fact], sides: Sequence[ComparisonSide], charts: Sequence[Chart]) -> str:
    """Return the page of a comparison of jobs."""
    parts = [f"<p><strong>{escape(verdict(facts))}</strong></p>", *map(figure, charts)]
    for section in SECTIONS:
        own = [fact for fact in facts if fact.section == section and any(value is not None for value in fact.values)]
        if own:
            parts += [f"<h2>{section}</h2>", _table(own, sides)]
    title = " and ".join(side.label for side in sides)
    return page(f"Comparing {title}", " · ".join(side.attempt for side in sides), parts)


def _table(facts: Sequence[Fact], sides: Sequence[ComparisonSide]) -> str:
    with_change = facts[0].section == "metrics" and len(sides) == 2
    names = ["", *(side.label for side in sides), *(["change"] if with_change else [])]
    head = "".join(f"<th>{escape(one_line(name))}</th>" for name in names)
    lines = []
    for fact in facts:
        cells = [fact.name, *(_fact_cell(fact, place) for place in range(len(sides)))]
        cells += [change_text(fact)] if with_change else []
        inside = "".join(f'<td class="text">{escape(one_line(cell))}</td>' for cell in cells)
        look = "" if fact.is_same else ' class="best"'
        lines.append(f"<tr{look}>{inside}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _fact_cell(fact: Fact, place: int) -> str:
    origin = fact.origins[place] if fact.origins else ""
    text = fact_text(fact, fact.values[place])
    return f"{text} ({origin})" if origin and fact.values[place] is not None else text


# Charts as SVG text, without a library.
#
# Colours follow the reader's light or dark mode, alone and inside a page.


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
    "@media screen and (prefers-color-scheme:dark){.stoker-chart .ink{fill:#ddd}.stoker-chart .soft{fill:#aaa}"
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
