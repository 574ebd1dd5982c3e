"""A report of a job or a sweep as plain data: what was asked, what came out, and how to repeat it.

`report_formats` and `report_pdf` write it as a file. Nothing in it depends on the time or the machine of the reader, so
that the same job makes the same bytes.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from stoker.core.frozen import frozen
from stoker.core.text import counted, format_size, one_line, outside
from stoker.jobs.comparison import Comparison, TrialRow, read_curves
from stoker.jobs.job_diff import ComparisonSide
from stoker.jobs.program import RECIPE
from stoker.jobs.repeat_command import RepeatCommand
from stoker.jobs.trial_settings import masked, masked_origin
from stoker.views.charts import Chart, curves_chart, metrics_chart
from stoker.views.comparison_lines import best_line, headline, measure_line, state_text
from stoker.views.stage_lines import number
from stoker.views.text_tables import span, value_text

MOST_TRIALS = 500
"""Maximum number of trials in the table of a report; the best ones are listed."""
_MOST_ROWS = 500
_MOST_METRICS = 12
_MOST_VALUES = 8
_LONGEST_CELL = 300
_LONGEST_COMMAND = 8000
_SUBMITTED = "as submitted"
_DEFAULT = "default"


@frozen
class ReportText:
    """A paragraph."""

    text: str
    is_strong: bool = False


@frozen
class ReportTable:
    """Rows under a header; every cell is one line of plain text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: int = -1
    """The row to mark; below 0: none."""
    note: str = ""
    """What the table leaves out."""


@frozen
class ReportCommands:
    """Commands for a shell, to be copied."""

    lines: tuple[str, ...]


@frozen
class ReportFigure:
    """A chart."""

    chart: Chart


ReportBlock = ReportText | ReportTable | ReportCommands | ReportFigure


@frozen
class ReportSection:
    """A heading and what is below it."""

    title: str
    blocks: tuple[ReportBlock, ...]


@frozen
class RunReport:
    """A whole report."""

    title: str
    about: str
    sections: tuple[ReportSection, ...]

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All charts, in order."""
        return tuple(
            block.chart for section in self.sections for block in section.blocks if isinstance(block, ReportFigure)
        )


@frozen
class ReportFacts:
    """What a report says beside the comparison of the trials."""

    ref: str
    job_id: str
    is_fleet: bool
    mode: str = ""
    submitter: str = ""
    machine: str = ""
    digests: Mapping[str, str]
    """What can be verified, by name: results of stages, trees of code and results."""
    repeat: RepeatCommand
    warnings: tuple[str, ...] = ()


def report_of(side: ComparisonSide, facts: ReportFacts) -> RunReport:
    """Return the report of a job: of all its trials, the best one in detail."""
    comparison = side.comparison
    sections = (
        ReportSection(title="Question", blocks=tuple(_question(side, facts))),
        ReportSection(title="Result", blocks=tuple(_result(comparison, facts))),
        ReportSection(title="Curves and metrics", blocks=tuple(map(_figure, _charts(comparison)))),
        ReportSection(title="Trials", blocks=(_trials(comparison),) if len(comparison.rows) > 1 else ()),
        ReportSection(title="Configuration", blocks=tuple(_configuration(side))),
        ReportSection(title="Environment", blocks=_named("name", "value", side.environment)),
        ReportSection(title="Code", blocks=_named("file or module", "digest", side.code)),
        ReportSection(title="Data", blocks=_named("argument", "digest", side.data)),
        ReportSection(title="Digests", blocks=_named("of", "digest", facts.digests)),
        ReportSection(title="How to repeat it", blocks=tuple(_repeat(facts))),
    )
    started = f"started {_moment(side.started_s)}"
    where = f"fleet, on {facts.machine}" if facts.is_fleet and facts.machine else "fleet" if facts.is_fleet else "local"
    about = [side.recipe, side.state, started, where, side.attempt]
    return RunReport(
        title=_cell(headline(comparison) if len(comparison.rows) > 1 else comparison.job),
        about=_cell(" · ".join(filter(None, about))),
        sections=tuple(section for section in sections if section.blocks),
    )


def _question(side: ComparisonSide, facts: ReportFacts) -> Iterable[ReportBlock]:
    comparison = side.comparison
    row = side.row
    recipe = "a program" if side.recipe == RECIPE else side.recipe
    what = f"{recipe} in mode {facts.mode}" if facts.mode else recipe
    if comparison.varying:
        tried = "; ".join(f"{name} = {_values(comparison.rows, name)}" for name in comparison.varying)
        yield ReportText(text=_cell(f"{counted(len(comparison.rows), 'trial')} of {what}, over {tried}.", 2000))
    else:
        label = f" ({row.label})" if row is not None and row.label else ""
        yield ReportText(text=_cell(f"One run of {what}: {comparison.job}{label}."))
    measure = comparison.measure
    if measure is not None:
        yield ReportText(text=_cell(f"Which is best by {measure.metric}? A {measure.direction} value is better."))
    program = side.settings.get("program")
    if program is not None:
        yield ReportText(text=_cell(f"Program: {value_text(program.value)}", 2000))
    if facts.submitter:
        yield ReportText(text=_cell(f"Submitted by {facts.submitter}."))


def _result(comparison: Comparison, facts: ReportFacts) -> Iterable[ReportBlock]:
    if best := best_line(comparison, ""):
        yield ReportText(text=_cell(best, 1000), is_strong=True)
    yield ReportText(text=_cell(measure_line(comparison).partition(" (")[0]))
    row = comparison.best or (comparison.rows[0] if len(comparison.rows) == 1 else None)
    if row is not None:
        names = list(dict.fromkeys([*comparison.metrics, *row.metrics]))
        rows = [(_cell(name), number(row.metrics[name])) for name in names if name in row.metrics]
        rows += [("time", span(row.seconds))] if row.seconds is not None else []
        sizes = (("memory", row.peak_bytes), ("GPU memory", row.peak_gpu_bytes))
        rows += [(name, format_size(size)) for name, size in sizes if size]
        if rows:
            yield _bounded(("metric", "value"), rows)
        if text := state_text(row):
            yield ReportText(text=_cell(text, 1000))
    for warning in facts.warnings[:_MOST_VALUES]:
        yield ReportText(text=_cell(f"warning: {warning}", 1000))


def _charts(comparison: Comparison) -> list[Chart]:
    drawn = (curves_chart(comparison, read_curves(comparison)), metrics_chart(comparison))
    return [chart for chart in drawn if chart is not None]


def _figure(chart: Chart) -> ReportFigure:
    return ReportFigure(chart=chart)


def _trials(comparison: Comparison) -> ReportTable:
    best, metrics = comparison.best, comparison.metrics[:_MOST_METRICS]
    named = ("label",) if any(row.is_named for row in comparison.rows) else ()
    placed = [(place, row) for ground in comparison.grounds for place, row in enumerate(ground.trials, 1)]
    listed = placed[:MOST_TRIALS]
    rows = [
        (
            str(place),
            str(row.n),
            *(_cell(row.label) for _ in named),
            *(_cell(value_text(row.params.get(name))) for name in comparison.varying),
            *(_metric(row, name) for name in metrics),
            span(row.seconds),
            format_size(row.peak_bytes) if row.peak_bytes else "",
            _cell(state_text(row) or row.state),
        )
        for place, row in listed
    ]
    notes = []
    if len(placed) > len(listed):
        left = len(placed) - len(listed)
        notes.append(f"{left:,} more trials are not listed; all of them: stoker compare {comparison.job} --csv FILE")
    if len(comparison.metrics) > len(metrics):
        notes.append(f"{len(comparison.metrics) - len(metrics)} more metrics are not shown")
    return ReportTable(
        header=("place", "trial", *named, *map(_cell, comparison.varying), *map(_cell, metrics), "time", "memory", ""),
        rows=tuple(rows),
        best=next((place for place, (_, row) in enumerate(listed) if row is best), -1),
        note=_cell("; ".join(notes), 1000),
    )


def _configuration(side: ComparisonSide) -> Iterable[ReportBlock]:
    row = side.row
    if row is not None and len(side.comparison.rows) > 1:
        which = "the best" if side.comparison.best is not None else "the first"
        yield ReportText(text=_cell(f"Of trial {row.n}, {which}: {row.label}"))
    # Chosen values come before defaults.
    settings = sorted(side.settings.items(), key=lambda one: one[1].origin == _DEFAULT)
    rows = [
        (
            _cell(name),
            _cell(value_text(masked(side.recipe, name, setting.value))),
            _cell(masked_origin(side.recipe, name, setting.origin) or _SUBMITTED),
        )
        for name, setting in settings
    ]
    if rows:
        yield _bounded(("setting", "value", "from"), rows)


def _named(name: str, value: str, found: Mapping[str, Any]) -> tuple[ReportBlock, ...]:
    rows = [(_cell(one), _cell(str(found[one]))) for one in sorted(found)]
    return (_bounded((name, value), rows),) if rows else ()


def _repeat(facts: ReportFacts) -> Iterable[ReportBlock]:
    yield ReportCommands(lines=tuple(outside(line)[:_LONGEST_COMMAND] for line in facts.repeat.lines))
    for note in facts.repeat.notes:
        yield ReportText(text=_cell(f"note: {note}"))
    yield ReportText(text="To read more of the job, and to fetch its results:")
    ref = outside(shlex.quote(facts.ref))
    yield ReportCommands(lines=(f"stoker compare {ref}", f"stoker explain {ref}", f"stoker get {ref}"))


def _bounded(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> ReportTable:
    left = len(rows) - _MOST_ROWS
    note = f"{left:,} more rows are not shown" if left > 0 else ""
    return ReportTable(header=header, rows=tuple(rows[:_MOST_ROWS]), note=note)


def _metric(row: TrialRow, name: str) -> str:
    value = row.metrics.get(name, math.nan)
    return number(value) if name in row.metrics else ""


def _values(rows: Sequence[TrialRow], name: str) -> str:
    """Return the values of a varied parameter, in the order of the sweep."""
    ordered = sorted(rows, key=lambda row: row.n)
    texts = list(dict.fromkeys(value_text(row.params.get(name)) for row in ordered))
    more = f", … ({len(texts)} values)" if len(texts) > _MOST_VALUES else ""
    return ", ".join(one_line(text, 60) for text in texts[:_MOST_VALUES]) + more


def _moment(at_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def _cell(text: str, longest: int = _LONGEST_CELL) -> str:
    return one_line(text, longest)
