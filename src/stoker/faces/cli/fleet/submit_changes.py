"""What a submission changes, as lines: job by job where they are few, by outcome where they are many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.faces.view.tables import table
from stoker.faces.view.times import moment
from stoker.model.requirements import Wish
from stoker.model.units import format_duration, format_size
from stoker.wire.orders import JobOrder, OrderOutcome, Outcome, Submitted

MOST_LISTED = 20
MOST_FORESEEN = 50
"""Of a dry run: so many jobs have a forecast."""
_SHORT = 12
_SIGNS = {
    Outcome.NEW: "+",
    Outcome.KNOWN: "=",
    Outcome.CHANGED: "~",
    Outcome.REQUEUED: "+",
    Outcome.KEPT: "!",
}


def change_lines(
    jobs: Sequence[JobOrder], answer: Submitted, *, source: str, columns: int, most: int = MOST_LISTED
) -> list[str]:
    """Give the difference between what is submitted and what the coordinator has."""
    rows = []
    listed: dict[Outcome, int] = {}
    for order, job in zip(jobs, answer.jobs, strict=True):
        told_as = job.told_as
        listed[told_as] = listed.get(told_as, 0) + 1
        if listed[told_as] <= most:
            rows.append([f"{_SIGNS[told_as]} {_called(order)}", _what(order), _outcome_text(job)])
    lines = table(rows, columns=columns)
    for outcome, count in listed.items():
        if count > most:
            lines.append(f"{_SIGNS[outcome]} … and {count - most:,} more {outcome}")
    shown = answer.vanished[:MOST_LISTED]
    lines += [
        f"- {name}  not in {os.path.basename(source) or 'it'} any more; it stays until you cancel it" for name in shown
    ]
    if len(answer.vanished) > len(shown):
        lines.append(f"- … and {len(answer.vanished) - len(shown):,} more like that")
    return lines


def order_lines(jobs: Sequence[JobOrder], *, columns: int) -> list[str]:
    """Give what would be submitted."""
    rows = [[_called(order), _what(order), needs_text(order)] for order in jobs[:MOST_LISTED]]
    lines = table(rows, header=("job", "what", "needs"), columns=columns)
    if len(jobs) > MOST_LISTED:
        lines.append(f"… and {len(jobs) - MOST_LISTED:,} more")
    return lines


def done_text(answer: Submitted, now_s: float) -> str:
    """Return when all jobs of a dry run would be done, as the end of a line; empty: that is not known."""
    if answer.done_s is None:
        return ""
    return f"; all done in about {format_duration(max(0.0, answer.done_s - now_s))}, {moment(answer.done_s, now_s)}"


def counts_text(answer: Submitted) -> str:
    """Give how many jobs there are of each outcome."""
    total = len(answer.jobs)
    counts = {outcome: sum(job.told_as is outcome for job in answer.jobs) for outcome in Outcome}
    listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    return f"{total:,} job{'' if total == 1 else 's'}: {listed}" if listed else "no jobs"


def told(order: JobOrder, outcome: OrderOutcome, *, dry_run: bool) -> dict[str, Any]:
    """Give what became of one job as plain data."""
    return {
        "id": outcome.id,
        "name": outcome.name,
        "number": outcome.number,
        "label": order.label,
        "recipe": order.recipe,
        "outcome": str(outcome.outcome),
        "state": outcome.state,
        "changes": list(outcome.changes),
        "known_as": outcome.known_as,
        "instead_of": outcome.instead_of,
        "submitter": outcome.submitter,
        "withheld": list(outcome.withheld),
        "forecast": outcome.forecast,
        "machine": outcome.machine,
        "starts_s": outcome.starts_s,
        "ends_s": outcome.ends_s,
        "dry_run": dry_run,
    }


def needs_text(order: JobOrder) -> str:
    """Say what a job asks of its machine."""
    wants = order.requirements
    parts = []
    if wants.wish is not Wish.NEVER:
        devices = "a GPU" if wants.device_count == 1 else f"{wants.device_count} GPUs"
        devices += f" with {format_size(wants.vram_bytes)}" if wants.vram_bytes else ""
        parts.append(devices if wants.wish is Wish.REQUIRE else f"{devices} if there is one")
    if wants.ram_bytes:
        parts.append(f"{format_size(wants.ram_bytes)} RAM")
    if wants.cores:
        parts.append(f"{wants.cores} core{'' if wants.cores == 1 else 's'}")
    return ", ".join(parts) or "nothing in particular"


def _outcome_text(outcome: OrderOutcome) -> str:
    known = f"known: {outcome.state}"
    if outcome.instead_of:
        changes = f"changed: {', '.join(outcome.changes) or 'it'}"
        stays = f"the one before stays: stoker cancel {outcome.instead_of[:_SHORT]}"
        return "; ".join(filter(None, (changes, outcome.forecast, stays)))
    match outcome.outcome:
        case Outcome.NEW:
            return ": ".join(filter(None, ("new", outcome.forecast)))
        case Outcome.KNOWN:
            known = f"{_other_name(outcome)}: {outcome.state}" if outcome.known_as else known
            return "; ".join(filter(None, (known, _whose(outcome))))
        case Outcome.CHANGED:
            changes = f"changed: {', '.join(outcome.changes) or 'it'} ({outcome.state})"
            return "; ".join(filter(None, (_other_name(outcome), changes)))
        case Outcome.REQUEUED:
            again = f"runs again: {', '.join(outcome.changes) or 'code'} changed"
            return "; ".join(filter(None, (_other_name(outcome), again, outcome.forecast)))
        case Outcome.KEPT:
            kept = "kept: completed, with other code than there is now"
            return "; ".join(filter(None, (_other_name(outcome), kept)))


def _other_name(outcome: OrderOutcome) -> str:
    """Return under which other name the same job is known, if it is."""
    return f"already in the queue as {outcome.known_as}" if outcome.known_as else ""


def _whose(outcome: OrderOutcome) -> str:
    """Return whose job it is that stays as it is, if another principal submitted it."""
    if not outcome.submitter:
        return ""
    withheld = f" (yours differs in {', '.join(outcome.withheld)})" if outcome.withheld else ""
    return f"submitted by {outcome.submitter}, not changed{withheld}"


def _called(order: JobOrder) -> str:
    return f"{order.name}/{order.number}" if order.number else order.name


def _what(order: JobOrder) -> str:
    return f"{order.recipe}  {order.label}".rstrip()
