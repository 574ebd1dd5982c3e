"""The report at the end of a run: metrics, result folder, next commands; or the logs of failures."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stoker.cli.context import CommandContext
from stoker.core.errors import StokerError
from stoker.core.jsontext import loads
from stoker.core.text import BEST, counted, lazy_pattern
from stoker.engine.plan import Plan
from stoker.engine.types import NodeEnding, RunResult
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import JobResult
from stoker.jobs.program import RECIPE
from stoker.jobs.results import count_ends, has_best
from stoker.jobs.trials import TrialEnd
from stoker.views.recipe_lines import no_finite_text, not_compared_text
from stoker.views.stage_lines import number
from stoker.views.text_tables import near_path, span, table
from stoker.views.trial_lines import SharedProcessRunView, end_text, ranking_lines

SUMMARY = "summary.json"
_FILES_NAMED = 5
_PLACEHOLDER = lazy_pattern(r"(?<!\S)(\w+)=(?:FILE(?:\.\w+)?(?!\S)|PATH/\S*)")


def show_outcome(call: CommandContext, build: JobBuild, job: JobResult) -> None:
    """Print the outcome of a run."""
    out, plan, name = call.out, build.plan, build.spec.name
    if job.result is not None:
        out.line(counts_text(job.result))
        for line in _summary_lines(call, plan, job.result):
            out.line(line)
    if job.laid_out is not None:
        tops = list(dict.fromkeys(f"{path.partition('/')[0]}{'/' * ('/' in path)}" for path in job.laid_out.files))
        named = ", ".join(tops[:_FILES_NAMED]) + (", …" if len(tops) > _FILES_NAMED else "")
        what = named or ("no files in $STOKER_OUT" if _is_program(plan) else "no files")
        out.line(f"results: {near_path(job.laid_out.folder, call.parts.settings.folder)}  ({what})")
        for kept in job.laid_out.kept_edits:
            out.note(f"note: kept an edited file: {kept}")
    if job.result is not None and job.error is None:
        steps = _summary(call, plan, job.result).get("next")
        proposed = [filled_in(str(step), build.spec.args) for step in steps] if isinstance(steps, list) else []
        for line in ("next:", *(f"  {step}" for step in [*proposed, f"stoker explain {name}"])):
            out.line(line)


def failure_lines(job: JobResult, name: str) -> list[str]:
    """Return the logs command of each failed stage."""
    if job.result is None:
        return []
    return [f"log:  stoker logs {name}/{node}" for node, _ in job.result.failures()]


def counts_text(result: RunResult) -> str:
    """Return in one line how many stages were cached and how many ran."""
    took = span(result.elapsed_s)
    by_ending = {ending: result.count(ending) for ending in NodeEnding}
    count = sum(by_ending.values())
    if by_ending[NodeEnding.HIT] == count:
        what = "the only stage was cached" if count == 1 else f"all {count} stages were cached"
        return f"{what}: nothing ran ({took})"
    words = {
        NodeEnding.RAN: "ran",
        NodeEnding.HIT: "cached",
        NodeEnding.FAILED: "failed",
        NodeEnding.DIVERGED: "diverged",
        NodeEnding.CANCELLED: "cancelled",
        NodeEnding.PRUNED: "skipped",
    }
    parts = ", ".join(f"{by_ending[ending]} {word}" for ending, word in words.items() if by_ending[ending])
    return f"{counted(count, 'stage')}: {parts} ({took})"


def _summary_lines(call: CommandContext, plan: Plan, result: RunResult) -> list[str]:
    summary = _summary(call, plan, result)
    lines = []
    if isinstance(summary.get("headline"), str):
        lines += ["", summary["headline"]]
    scores = summary.get("table")
    if isinstance(scores, dict) and isinstance(scores.get("columns"), list) and isinstance(scores.get("rows"), list):
        header = [str(column) for column in scores["columns"]]
        rows = [[str(cell) for cell in row] for row in scores["rows"] if isinstance(row, list)]
        lines += ["", *table(rows, header=header, columns=call.out.columns, indent="  "), ""]
    return lines


def filled_in(step: str, args: Mapping[str, Any]) -> str:
    """Replace the placeholders of a proposed command with the paths of this run.

    The proposal is part of a cached result, which does not depend on paths.
    """

    def given(found: re.Match[str]) -> str:
        value = args.get(found[1])
        return f"{found[1]}={shlex.quote(value)}" if isinstance(value, str) and value else found[0]

    return _PLACEHOLDER.sub(given, step)


def _summary(call: CommandContext, plan: Plan, result: RunResult) -> dict[str, Any]:
    node = result.nodes.get(plan.final)
    if node is None or not node.products or not node.has_bytes:
        return {}
    record = node.products[0].record
    if not any(entry.path == SUMMARY for entry in record.tree.entries):
        return {}
    try:
        summary = loads(call.parts.store.read_bytes(record, SUMMARY))
    except (StokerError, OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _is_program(plan: Plan) -> bool:
    return plan.node(plan.final).stage.name.startswith(f"{RECIPE}/")


# The report of a sweep: counts, the best trial, next commands. With --quiet only the result folders.

_ADAPTER = "adapter_config.json"
"""The file by which PEFT recognises an adapter."""


def show_sweep_outcome(call: CommandContext, build: JobBuild, job: JobResult, shared: SharedProcessRunView) -> None:
    """Print the outcome of a sweep."""
    out, name = call.out, build.spec.name
    if out.is_quiet:
        for end in sorted(job.trials, key=lambda end: end.trial.spec.number):
            if end.out:
                out.line(end.out)
        return
    counts = count_ends(job.trials, len(build.trials))
    parts = [f"{counts['completed']} ok" + (f" ({counts['kept']} kept)" if counts["kept"] else "")]
    parts += [f"{counts[state]} {state}" for state in ("failed", "cancelled") if counts[state]]
    if counts["not_run"]:
        parts.append(f"{counts['not_run']} not run")
    is_together = any(node.stage.together for node in build.plan.nodes)
    best = best_text(job.trials, build.trials[0].spec.args)
    for line in _ranking(job, build, call.parts.settings.folder) if is_together else ():
        out.line(line)
    out.line(f"{', '.join(parts)}.{f' {best}' if best else ''}")
    if is_together:
        _show_shared_process(call, build, job, shared)
    following = []
    if counts["completed"] < len(build.trials):
        following.append(f"stoker run --failed {name}")
    if counts["completed"]:
        following.append(f"stoker compare {name}")
    if following:
        out.line(f"next: {' · '.join(following)}")


def _ranking(job: JobResult, build: JobBuild, near: str) -> list[str]:
    from stoker.jobs.trial_watch import rank_trials

    ranked = rank_trials(job.trials, build.trials[0].spec.args)
    return [] if ranked is None else ranking_lines(ranked, near)


def _show_shared_process(call: CommandContext, build: JobBuild, job: JobResult, shared: SharedProcessRunView) -> None:
    """Print the speed and memory of the shared process, and the folder of the best result."""
    total = len(build.trials)
    ran = [end for end in job.trials if not end.is_kept]
    if ran and job.result is not None:
        kept = len(job.trials) - len(ran)
        text = end_text(ran, total - kept, job.result.elapsed_s, shared.speed.mean)
        is_done = any(end.state == "completed" for end in ran)
        # Without --rerun, cached trials would not be trained again.
        trained = next((node.stage.name.rpartition("/")[2] for node in build.plan.nodes if node.stage.together), "")
        again = f"   same {total} one by one: --solo --rerun {trained}"
        solo = "" if shared.is_solo or total < 2 or not is_done else again
        call.out.line(f"{text}{solo}")
    out = next((os.path.dirname(end.out) for end in job.trials if end.out), None)
    if out is None or not has_best(out):
        return
    best = near_path(os.path.join(out, BEST), call.parts.settings.folder)
    is_adapter = os.path.exists(os.path.join(out, BEST, _ADAPTER))
    call.out.line(where_text(best, {str(trial.spec.args.get("base")) for trial in build.trials} if is_adapter else ()))


def where_text(best: str, bases: Collection[str]) -> str:
    """Return the folder of the best result; for an adapter, the call that loads it."""
    from stoker.cookbooks.language.bundled import BASES

    # A bundled base has no folder that could be loaded as `base`.
    is_loaded = any(base not in BASES for base in bases)
    return f'best: PeftModel.from_pretrained(base, "{best}")' if is_loaded else f"best: {best}"


def best_text(ends: Sequence[TrialEnd], args: Mapping[str, Any]) -> str:
    """Return the best of some trials with its metric; "" if there is nothing to compare.

    Trials that were measured on different data have no best one; the text gives the reason.
    """
    from stoker.jobs.trial_watch import rank_trials

    ranked = rank_trials(ends, args)
    if ranked is None:
        return ""
    best, metric, grounds = ranked.best, ranked.measure.metric, ranked.grounds
    if len(grounds) > 1:
        return f"No overall best: {not_compared_text(metric, grounds)}."
    if best is None:
        return f"No best: {no_finite_text(metric)}."
    return f"Best {best.end.trial.spec.label} ({metric} {number(best.metrics[metric])})."
