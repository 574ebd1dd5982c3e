"""A comparison as one self-contained HTML page: charts inside, no network, a sortable table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from stoker.core.text import format_size, one_line
from stoker.jobs.comparison import Comparison, Curves, TrialRow
from stoker.jobs.job_diff import SECTIONS, ComparisonSide, Fact
from stoker.views.charts import LEGEND, Chart, ChartLine, curve_panel, curves_of_panels
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
from stoker.views.recipe_lines import value_text
from stoker.views.stage_lines import number
from stoker.views.svg import to_svg
from stoker.views.text_tables import span

# The page may run its own script and show its own images; it fetches nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root { color-scheme: light dark; --line: #ddd; --soft: #666; --mark: #e8f2fb; --paper: #fff; --ink: #222; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3d42; --soft: #aaa; --mark: #1d2f3d; --paper: #16181c; --ink: #ddd; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.soft { color: var(--soft); } .wide { overflow-x: auto; } svg { height: auto; max-width: 100%; }
table { border-collapse: collapse; } tr.best { background: var(--mark); } tr.failed { color: var(--soft); }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: left; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } td.text { max-width: 40rem; white-space: normal; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid; }
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


def figure(chart: Chart) -> str:
    """Return a chart with its title and note."""
    note = f'<p class="soft">{escape(chart.note)}</p>' if chart.note else ""
    return f'<h2>{escape(chart.title)}</h2><div class="wide">{to_svg(chart)}</div>{note}'


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
