"""A gang's failure as the one error that its owner raises, and as the lines that people read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from stoker.gang.judging import Failed, How, Pending, Report
from stoker.model.gang_errors import RankFailed, RankSilent

_LINE_CHARS = 400
_FRAME = '  File "'
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OUR_FRAMES = tuple(
    f"{_FRAME}{place}"
    for place in (f"{_PACKAGE}{os.sep}gang{os.sep}", f"{_PACKAGE}{os.sep}host{os.sep}", "<frozen runpy>")
)


def error_of(
    failed: Failed, *, nranks: int, traceback: Callable[[int], str], crash: Callable[[int], str]
) -> RankFailed:
    """Give the error; `traceback` and `crash` read a rank's black box.

    In its data `crash` is what a crashed or silent rank's native side wrote; of a pending one that is `where`.
    """
    cause = failed.cause
    kind = RankSilent if cause.how is How.SILENT else RankFailed
    return kind(
        _line(failed, nranks),
        hint=_hint(cause),
        nranks=nranks,
        ready=failed.ready,
        **_facts(cause),
        traceback=traceback(cause.rank) if cause.how is How.RAISED else "",
        crash=crash(cause.rank),
        collateral=[
            {**_facts(report), "traceback": traceback(report.rank) if report.how is How.RAISED else ""}
            for report in failed.collateral
        ],
        pending=[{**_waits(pending), "where": crash(pending.rank)} for pending in failed.pending],
    )


def story_of(error: RankFailed) -> list[str]:
    """Give all that is known, in lines: the failure, its traceback, who was dragged along, who was still pending."""
    lines = [str(error)]
    lines += error.traceback.rstrip().splitlines() or _theirs(str(error.data.get("crash", "")))
    if error.collateral:
        lines.append("dragged along:")
        lines += [f"  {_dragged(report)}" for report in error.collateral]
    if error.pending:
        lines.append("still pending:")
        lines += [f"  rank {one['rank']} ({one['device']}) in {one['phase']}" for one in error.pending]
    return lines


def _theirs(crash: str) -> list[str]:
    """Give where native code was, without the frames of ours through which the work was reached."""
    lines = crash.rstrip().splitlines()
    # The outermost one is the command by which the interpreter was started.
    kept = len(lines) - bool(lines and lines[-1].startswith(f"{_FRAME}<string>"))
    while kept and lines[kept - 1].startswith(_OUR_FRAMES):
        kept -= 1
    return lines[:kept] if kept and lines[kept - 1].startswith(_FRAME) else lines


def _line(failed: Failed, nranks: int) -> str:
    cause = failed.cause
    who = f"rank {cause.rank} ({cause.device})"
    after = f"{cause.phase.name} after {seconds(cause.after_s)}"
    if cause.how is How.SILENT:
        torn = f"; {cause.text}" if cause.text else ""
        return f"{who} is silent in {after}; {failed.ready} of {nranks} are ready{torn}"
    return f"{who} failed in {after}: {_what(cause)}"


def _what(report: Report) -> str:
    if report.how is How.SILENT:
        return "silent"
    if report.how is How.ENDED:
        how = "how is not known" if report.exit is None else str(report.exit)
        return f"ended without a report: {how}" + (f", {report.text}" if report.text else "")
    first = next((line.strip() for line in report.text.splitlines() if line.strip()), "")
    first = first if len(first) <= _LINE_CHARS else first[:_LINE_CHARS] + "…"
    said = f"{report.type}: {first}" if first else report.type
    # Every rank that reports leaves with 1 or says with what, so only another end is news.
    is_expected = report.exit is None or report.exit.status == 1 or report.type == f"exit {report.exit.status}"
    return said if is_expected else f"{said} ({report.exit})"


def _hint(cause: Report) -> str:
    if cause.how is How.SILENT:
        return "data.crash has where it was; raise timeout_s if it only needs longer"
    number = None if cause.exit is None else cause.exit.signal
    if cause.how is How.ENDED and number == signal.SIGKILL:
        return "was it killed for memory?"
    if cause.how is How.ENDED and number in {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE}:
        return "data.crash has where it was when it crashed"
    return ""


def _facts(report: Report) -> dict[str, Any]:
    return {
        "rank": report.rank,
        "device": report.device,
        "phase": report.phase.name,
        "how": str(report.how),
        "type": report.type,
        "text": report.text,
        "exit": None if report.exit is None else str(report.exit),
        "after_s": round(report.after_s, 6),
    }


def _waits(pending: Pending) -> dict[str, Any]:
    return {
        "rank": pending.rank,
        "device": pending.device,
        "phase": pending.phase.name,
        "for_s": round(pending.for_s, 6),
    }


def _dragged(facts: Mapping[str, Any]) -> str:
    text = f"{facts['type']}: {facts['text']}" if facts["type"] and facts["text"] else facts["type"]
    said = text.splitlines()[0] if text else facts["exit"] or "gone"
    return f"rank {facts['rank']} ({facts['device']}) in {facts['phase']} after {seconds(facts['after_s'])}: {said}"


def seconds(value_s: float) -> str:
    """Give a duration as it stands in a sentence: `0.4 s`, `120 s`."""
    return f"{value_s:.0f} s" if value_s >= 10 else f"{value_s:.1f} s"
