"""Jobs beside each other as one page, with their curves over each other."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stoker.faces.view.charts import LEGEND, Chart, Line, curve_panel, curves_of_panels
from stoker.faces.view.comparison_page import figure, page
from stoker.faces.view.sides import change_text, fact_text, verdict
from stoker.model.printable import one_line
from stoker.worker.comparison import Curves
from stoker.worker.sides import SECTIONS, Fact, Side


def sides_chart(sides: Sequence[Side], found: Sequence[Sequence[Curves]]) -> Chart | None:
    """Plot the curves of the trials that speak for the sides over each other, by each metric that one has."""
    by_metric: dict[str, list[Line]] = {}
    for rank, (side, curves) in enumerate(zip(sides, found, strict=True)):
        for one in curves:
            # The first is that trial's, or of the best that has a curve.
            _, points = one.lines[0]
            line = Line(label=side.label, points=tuple((float(step), value) for step, value in points), rank=rank)
            by_metric.setdefault(one.metric, []).append(line)
    panels = [panel for metric, lines in by_metric.items() if (panel := curve_panel(metric, lines)) is not None]
    if not panels:
        return None
    named = {line.rank: line for lines in by_metric.values() for line in lines if line.rank < LEGEND}
    return curves_of_panels(panels, [named[rank] for rank in sorted(named)])


def sides_page(facts: Sequence[Fact], sides: Sequence[Side], charts: Sequence[Chart]) -> str:
    """Write the page of a comparison of jobs."""
    parts = [f"<p><strong>{escape(verdict(facts))}</strong></p>", *map(figure, charts)]
    for section in SECTIONS:
        own = [fact for fact in facts if fact.section == section and any(value is not None for value in fact.values)]
        if own:
            parts += [f"<h2>{section}</h2>", _table(own, sides)]
    title = " and ".join(side.label for side in sides)
    return page(f"Comparing {title}", " · ".join(side.attempt for side in sides), parts)


def _table(facts: Sequence[Fact], sides: Sequence[Side]) -> str:
    with_change = facts[0].section == "metrics" and len(sides) == 2
    names = ["", *(side.label for side in sides), *(["change"] if with_change else [])]
    head = "".join(f"<th>{escape(one_line(name))}</th>" for name in names)
    lines = []
    for fact in facts:
        cells = [fact.name, *(_cell(fact, place) for place in range(len(sides)))]
        cells += [change_text(fact)] if with_change else []
        inside = "".join(f'<td class="text">{escape(one_line(cell))}</td>' for cell in cells)
        look = "" if fact.is_same else ' class="best"'
        lines.append(f"<tr{look}>{inside}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(fact: Fact, place: int) -> str:
    origin = fact.origins[place] if fact.origins else ""
    text = fact_text(fact, fact.values[place])
    return f"{text} ({origin})" if origin and fact.values[place] is not None else text
