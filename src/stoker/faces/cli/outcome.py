"""The end of a run for people: scores, where the results lie, what to try next; or how to see what failed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.view.near import near_path
from stoker.faces.view.tables import table
from stoker.faces.view.times import span
from stoker.model.errors import StokerError
from stoker.model.json_text import loads
from stoker.plan.graph import Plan
from stoker.plan.outcome import Ending, RunResult
from stoker.worker.execution import JobResult
from stoker.worker.ordering import Order
from stoker.worker.program_order import RECIPE

SUMMARY = "summary.json"
_FILES_NAMED = 5
_PLACEHOLDER = re.compile(r"(?<!\S)(\w+)=(?:FILE(?:\.\w+)?(?!\S)|PATH/\S*)")


def show_outcome(call: Call, order: Order, job: JobResult) -> None:
    """Write what became of a run."""
    out, plan, name = call.out, order.plan, order.spec.name
    if job.result is not None:
        out.line(counts_text(job.result))
        for line in _summary_lines(call, plan, job.result):
            out.line(line)
    if job.laid_out is not None:
        tops = list(dict.fromkeys(f"{path.partition('/')[0]}{'/' * ('/' in path)}" for path in job.laid_out.files))
        named = ", ".join(tops[:_FILES_NAMED]) + (", …" if len(tops) > _FILES_NAMED else "")
        what = named or ("no files were written to $STOKER_OUT" if _is_program(plan) else "no files")
        out.line(f"results: {near_path(job.laid_out.folder, call.parts.settings.folder)}  ({what})")
        for kept in job.laid_out.kept_edits:
            out.note(f"note: you had edited it, so it was kept: {kept}")
    if job.result is not None and job.error is None:
        steps = _summary(call, plan, job.result).get("next")
        proposed = [filled_in(str(step), order.spec.args) for step in steps] if isinstance(steps, list) else []
        for line in ("next:", *(f"  {step}" for step in [*proposed, f"stoker explain {name}"])):
            out.line(line)


def failure_lines(job: JobResult, name: str) -> list[str]:
    """Say of each stage that failed how to see what it printed."""
    if job.result is None:
        return []
    return [f"log:  stoker logs {name}/{node}" for node, _ in job.result.failures()]


def counts_text(result: RunResult) -> str:
    """Say in one line how much was known and how much ran."""
    took = span(result.elapsed_s)
    by_ending = {ending: result.count(ending) for ending in Ending}
    count = sum(by_ending.values())
    if by_ending[Ending.HIT] == count:
        what = "the one stage was known" if count == 1 else f"all {count} stages were known"
        return f"{what}: nothing ran ({took})"
    words = {
        Ending.RAN: "ran",
        Ending.HIT: "known",
        Ending.FAILED: "failed",
        Ending.DIVERGED: "diverged",
        Ending.CANCELLED: "cancelled",
        Ending.PRUNED: "left out",
    }
    told = ", ".join(f"{by_ending[ending]} {word}" for ending, word in words.items() if by_ending[ending])
    return f"{count} stage{'' if count == 1 else 's'}: {told} ({took})"


def _summary_lines(call: Call, plan: Plan, result: RunResult) -> list[str]:
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
    """Put what a run was given where a proposed command names a file or a folder by a placeholder.

    Results are kept by content, so what wrote the proposal does not know where its inputs lie; the run does.
    """

    def given(found: re.Match[str]) -> str:
        value = args.get(found[1])
        return f"{found[1]}={shlex.quote(value)}" if isinstance(value, str) and value else found[0]

    return _PLACEHOLDER.sub(given, step)


def _summary(call: Call, plan: Plan, result: RunResult) -> dict[str, Any]:
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
