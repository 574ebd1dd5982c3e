"""The changes of a submission as lines: job by job, or by outcome if there are many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.api.submission import machines_there
from stoker.cli.context import CommandContext
from stoker.core.device import Backend
from stoker.core.job import JobSpec
from stoker.core.machine import DevicePreference
from stoker.core.text import counted, format_duration, format_size, outside
from stoker.protocol.job_messages import JobSubmissionResult, SubmissionOutcome, SubmissionResponse
from stoker.views.text_tables import moment, table

if TYPE_CHECKING:
    from stoker.jobs.pack.code_tree import PackedProject, PreparedSubmission
    from stoker.protocol.client import FleetClient
    from stoker.protocol.tree_messages import TreeView


MOST_LISTED = 20
MOST_FORESEEN = 50
"""Maximum number of jobs with a forecast in a dry run."""
_SHORT = 12
_SIGNS = {
    SubmissionOutcome.NEW: "+",
    SubmissionOutcome.KNOWN: "=",
    SubmissionOutcome.CHANGED: "~",
    SubmissionOutcome.REQUEUED: "+",
    SubmissionOutcome.KEPT: "!",
}


def change_lines(
    jobs: Sequence[JobSpec], answer: SubmissionResponse, *, source: str, columns: int, most: int = MOST_LISTED
) -> list[str]:
    """Return the differences from the coordinator's jobs as lines."""
    rows = []
    listed: dict[SubmissionOutcome, int] = {}
    for order, job in zip(jobs, answer.jobs, strict=True):
        shown_outcome = job.shown_outcome
        listed[shown_outcome] = listed.get(shown_outcome, 0) + 1
        if listed[shown_outcome] <= most:
            rows.append([f"{_SIGNS[shown_outcome]} {_called(order)}", _what(order), _outcome_text(job)])
    lines = table(rows, columns=columns)
    for outcome, count in listed.items():
        if count > most:
            lines.append(f"{_SIGNS[outcome]} … and {count - most:,} more {outcome}")
    shown = answer.vanished[:MOST_LISTED]
    lines += [
        f"- {name}  not in {os.path.basename(source) or 'the source'} any more; remove it: stoker cancel {name}"
        for name in shown
    ]
    if len(answer.vanished) > len(shown):
        lines.append(f"- … and {len(answer.vanished) - len(shown):,} more")
    return lines


def order_lines(jobs: Sequence[JobSpec], *, columns: int) -> list[str]:
    """Return the jobs to submit as lines."""
    rows = [[_called(order), _what(order), needs_text(order)] for order in jobs[:MOST_LISTED]]
    lines = table(rows, header=("job", "what", "needs"), columns=columns)
    if len(jobs) > MOST_LISTED:
        lines.append(f"… and {len(jobs) - MOST_LISTED:,} more")
    return lines


def done_text(answer: SubmissionResponse, now_s: float) -> str:
    """Return when all jobs of a dry run would be done, as the end of a line; "" if unknown."""
    if answer.done_s is None:
        return ""
    return f"; all done in about {format_duration(max(0.0, answer.done_s - now_s))}, {moment(answer.done_s, now_s)}"


def counts_text(answer: SubmissionResponse) -> str:
    """Return the number of jobs of each outcome."""
    total = len(answer.jobs)
    counts = {outcome: sum(job.shown_outcome is outcome for job in answer.jobs) for outcome in SubmissionOutcome}
    listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    return f"{counted(total, 'job')}: {listed}" if listed else "no jobs"


def as_json(order: JobSpec, outcome: JobSubmissionResult, *, dry_run: bool) -> dict[str, Any]:
    """Return the outcome of one job as plain data."""
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


def needs_text(order: JobSpec) -> str:
    """Return the requirements of a job."""
    wants = order.requirements
    parts = []
    if wants.wish is not DevicePreference.NEVER:
        devices = "a GPU" if wants.device_count == 1 else f"{wants.device_count} GPUs"
        devices += f" ({wants.backend})" if wants.backend is not Backend.CUDA else ""
        devices += f" with {format_size(wants.vram_bytes)}" if wants.vram_bytes else ""
        parts.append(devices if wants.wish is DevicePreference.REQUIRE else f"{devices} if available")
    if wants.ram_bytes:
        parts.append(f"{format_size(wants.ram_bytes)} RAM")
    if wants.cores:
        parts.append(counted(wants.cores, "core"))
    return ", ".join(parts) or "no requirements"


def _outcome_text(outcome: JobSubmissionResult) -> str:
    known = f"known: {outcome.state}"
    if outcome.instead_of:
        changes = f"changed: {', '.join(outcome.changes) or 'it'}"
        stays = f"the old job remains; cancel it: stoker cancel {outcome.instead_of[:_SHORT]}"
        return "; ".join(filter(None, (changes, outcome.forecast, stays)))
    match outcome.outcome:
        case SubmissionOutcome.NEW:
            return ": ".join(filter(None, ("new", outcome.forecast)))
        case SubmissionOutcome.KNOWN:
            known = f"{_other_name(outcome)}: {outcome.state}" if outcome.known_as else known
            return "; ".join(filter(None, (known, _whose(outcome))))
        case SubmissionOutcome.CHANGED:
            changes = f"changed: {', '.join(outcome.changes) or 'it'} ({outcome.state})"
            return "; ".join(filter(None, (_other_name(outcome), changes)))
        case SubmissionOutcome.REQUEUED:
            again = f"runs again: {', '.join(outcome.changes) or 'code'} changed"
            return "; ".join(filter(None, (_other_name(outcome), again, outcome.forecast)))
        case SubmissionOutcome.KEPT:
            kept = "kept: completed, code has changed"
            return "; ".join(filter(None, (_other_name(outcome), kept)))


def _other_name(outcome: JobSubmissionResult) -> str:
    """Return the other name of the same job, if it has one."""
    return f"already in the queue as {outcome.known_as}" if outcome.known_as else ""


def _whose(outcome: JobSubmissionResult) -> str:
    """Return the submitter of an unchanged job, if it is another one."""
    if not outcome.submitter:
        return ""
    withheld = f" (yours differs in {', '.join(outcome.withheld)})" if outcome.withheld else ""
    return f"submitted by {outcome.submitter}, not changed{withheld}"


def _called(order: JobSpec) -> str:
    return f"{order.name}/{order.number}" if order.number else order.name


def _what(order: JobSpec) -> str:
    return f"{order.recipe}  {order.label}".rstrip()


# The summary of a submission in one line: `code 41 files (2 uncommitted, included) · env … · data …`.

_BETWEEN = " · "
_MOST_NAMED = 8


class SubmitSummary:
    """The line, collected in parts."""

    def __init__(self, call: CommandContext) -> None:
        self._call = call
        self._parts: list[str] = []

    def add(self, part: str) -> None:
        """Add a part."""
        self._parts.append(part)

    def show(self) -> None:
        """Print the line."""
        if self._parts and not self._call.out.is_quiet:
            separator = _BETWEEN if self._call.out.is_unicode else "; "
            self._call.out.line(separator.join(self._parts))
        self._parts.clear()


def add_code(
    call: CommandContext, summary: SubmitSummary, orders: PreparedSubmission, client: FleetClient | None
) -> None:
    """Add the code of the submission; with a coordinator (dry run), also how much would be sent."""
    for packed in orders.packed:
        to_send = _to_send(packed, client) if client is not None else ""
        summary.add(code_text(packed) + to_send)
        call.out.object(
            {
                "code": packed.digest,
                "files": packed.files,
                "size_bytes": packed.size_bytes,
                "uncommitted": packed.uncommitted,
                "commit": packed.commit,
                "project": packed.project.identity,
                "left_behind": packed.left.to_json(),
            }
        )


def add_data(call: CommandContext, summary: SubmitSummary, orders: PreparedSubmission, client: FleetClient) -> None:
    """Add the data of the submission and where it is."""
    shipments = {one.digest: one for one in orders.shipments if one.is_data}
    if not shipments:
        return
    sent = {one.digest for one in orders.to_send(client.url)}
    machines = sorted(machines_there(client)) if sent else []
    for digest, one in shipments.items():
        tree = one.tree
        # Several inputs are named by their purpose.
        size = f"{outside(one.what) if len(shipments) > 1 else 'data'} {format_size(tree.size_bytes)}"
        if digest not in sent:
            summary.add(f"{size}: {'copied once on this machine' if '/' in one.what else 'read in place'}")
            continue
        view = client.want_tree(digest, files=len(tree.entries), size_bytes=tree.size_bytes)
        summary.add(f"{size}: {data_text(view, machines)}")
        call.out.object(
            {"data": digest, "size_bytes": tree.size_bytes, **view.model_dump(include={"is_here", "held_by"})}
        )


def data_text(view: TreeView, machines: Sequence[str]) -> str:
    """Return where data is, and which machines copy it."""
    having = [name for name in machines if name in view.held_by]
    lacking = [name for name in machines if name not in view.held_by]
    parts = [] if view.is_here else ["to send"]
    parts += [f"on {_some(having)}"] if having else []
    parts += [f"{_some(lacking)} {'copies' if len(lacking) == 1 else 'copy'} it once"] if lacking else []
    return ", ".join(parts) or "on the coordinator"


def _some(names: Sequence[str]) -> str:
    shown = [*names[:_MOST_NAMED], f"{len(names) - _MOST_NAMED} more"] if names[_MOST_NAMED:] else list(names)
    return outside(" and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))))


def code_text(packed: PackedProject) -> str:
    """Return a project's code as text."""
    count = counted(packed.files, "file")
    return f"code {count}" + (f" ({packed.uncommitted:,} uncommitted, included)" if packed.uncommitted else "")


def _to_send(packed: PackedProject, client: FleetClient) -> str:
    """Return the part that the coordinator does not have."""
    from stoker.protocol.tree_messages import MOST_DIGESTS
    from stoker.store.archives.archive_members import files_of

    if client.want_tree(packed.digest, files=packed.files, size_bytes=packed.size_bytes).is_here:
        return ", all there"
    sizes = files_of(packed.tree)
    digests = list(sizes)
    missing = [
        digest
        for start in range(0, len(digests), MOST_DIGESTS)
        for digest in client.missing(digests[start : start + MOST_DIGESTS])
    ]
    size = format_size(sum(size for digest, size in sizes.items() if digest in set(missing)))
    return f", {len(missing):,} to send ({size})"
