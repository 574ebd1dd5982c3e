"""A simulation's report as text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.faces.view.charts import LEGEND, Chart, Line, Panel
from stoker.faces.view.scales import Scale, scale_over
from stoker.faces.view.tables import table
from stoker.faces.view.times import span
from stoker.scheduler.simulation.report import Report
from stoker.scheduler.simulation.simulating import Simulated

_HOUR_S = 3600.0
_PANEL = 900, 300


def report_lines(simulated: Simulated, columns: int) -> Iterator[str]:
    """Tell what came out: the makespan beside its bound, the pace, how machines were used, how long jobs waited."""
    report = simulated.report
    yield f"makespan    {span(report.makespan_s)}: {report.ratio:.2f} × the lower bound, {span(report.bound.seconds)}"
    yield f"decisions   {simulated.decisions_per_s:,.0f}/s: {report.decisions:,} in {span(simulated.seconds)}"
    kept = f"machines were kept for one {report.times_kept:,} times"
    yield f"fairness    no job began more than {span(report.most_behind_s)} behind its place in the queue; {kept}"
    if report.not_placeable:
        yield f"left out    {report.not_placeable:,} jobs fit no machine of this fleet, even an idle one"
    rows = [
        [use.sort, f"{use.machines:,}", f"{use.devices:,}" if use.devices else "", f"{use.jobs:,}", f"{use.used:.0%}"]
        for use in sorted(report.uses, key=lambda use: -use.used)
    ]
    yield ""
    yield from table(rows, header=("sort of machine", "machines", "devices", "jobs", "used"), columns=columns)
    rows = [
        [str(waits.priority), f"{waits.jobs:,}", span(waits.median_s), span(waits.p95_s), span(waits.max_s)]
        for waits in report.waits
    ]
    yield ""
    yield from table(rows, header=("priority", "jobs", "median wait", "95 % wait", "longest"), columns=columns)


def timeline_chart(report: Report, title: str) -> Chart:
    """Draw how the sorts of machine with most to do were used over time, and below it how many jobs waited."""
    width, height = _PANEL
    step_h = report.step_s / _HOUR_S
    uses = sorted(report.uses, key=lambda use: (-use.used * max(use.devices, use.machines), use.sort))[:LEGEND]
    lines = tuple(
        Line(
            label=f"{use.sort} ({use.machines} machines, {use.used:.0%} used)",
            points=tuple((place * step_h, part * 100) for place, part in enumerate(use.timeline)),
            rank=rank,
        )
        for rank, use in enumerate(uses)
    )
    makespan_h, bound_h = report.makespan_s / _HOUR_S, report.bound.seconds / _HOUR_S
    across = Scale(low=0.0, high=max(makespan_h, 1e-9))
    bound = Line(label="lower bound", points=((bound_h, 0.0), (bound_h, 100.0)), rank=-1)
    waiting = tuple((place * step_h, float(count)) for place, count in enumerate(report.waiting))
    line = Line(label="jobs that wait", points=waiting, rank=0)
    panels = (
        Panel(x_label="hours", y_label="% used", x=across, y=Scale(low=0.0, high=105.0), lines=(*lines, bound)),
        Panel(
            x_label="hours",
            y_label="jobs that wait",
            x=across,
            y=scale_over([0.0, *(count for _, count in waiting)]),
            lines=(line,),
        ),
    )
    return Chart(
        name="timeline",
        title=title,
        panels=panels,
        columns=1,
        panel_width=width,
        panel_height=height,
        legend=lines,
    )
