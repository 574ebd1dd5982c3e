"""`stoker compare`: compare the trials of a job, best first, or jobs. `stoker adapters board`: rank adapters."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.api.local_job import LocalJob
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.screens import busy, show_progress
from stoker.config.adapters_file import AdapterEntry, AdaptersFile, read_adapters
from stoker.core.errors import BadInput, Usage
from stoker.core.frozen import changed
from stoker.engine.metrics.metric_names import Direction
from stoker.engine.recipe import Recipe
from stoker.host.durable import translated, write_file
from stoker.host.install import pip_install
from stoker.jobs.adapter_jobs import LORA, around_board
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
from stoker.views.text_tables import ago, near_path, not_compared_text
from stoker.views.trial_lines import AdapterLeaderboardEntry, board_lines, grounds_of, ranked, row_as_json

_ROWS = 40
_DEFAULTS: Mapping[str, Any] = {"at": "", "by": "", "min": False, "max": False}

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
    job = call.lookup.job(target, given["at"])
    with show_progress(call, "reading trials", None) as progress:
        gathering, gathered = job.gather(progress.reach)
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
        with busy(call, "drawing curves"):
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
    with busy(call, "reading jobs"):
        sides = _labelled([read_side(call, name, given) for name in names])
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


def read_side(call: CommandContext, target: str, given: Mapping[str, Any] = _DEFAULTS) -> ComparisonSide:
    """Read one job, or one of its trials, as a side of a comparison."""
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


def _direction(given: Mapping[str, Any]) -> Direction | None:
    return Direction.SMALLER if given["min"] else Direction.LARGER if given["max"] else None


def _write_csv(call: CommandContext, path: str | None, rows: Iterable[Sequence[str]]) -> None:
    if path:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        target = os.path.join(call.parts.settings.folder, path)
        write_file(target, text.getvalue().encode(errors="replace"))
        call.out.note(f"csv: {near_path(target, call.parts.settings.folder)}")


def _csv_cell(value: Any) -> str:
    from stoker.views.text_tables import value_text

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


# `stoker adapters board`: list the adapters of files by their best checkpoints.


_NAMED = 5

BOARD_GRAMMAR = Grammar(
    "adapters board",
    about=(
        "Read the best checkpoint of every adapter in the files (CHECKPOINT/best/metadata.json) and list them, best "
        "first: by validation loss, or by average loss without a held-out set. Adapters are ranked only against others "
        "with the same data, split, method, max_seq_len, train_on and holdout_percent. Adapters without a checkpoint "
        "are named below the list. Can be run during training."
    ),
    positionals=(Positional("FILE", key="files", help="adapters files", is_many=True),),
    examples=("stoker adapters board adapters.toml", "stoker adapters board first.toml second.toml --json"),
)


def perform_board(call: CommandContext, given: dict[str, Any]) -> int:
    """List adapters, best first."""
    if not given["files"]:
        raise Usage("FILE is missing", hint="stoker adapters board adapters.toml")
    out = call.out
    entries, missing = _looked_up(call, given["files"])
    rows = ranked(entries)
    for row in rows:
        out.object(row_as_json(row))
    if rows:
        folder = call.parts.settings.folder
        for line in board_lines(rows, out.columns, names_files=len(given["files"]) > 1, near=folder):
            out.line(line)
    else:
        out.line("no adapter has a checkpoint yet")
    grounds = grounds_of(entries)
    if len(grounds) > 1:
        out.note(f"note: {not_compared_text('loss', grounds)}; ranked per group")
    if missing:
        out.note(f"note: without a checkpoint: {_missing_text(missing, names_files=len(given['files']) > 1)}")
    return 0


def _looked_up(
    call: CommandContext, names: Sequence[str]
) -> tuple[list[AdapterLeaderboardEntry], list[tuple[str, str]]]:
    """Return the adapters of files that have a best checkpoint, and file and label of those that have none."""
    from stoker.cookbooks.language.schemas import best_folder

    recipe = call.parts.catalogue.load(LORA)
    entries: list[AdapterLeaderboardEntry] = []
    missing: list[tuple[str, str]] = []
    for name in names:
        # Missing data or invalid values do not matter here.
        file = read_adapters(name, call.path(name), around_board())
        for adapter in file.adapters:
            folder = best_folder(Path(adapter.checkpoint))
            if not folder.is_dir():
                missing.append((name, adapter.label))
                continue
            try:
                measured_on = _measured_on(recipe, file, adapter)
                entries.append(_entry(len(entries) + 1, name, adapter, measured_on, folder))
            except BadInput as error:
                call.out.note(f"note: {adapter.label} skipped: {error}")
    return entries, missing


def _missing_text(missing: Sequence[tuple[str, str]], *, names_files: bool) -> str:
    """Name some adapters without a checkpoint, grouped by file if there are several files."""
    labels: dict[str, list[str]] = {}
    for file, label in missing[:_NAMED]:
        labels.setdefault(f"{file}: " if names_files else "", []).append(label)
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return "; ".join(f"{file}{', '.join(those)}" for file, those in labels.items()) + more


def _entry(
    n: int, file: str, adapter: AdapterEntry, measured_on: Mapping[str, Any], folder: Path
) -> AdapterLeaderboardEntry:
    from stoker.cookbooks.language.schemas import read_metadata

    found = read_metadata(folder)
    return AdapterLeaderboardEntry(
        n=n,
        label=adapter.label,
        file=file,
        checkpoint=str(folder),
        measured_on=measured_on,
        epoch=int(found["epoch"]),
        train_loss=found["train_loss"],
        val_loss=found["val_loss"],
        avg_loss=found["avg_loss"],
        rank=int(found["rank"]),
        alpha=float(found["alpha"]),
        global_step=int(found["global_step"]),
    )


def _measured_on(recipe: Recipe, file: AdaptersFile, adapter: AdapterEntry) -> dict[str, Any]:
    """Return the settings of an adapter's losses: the file's values, else the recipe's defaults."""
    values = {**file.shared, **adapter.values, "data": adapter.data}
    # Invalid values stay as written.
    known, _ = recipe.args.check(values, owner=recipe.name)
    return recipe.args.measured_on({**values, **known})
