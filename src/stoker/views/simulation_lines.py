"""The report of a simulation as lines and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.core.text import counted
from stoker.scheduler.simulation.elastic_simulator import PoolUse
from stoker.scheduler.simulation.simulation_report import NodeTypeUse, SimulationReport, SimulationResult, Waits
from stoker.views.charts import LEGEND, Chart, ChartLine, Panel, Scale, scale_over
from stoker.views.text_tables import moment, span, table

_HOUR_S = 3600.0
_PANEL = 900, 300
_STARTS = 3


def report_lines(simulated: SimulationResult, columns: int) -> Iterator[str]:
    """Yield makespan and bound, decision rate, use of the machines, and waiting times."""
    report = simulated.report
    yield f"makespan    {span(report.makespan_s)}: {report.ratio:.2f} × the lower bound, {span(report.bound.seconds)}"
    yield f"decisions   {simulated.decisions_per_s:,.0f}/s: {report.decisions:,} in {span(simulated.seconds)}"
    kept = f"{report.times_kept:,} reservations for a waiting job"
    yield f"fairness    no job started more than {span(report.most_behind_s)} behind its queue position; {kept}"
    if report.not_placeable:
        yield _left_out(report)
    rows = [
        [use.sort, f"{use.machines:,}", f"{use.devices:,}" if use.devices else "", f"{use.jobs:,}", f"{use.used:.0%}"]
        for use in sorted(report.uses, key=lambda use: -use.used)
    ]
    yield ""
    yield from table(rows, header=("kind of machine", "machines", "devices", "jobs", "used"), columns=columns)
    rows = [
        [str(waits.priority), f"{waits.jobs:,}", span(waits.median_s), span(waits.p95_s), span(waits.max_s)]
        for waits in report.waits
    ]
    yield ""
    yield from table(rows, header=("priority", "jobs", "median wait", "95 % wait", "longest"), columns=columns)


def with_pools_lines(without: SimulationReport, report: SimulationReport, columns: int) -> Iterator[str]:
    """Yield makespan and waiting times with pools, beside those without."""
    gained_s = without.makespan_s - report.makespan_s
    is_comparable = without.not_placeable == report.not_placeable
    yield ""
    yield f"with pools  {span(report.makespan_s)}{_difference(gained_s) if is_comparable else ''}"
    if report.not_placeable:
        yield f"omitted     {counted(report.not_placeable, 'job fits', 'jobs fit')} no machine of a pool either"
    before = {waits.priority: waits for waits in without.waits}
    rows = [
        [
            str(waits.priority),
            f"{waits.jobs:,}",
            *_wait_cells(before.get(waits.priority), waits),
        ]
        for waits in report.waits
    ]
    header = ("priority", "jobs", "median wait", "with pools", "95 % wait", "with pools")
    yield from table(rows, header=header, columns=columns)


def _wait_cells(without: Waits | None, waits: Waits) -> list[str]:
    median, most = ("never", "never") if without is None else (span(without.median_s), span(without.p95_s))
    return [median, span(waits.median_s), most, span(waits.p95_s)]


def pool_use_lines(simulated: SimulationResult, columns: int) -> Iterator[str]:
    """Yield how each pool was used: when how many machines started, their hours, and what they cost."""
    pools = simulated.pools
    if not pools:
        return
    has_cost = any(one.cost for one in pools)
    rows = [
        [
            one.pool,
            str(one.allocations),
            str(one.most_at_once),
            f"{one.machine_hours:.1f} h",
            f"{one.idle_hours:.1f} h",
            f"{one.jobs:,}",
            *([f"{one.cost:.2f}"] if has_cost else []),
            _starts_text(one),
        ]
        for one in pools
    ]
    header = ["pool", "started", "at once", "machine hours", "idle", "jobs", *(["cost"] if has_cost else []), "starts"]
    yield ""
    yield from table(rows, header=header, columns=columns)
    continued = sum(one.continued for one in pools)
    if continued:
        jobs = counted(continued, "job was", "jobs were")
        yield f"note        {jobs} not done at the end of a machine's time, and continued from a checkpoint"
    if simulated.unfinished:
        jobs = counted(simulated.unfinished, "job starts", "jobs start")
        yield f"never       {jobs} on no machine: the time of a machine, or the limits of its pool, do not suffice"


def _starts_text(use: PoolUse) -> str:
    first = [f"{count} after {span(at_s)}" for at_s, count in use.starts[:_STARTS]]
    rest = use.starts[_STARTS:]
    if rest:
        first.append(f"{sum(count for _, count in rest)} more until {span(rest[-1][0])}")
    return ", ".join(first)


def timeline_chart(report: SimulationReport, title: str) -> Chart:
    """Return a chart of the use of the busiest kinds of machine over time, and of the waiting jobs."""
    width, height = _PANEL
    step_h = report.step_s / _HOUR_S
    uses = sorted(report.uses, key=lambda use: (-use.used * max(use.devices, use.machines), use.sort))[:LEGEND]
    lines = tuple(
        ChartLine(
            label=f"{use.sort} ({counted(use.machines, 'machine')}, {use.used:.0%} used)",
            points=tuple((place * step_h, part * 100) for place, part in enumerate(use.timeline)),
            rank=rank,
        )
        for rank, use in enumerate(uses)
    )
    makespan_h, bound_h = report.makespan_s / _HOUR_S, report.bound.seconds / _HOUR_S
    across = Scale(low=0.0, high=max(makespan_h, 1e-9))
    bound = ChartLine(label="lower bound", points=((bound_h, 0.0), (bound_h, 100.0)), rank=-1)
    waiting = tuple((place * step_h, float(count)) for place, count in enumerate(report.waiting))
    line = ChartLine(label="waiting jobs", points=waiting, rank=0)
    panels = (
        Panel(x_label="hours", y_label="% used", x=across, y=Scale(low=0.0, high=105.0), lines=(*lines, bound)),
        Panel(
            x_label="hours",
            y_label="waiting jobs",
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


def live_lines(  # noqa: PLR0913 - what is shown of a forecast
    as_is: tuple[SimulationReport, int],
    as_changed: tuple[SimulationReport, int] | None,
    jobs: Sequence[Mapping[str, Any]],
    *,
    at_s: float,
    blocked: int,
    is_guess: bool,
    columns: int,
) -> Iterator[str]:
    """Yield when all jobs are done, unchanged and changed, the use of the machines, and the starts of jobs.

    Each report comes with the number of jobs that can't finish.
    """
    now, changed = as_is[0], None if as_changed is None else as_changed[0]
    running = counted(now.running, "running job")
    yield f"{counted(now.machines, 'machine')}, {running}, {now.jobs - now.running:,} waiting"
    yield f"all done    {_end_text(*as_is, at_s)}"
    if as_changed is not None and changed is not None:
        gained_s = now.makespan_s - changed.makespan_s
        is_comparable = not as_is[1] and not as_changed[1]
        difference = _difference(gained_s) if is_comparable else ""
        yield f"changed     {_end_text(*as_changed, at_s)}{difference}"
        if changed.failures:
            lost = counted(changed.failures, "attempt")
            yield f"lost        {lost} failed or were lost with a machine; the jobs run again"
    if is_guess:
        yield "note        some jobs have no estimate of their duration; 10 min assumed for each"
    if blocked:
        waiting = counted(
            blocked, "pending job waits for other jobs, or for its", "pending jobs wait for other jobs, or for their"
        )
        yield f"not counted {waiting} next try"
    if now.not_placeable:
        yield _left_out(now)
    then = {use.sort: use for use in changed.uses} if changed is not None else {}
    rows = [
        [use.sort, f"{use.machines:,}", f"{use.jobs:,}", f"{use.used:.0%}", *_changed_use(then.get(use.sort), changed)]
        for use in sorted(now.uses, key=lambda use: -use.used)
    ]
    known = {use.sort for use in now.uses}
    rows += [
        [use.sort, "", "", "", f"{use.machines:,}", f"{use.jobs:,}", f"{use.used:.0%}"]
        for use in then.values()
        if use.sort not in known
    ]
    header = ["kind of machine", "machines", "jobs", "used", *(["changed", "jobs", "used"] if changed else [])]
    yield ""
    yield from table(rows, header=header, columns=columns)
    if jobs:
        yield ""
        yield from table(
            [_job_row(job, at_s, has_changed=changed is not None) for job in jobs],
            header=["job", "user", "machine", "starts", *(["changed: machine", "starts"] if changed else [])],
            columns=columns,
        )


def _end_text(report: SimulationReport, unfinished: int, at_s: float) -> str:
    if unfinished:
        return f"never: {counted(unfinished, 'job fits', 'jobs fit')} no machine"
    return f"{moment(at_s + report.makespan_s, at_s)}, in about {span(report.makespan_s)}"


def _difference(gained_s: float) -> str:
    if abs(gained_s) < 1:
        return ", no difference"
    return f", {span(abs(gained_s))} {'earlier' if gained_s > 0 else 'later'}"


def _left_out(report: SimulationReport) -> str:
    jobs = counted(report.not_placeable, "job fits", "jobs fit")
    return f"omitted     {jobs} no machine of this fleet, even an idle one"


def _changed_use(use: NodeTypeUse | None, changed: SimulationReport | None) -> list[str]:
    if changed is None:
        return []
    return ["", "", ""] if use is None else [f"{use.machines:,}", f"{use.jobs:,}", f"{use.used:.0%}"]


def _job_row(job: Mapping[str, Any], at_s: float, *, has_changed: bool) -> list[str]:
    row = [str(job["job"]), str(job["user"]), *_start_cells(job, at_s)]
    return [*row, *_start_cells(job["changed"], at_s)] if has_changed else row


def _start_cells(start: Mapping[str, Any], at_s: float) -> list[str]:
    if start["machine"] is None:
        return ["-", "never"]
    in_s = start["starts_s"] - at_s
    when = f"in {span(in_s)}" if 1 <= in_s < _HOUR_S else moment(start["starts_s"], at_s)
    return [str(start["machine"]), when + (" (guess)" if start["is_guess"] else "")]
