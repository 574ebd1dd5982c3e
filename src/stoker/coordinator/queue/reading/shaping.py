"""Rows become what people see: one place that says which column is which word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Row, Select, select

from stoker.coordinator.database.tables import EVENTS, JOBS, LEASES
from stoker.model.events import VERSION
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.names import point_name
from stoker.model.retry import Cause
from stoker.wire.views import AttemptView, JobView

_LISTED = (
    "seq", "id", "name", "number", "label", "recipe", "mode", "state", "is_ready", "blockers", "not_before_s",
    "is_cancelling", "priority", "epoch", "attempt", "machine", "submitter", "submitted_s", "changed_s", "started_s",
    "ended_s", "cause", "message", "tree", "metrics", "class_id",
)  # fmt: skip


def listed_jobs() -> Select[Any]:
    """Give the statement that reads jobs as lists show them, what their leases say included."""
    columns = [JOBS.c[name] for name in _LISTED]
    lease = (LEASES.c.devices.label("held_devices"), LEASES.c.progress)
    return select(*columns, *lease).select_from(JOBS.outerjoin(LEASES, LEASES.c.seq == JOBS.c.seq))


Limits = Callable[[int], str]
"""Returns which limit of its user keeps jobs of a class from starting now; empty: none."""


def no_limits(_class_id: int) -> str:
    """Return that no limit keeps jobs from starting."""
    return ""


def job_view(row: Row[Any], *, now_s: float, limits: Limits = no_limits) -> JobView:
    """Return a job as a list shows it."""
    progress = read_object(row.progress)
    return JobView(
        id=row.id,
        name=point_name(row.name, row.number),
        label=row.label,
        recipe=row.recipe,
        mode=row.mode,
        state=row.state,
        is_cancelling=bool(row.is_cancelling),
        priority=row.priority,
        epoch=row.epoch,
        attempt=row.attempt,
        # Where it was lost, or given back, it is no longer.
        machine="" if row.state == JobState.PENDING else row.machine,
        devices=tuple(loads(row.held_devices)) if row.held_devices else (),
        submitter=row.submitter,
        submitted_s=row.submitted_s,
        changed_s=row.changed_s,
        started_s=row.started_s,
        ended_s=row.ended_s,
        step=progress.get("step"),
        of=progress.get("of"),
        metrics=progress.get("metrics") or read_object(row.metrics),
        says=progress.get("says", ""),
        why=_why(row, now_s, limits),
        result=row.tree,
    )


def attempt_view(row: Row[Any]) -> AttemptView:
    """Give one try at a job."""
    return AttemptView(
        number=row.attempt,
        epoch=row.epoch,
        generation=row.generation,
        machine=row.machine,
        incarnation=row.incarnation,
        devices=tuple(loads(row.devices)) if row.devices else (),
        granted_s=row.granted_s,
        started_s=row.started_s,
        ended_s=row.ended_s,
        ending=row.ending,
        cause=row.cause,
        message=row.message,
        hint=row.hint,
        exit_code=row.exit_code,
        facts=read_object(row.facts),
    )


def told_events() -> Select[Any]:
    """Give the statement that reads events together with the names of their jobs."""
    return select(EVENTS, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number).select_from(
        EVENTS.outerjoin(JOBS, JOBS.c.seq == EVENTS.c.seq)
    )


def event_object(row: Row[Any]) -> dict[str, Any]:
    """Give an event in the envelope that all streams of ours have; `seq` is its own number, by which one resumes."""
    told: dict[str, Any] = {
        "v": VERSION,
        "ts": round(row.at_s, 6),
        "seq": row.id,
        "source": "coordinator",
        "kind": row.kind,
    }
    if row.job is not None:
        told |= {"job": row.job, "name": point_name(row.name, row.number)}
    told |= {word: value for word in ("machine", "attempt", "epoch") if (value := getattr(row, word)) not in (None, "")}
    told["generation"] = row.generation
    if row.to_state:
        told |= {"from": row.from_state, "to": row.to_state}
    # What an event brings of its own never covers what stands above.
    return told | {word: value for word, value in read_object(row.fields).items() if word not in told}


def read_object(text: str | None) -> dict[str, Any]:
    """Read a column that holds a JSON object or nothing."""
    return loads(text) if text else {}


def _why(row: Row[Any], now_s: float, limits: Limits) -> str:
    """Say in one line what a pending job waits for, or why one failed."""
    if row.state == JobState.PENDING:
        if row.blockers:
            return f"waits for {row.blockers} job{'s' * (row.blockers != 1)} to complete first"
        if not row.is_ready and row.not_before_s > now_s:
            return f"tries again in {row.not_before_s - now_s:.0f} s" + (f": {row.message}" if row.message else "")
        limit = limits(row.class_id)
        return (f"waits: {limit}" if limit else "waits for a machine") + (
            f"; before: {row.message}" if row.message else ""
        )
    if row.state == JobState.FAILED:
        # That its own program failed is what everybody expects; any other cause is said.
        cause = "" if row.cause == Cause.USER and row.message else row.cause
        return ": ".join(part for part in (cause, row.message) if part)
    return row.message if row.state == JobState.CANCELLED else ""
