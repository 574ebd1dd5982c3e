"""A comparison of trials as lines, and as rows for a CSV file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.core.text import counted, format_size, one_line, some_of
from stoker.jobs.comparison import COSTS, Comparison, TrialRow
from stoker.jobs.job_diff import SECTIONS, ComparisonSide, Fact
from stoker.views.stage_lines import number
from stoker.views.text_tables import Signs, ground_text, no_finite_text, not_compared_text, span, table, value_text

METRICS_SHOWN = 5
"""Maximum number of metrics in a table; files have all."""
COST_HEADS = ("time", "memory", "GPU memory")
_LABEL = "label"
_LONGEST_VALUE = 24
_BESTS_SHOWN = 5
_HIDDEN_NAMED = 10
_LONGEST_HIDDEN = 60
_LONGEST_MESSAGE = 160


def headline(comparison: Comparison) -> str:
    """Return the number of trials and their states."""
    counts = Counter("kept" if row.is_kept and row.is_done else row.state for row in comparison.rows)
    total = len(comparison.rows)
    texts = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{comparison.job}: {counted(total, 'trial')} ({texts})"


def measure_line(comparison: Comparison) -> str:
    """Return the metric of the ranking, why it was chosen, and how to change it."""
    measure = comparison.measure
    if measure is None:
        what = (
            "no metric says how good a trial is; name one with --by"
            if comparison.metrics
            else "no trial reported a metric"
        )
        return f"not ranked: {what}"
    values = [row.metrics[measure.metric] for row in comparison.rows if measure.metric in row.metrics]
    if not any(map(math.isfinite, values)):
        return f"not ranked: {no_finite_text(measure.metric)}"
    guess = f" ({measure.why}; change it with --by NAME, --min or --max)" if measure.why else ""
    grounds = comparison.grounds
    apart = f"; {not_compared_text(measure.metric, grounds)}" if len(grounds) > 1 else ""
    return f"ranked by {measure.metric}, {measure.direction} is better{guess}{apart}"


def best_line(comparison: Comparison, near: str) -> str:
    """Return the best trial, or the best of each comparable group; "" if there is only one trial."""
    measure, ranked = comparison.measure, sum(map(comparison.is_ranked, comparison.rows))
    bests = [(ground, best) for ground in comparison.grounds if (best := comparison.best_on(ground)) is not None]
    texts = []
    for ground, best in bests if len(bests) < max(2, ranked) else ():
        if measure is not None and math.isfinite(best.metrics[measure.metric]):
            where = f" ({ground_text(ground.told_by, near)})" if ground.told_by else ""
            value = number(best.metrics[measure.metric])
            texts.append(f"{best.label or comparison.job}  {measure.metric} {value}{where}")
    more = f" and {len(texts) - _BESTS_SHOWN} more" if len(texts) > _BESTS_SHOWN else ""
    return f"best: {' · '.join(texts[:_BESTS_SHOWN])}{more}" if texts else ""


def hidden_line(comparison: Comparison) -> str:
    """Return some names of metrics that the table does not show; "" if it shows all."""
    names = [one_line(name, _LONGEST_HIDDEN) for name in comparison.metrics[METRICS_SHOWN:]]
    return f"note: more metrics in --json, --csv and the HTML page: {some_of(names, _HIDDEN_NAMED)}" if names else ""


def trial_table(comparison: Comparison, *, rows: int, columns: int, signs: Signs) -> list[str]:
    """Return the best trials as a table, comparable ones together; failed ones last, with the reason."""
    ranked_by = comparison.measure.metric if comparison.measure is not None else ""
    # A metric with the name of a varied setting, such as the learning rate, would be a second column of that name.
    texts = [name for name in comparison.metrics if name == ranked_by or name not in comparison.varying]
    metrics = texts[:METRICS_SHOWN]
    header = ["", "trial", _LABEL, *comparison.varying, *metrics, *COST_HEADS, ""]
    ordered = [row for ground in comparison.grounds for row in ground.trials]
    laid = [_cells(row, comparison.varying, metrics, signs) for row in ordered[:rows]]
    # Empty columns are left out.
    may_go = (_LABEL, *COST_HEADS)
    used = [place for place, name in enumerate(header) if name not in may_go or any(r[place] for r in laid)]
    return table(
        [[cells[place] for place in used] for cells in laid], header=[header[place] for place in used], columns=columns
    )


def csv_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yield all values as rows, header first, numbers in full precision."""
    params = [f"param.{name}" for name in comparison.varying]
    metrics = [f"metric.{name}" for name in comparison.metrics]
    yield ["rank", "trial", "label", "state", *params, *metrics, *COSTS, "message"]
    for rank, row in enumerate(comparison.rows, 1):
        values = [value_text(row.params.get(name)) for name in comparison.varying]
        measured = [repr(row.metrics[name]) if name in row.metrics else "" for name in comparison.metrics]
        cost = ["" if value is None else repr(value) for value in row.costs.values()]
        yield [str(rank), str(row.n), row.label, row.state, *values, *measured, *cost, one_line(row.message)]


def short_value(value: Any) -> str:
    """Return a parameter's value for a narrow column."""
    return one_line(value_text(value), _LONGEST_VALUE)


def state_text(row: TrialRow) -> str:
    """Return a trial's state; "" if it completed."""
    if row.is_done:
        return "kept" if row.is_kept else ""
    return one_line(f"{row.state}: {row.message}" if row.message else row.state, _LONGEST_MESSAGE)


def _cells(row: TrialRow, varying: Sequence[str], metrics: Sequence[str], signs: Signs) -> list[str]:
    sign = signs.ran if row.is_done else signs.failed if row.is_failed else signs.left
    return [
        sign,
        str(row.n),
        # The label of a point repeats the columns of the varied settings.
        one_line(row.label, _LONGEST_VALUE) if row.is_named else "",
        *(short_value(row.params.get(name)) for name in varying),
        *(number(row.metrics[name]) if name in row.metrics else "" for name in metrics),
        span(row.seconds),
        *(format_size(size) if size else "" for size in (row.peak_bytes, row.peak_gpu_bytes)),
        state_text(row),
    ]


# The comparison of jobs: differences by section.

_COST_NAMES = {"seconds": "time", "peak_bytes": "memory", "peak_gpu_bytes": "GPU memory"}
_LONGEST = 48
_DIGEST = 64


def side_lines(facts: Sequence[Fact], sides: Sequence[ComparisonSide], *, columns: int) -> list[str]:
    """Return a comparison as lines; with two sides, metrics have a column with the change."""
    labels = [side.label for side in sides]
    lines = []
    for section in SECTIONS:
        own = [fact for fact in facts if fact.section == section]
        shown = own if section == "metrics" else [fact for fact in own if not fact.is_same]
        shown = [fact for fact in shown if any(value is not None for value in fact.values)]
        lines += ["", _title(section, own, shown)]
        if shown:
            more = ["change"] if section == "metrics" and len(sides) == 2 else []
            rows = [_row(fact, with_change=bool(more)) for fact in shown]
            lines += table(rows, header=["", *labels, *more], columns=columns, indent="  ")
    return lines


def verdict(facts: Sequence[Fact]) -> str:
    """Return in one line which sections differ."""
    decides = [fact for fact in facts if fact.section != "metrics"]
    measured = [fact for fact in facts if fact.section == "metrics" and fact.name not in COSTS]
    is_same_outcome = all(fact.is_same for fact in measured)
    differ = [name for name in SECTIONS if any(fact.section == name and not fact.is_same for fact in decides)]
    if differ:
        return f"different: {_listed(differ)}{'; the metrics are the same' * (bool(measured) and is_same_outcome)}"
    known = [name for name in SECTIONS if any(fact.section == name for fact in decides)]
    unknown = [name for name in SECTIONS if name not in known and name != "metrics"]
    outcome = ", and the metrics too" if is_same_outcome else ", but not the metrics"
    doubt = f"; unknown: {_listed(unknown)}" if unknown else ""
    return f"identical: {_listed(known)} are the same{outcome if measured else ''}{doubt}"


def fact_text(fact: Fact, value: Any) -> str:
    """Return a value of a fact as text."""
    if value is None:
        return "–"
    if fact.section == "metrics":
        if fact.name == "seconds":
            return span(value)
        return format_size(value) if fact.name in COSTS else number(value)
    if fact.section in ("code", "data") and isinstance(value, str):
        return ", ".join(_short_digest(one) for one in value.split(", "))
    return one_line(value_text(value), _LONGEST)


def change_text(fact: Fact) -> str:
    """Return the change of a number between two sides, absolute and in percent."""
    before, after = fact.values
    if not _is_number(before) or not _is_number(after):
        return ""
    difference = after - before
    if difference == 0:
        return "the same"
    percent = f" ({difference / abs(before):+.1%})" if before else ""
    if fact.name in COSTS:
        return f"{'+' if difference > 0 else '-'}{fact_text(fact, abs(difference))}{percent}"
    return f"{difference:+.4g}{percent}"


def _row(fact: Fact, *, with_change: bool) -> list[str]:
    origins = fact.origins or ("",) * len(fact.values)
    cells = []
    for value, origin in zip(fact.values, origins, strict=True):
        texts = f" ({one_line(origin, _LONGEST)})" if origin and value is not None else ""
        cells.append(f"{fact_text(fact, value)}{texts}")
    return [_name(fact), *cells, *([change_text(fact)] if with_change else [])]


def _name(fact: Fact) -> str:
    return _COST_NAMES.get(fact.name, fact.name) if fact.section == "metrics" else fact.name


def _title(section: str, own: Sequence[Fact], shown: Sequence[Fact]) -> str:
    if section == "metrics":
        return "metrics" if shown else "metrics: none were reported"
    if not own:
        return f"{section}: {'no known input files' if section == 'data' else 'unknown'}"
    same = sum(fact.is_same for fact in own)
    if not shown:
        return f"{section}: the same ({same})"
    return f"{section}: {len(shown)} differ{'s' * (len(shown) == 1)}{f', {same} the same' if same else ''}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _short_digest(text: str) -> str:
    words = text.split(":")
    return words[-1][:12] if len(words[-1]) == _DIGEST else text


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
