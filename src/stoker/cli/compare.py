"""`stoker compare`: compare the trials of a job, best first, as table and plots; or several jobs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any

from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.core.errors import Usage
from stoker.core.frozen import changed
from stoker.engine.metrics.metric_names import Direction
from stoker.host.durable import translated, write_file
from stoker.host.install import pip_install
from stoker.jobs.comparison import Comparison, compare_trials, read_curves
from stoker.jobs.job_diff import ComparisonSide, Fact, compare_sides, side_of
from stoker.jobs.trials import trial_numbered
from stoker.views.charts import Chart, curves_chart, metrics_chart
from stoker.views.comparison_lines import (
    best_line,
    csv_rows,
    headline,
    hidden_line,
    measure_line,
    side_lines,
    trial_table,
    verdict,
)
from stoker.views.html_pages import comparison_page, sides_chart, sides_page, to_svg
from stoker.views.text_tables import ago, near_path

_ROWS = 40

GRAMMAR = Grammar(
    "compare",
    about=(
        "Compare the trials of one job: varied settings and metrics, best first, as a table and as plots (PNG, SVG, "
        "and one self-contained HTML page). With several names, compare jobs or trials with each other: config, code, "
        "data, environment, metrics."
    ),
    positionals=(
        Positional(
            "NAME",
            key="names",
            help="a job (a name, `last`, an id), or one of its trials (`last/3`)",
            is_many=True,
            completes="job",
        ),
    ),
    options=(
        Option("--by", value="METRIC", help="metric to rank by (default: guessed from the names of the metrics)"),
        Option("--min", help="smaller is better (default: by the metric's name)"),
        Option("--max", help="larger is better"),
        Option("--limit", value="N", read=whole(1), help=f"maximum number of trials listed (default: {_ROWS})"),
        Option("--csv", value="FILE", help="also write all values as CSV"),
        Option("--out", value="DIR", help="folder for the plots (default: stoker-out/NAME/compare)"),
        Option("--no-plots", help="write no plots and no HTML page"),
        AT,
    ),
    examples=(
        "stoker compare last",
        "stoker compare last --by val_loss --csv trials.csv",
        "stoker compare last/1 last/4",
        "stoker compare gbt mlp --json",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Compare trials or jobs."""
    if given["min"] and given["max"]:
        raise Usage("--min and --max exclude each other", hint="stoker help compare")
    names = given["names"] or ["last"]
    if len(names) == 1:
        _compare_trials(call, given, names[0])
    else:
        _compare_jobs(call, given, names)
    return 0


def _compare_trials(call: CommandContext, given: dict[str, Any], target: str) -> None:
    out, parts = call.out, call.parts
    name, _, trial = target.partition("/")
    if trial:
        raise Usage(f"{target} is one trial", hint=f"compare all trials: stoker compare {name}; or name a second one")
    gathering, gathered = call.lookup.job(target, given["at"]).gather()
    comparison = compare_trials(
        gathered,
        job=gathering.spec.name,
        attempt=gathering.attempt.id,
        recipe=gathering.spec.recipe,
        values={path: setting.value for path, setting in gathering.settings().items()},
        by=given["by"] or "",
        direction=_direction(given),
    )
    places = comparison.places
    for rank, row in enumerate(comparison.rows, 1):
        of = {"job": comparison.job, "attempt": comparison.attempt, "rank": rank, "place": places[row.n]}
        out.object({**of, **row.to_json(), **_ranked(comparison)})
    _show_trials(call, comparison, given["limit"] or _ROWS)
    if gathering.story.edits:
        out.note(f"warning: {gathering.story.edits}")
    _write_csv(call, given["csv"], csv_rows(comparison))
    if not given["no_plots"]:
        charts = [metrics_chart(comparison), curves_chart(comparison, read_curves(comparison))]
        folder = given["out"] or os.path.join(parts.settings.out, comparison.job, "compare")
        drawn = [chart for chart in charts if chart is not None]
        _write_pictures(call, folder, drawn, comparison_page(comparison, drawn, parts.settings.folder))


def _ranked(comparison: Comparison) -> dict[str, Any]:
    measure = comparison.measure
    return {
        "ranked_by": measure.metric if measure else None,
        "better": str(measure.direction) if measure else None,
        "is_guess": bool(measure and measure.why),
    }


def _show_trials(call: CommandContext, comparison: Comparison, limit: int) -> None:
    out = call.out
    out.line(out.paint(headline(comparison), "bold"))
    out.line(measure_line(comparison))
    if not comparison.metrics:
        out.note("hint: print lines such as `step 10 loss 0.5`, name others with --metrics, or use stoker_trainer")
    best = best_line(comparison, call.parts.settings.folder)
    if best:
        out.line(best)
    out.line()
    signs = out.signs
    out.lines(trial_table(comparison, rows=limit, columns=out.columns, signs=signs))
    left = len(comparison.rows) - limit
    if left > 0:
        out.note(f"note: {left} more trials are not listed; --limit {len(comparison.rows)} lists all")
    hidden = hidden_line(comparison)
    if hidden:
        out.note(hidden)


def _compare_jobs(call: CommandContext, given: dict[str, Any], names: Sequence[str]) -> None:
    out = call.out
    sides = _labelled([_side(call, given, name) for name in names])
    facts = compare_sides(sides)
    for fact in facts:
        out.object({**fact.to_json(), "sides": [side.label for side in sides]})
    _show_sides(call, sides, facts)
    header = ["section", "name", *(side.label for side in sides)]
    rows = ([fact.section, fact.name, *map(_csv_cell, fact.values)] for fact in facts)
    _write_csv(call, given["csv"], [header, *rows])
    if given["out"] and not given["no_plots"]:
        chart = sides_chart(sides, [side.curves() for side in sides])
        drawn = [chart] if chart is not None else []
        _write_pictures(call, given["out"], drawn, sides_page(facts, sides, drawn))


def _side(call: CommandContext, given: dict[str, Any], target: str) -> ComparisonSide:
    name, _, number = target.partition("/")
    job = call.lookup.job(target, given["at"])
    facts, trial, label = job.facts(), None, job.view.name
    if isinstance(job, LocalJob):
        trial = trial_numbered(facts.wanted(), number, facts.spec.name) if number else None
        label = target if name != "last" else job.result_folder
    return side_of(facts, trial, label=label, by=given["by"] or "", direction=_direction(given))


def _labelled(sides: list[ComparisonSide]) -> list[ComparisonSide]:
    """Label sides of the same name, two attempts of one job, by their ids."""
    labels = [side.label for side in sides]
    return [changed(side, label=side.attempt) if labels.count(side.label) > 1 else side for side in sides]


def _show_sides(call: CommandContext, sides: Sequence[ComparisonSide], facts: Sequence[Fact]) -> None:
    out = call.out
    now_s = call.parts.clock.wall_s()
    for side in sides:
        row = side.row
        trials = len(side.comparison.rows)
        chosen = f"; {_chosen(side)} of {trials} trials: {row.label}" if row is not None and trials > 1 else ""
        called = f" ({row.label})" if row is not None and trials == 1 and row.label else ""
        when = ago(side.started_s, now_s)
        out.line(f"{out.paint(side.label, 'bold')}{called}  {side.state}, {when} · {side.attempt}{chosen}")
    out.line(verdict(facts))
    out.lines(side_lines(facts, sides, columns=out.columns))
    for side in sides:
        if side.without_result:
            listed = ", ".join(side.without_result[:5]) + (", …" if len(side.without_result) > 5 else "")
            out.note(f"note: {side.label}: no stored result of {listed}, so its code and data are unknown")


def _chosen(side: ComparisonSide) -> str:
    """Return which of its trials represents a side."""
    return "the best" if side.comparison.best is not None else "the first"


def _direction(given: dict[str, Any]) -> Direction | None:
    return Direction.SMALLER if given["min"] else Direction.LARGER if given["max"] else None


def _write_csv(call: CommandContext, path: str | None, rows: Iterable[Sequence[str]]) -> None:
    if path:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        target = os.path.join(call.parts.settings.folder, path)
        write_file(target, text.getvalue().encode(errors="replace"))
        call.out.note(f"csv: {near_path(target, call.parts.settings.folder)}")


def _csv_cell(value: Any) -> str:
    from stoker.views.recipe_lines import value_text

    return "" if value is None else value_text(value)


def _write_pictures(call: CommandContext, folder: str, charts: Sequence[Chart], page: str) -> None:
    """Write the page, and each chart as SVG and, where matplotlib is installed, as PNG."""
    target = os.path.join(call.parts.settings.folder, folder)
    with translated(target):
        os.makedirs(target, exist_ok=True)
    files = {"compare.html": page.encode(errors="replace")}
    files |= {f"{chart.name}.svg": to_svg(chart).encode(errors="replace") for chart in charts}
    hint = ""
    try:
        # Importing matplotlib is slow.
        from stoker.views.png import to_png
    except ImportError:
        hint = f"note: PNG plots need matplotlib: {pip_install('stoker[plots]')}"
    else:
        files |= {f"{chart.name}.png": to_png(chart) for chart in charts}
    for name, data in files.items():
        write_file(os.path.join(target, name), data)
    call.out.line(f"\nplots: {near_path(target, call.parts.settings.folder)}  ({', '.join(sorted(files))})")
    if hint and charts:
        call.out.note(hint)
