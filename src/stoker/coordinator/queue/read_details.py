"""Rows become what people see: one place that says which column is which word."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, text

from stoker.coordinator.database.tables import AFTER, ATTEMPTS, BUNDLES, EVENTS, JOBS, LEASES
from stoker.coordinator.queue.queue_state import choices_in
from stoker.core.events import VERSION
from stoker.core.frozen import frozen
from stoker.core.job import EnvironmentChoice, JobInput, JobState
from stoker.core.jsontext import loads
from stoker.core.retry import FailureCause
from stoker.core.text import point_name
from stoker.protocol.job_messages import INPUT_BODY
from stoker.protocol.view_messages import AttemptView, JobDetails, JobView

_LISTED = (
    "seq", "id", "name", "number", "label", "recipe", "mode", "state", "is_ready", "blockers", "not_before_s",
    "is_cancelling", "priority", "epoch", "attempt", "machine", "submitter", "submitted_s", "changed_s", "started_s",
    "ended_s", "cause", "message", "tree", "metrics", "class_id",
)  # fmt: skip


def listed_jobs() -> Select[Any]:
    """Return the statement that reads jobs as lists show them, what their leases say included."""
    columns = [JOBS.c[name] for name in _LISTED]
    lease = (LEASES.c.devices.label("held_devices"), LEASES.c.progress)
    return select(*columns, *lease).select_from(JOBS.outerjoin(LEASES, LEASES.c.seq == JOBS.c.seq))


Limits = Callable[[int], str]
"""Returns which limit of its user keeps jobs of a class from starting now; empty: none."""


def no_limits(_class_id: int) -> str:
    """Return the condition that no limit keeps jobs from starting."""
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
    """Return one try at a job."""
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
    """Return the statement that reads events together with the names of their jobs."""
    return select(EVENTS, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number).select_from(
        EVENTS.outerjoin(JOBS, JOBS.c.seq == EVENTS.c.seq)
    )


def event_object(row: Row[Any]) -> dict[str, Any]:
    """Return an event in the envelope that all streams of ours have; `seq` is its own number, by which one resumes."""
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
    """Return in one line what a pending job waits for, or why one failed."""
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
        cause = "" if row.cause == FailureCause.USER and row.message else row.cause
        return ": ".join(part for part in (cause, row.message) if part)
    return row.message if row.state == JobState.CANCELLED else ""


# Everything about one job, and the journal: what happened, in order.

_NEWEST_EVENTS = 100
_MOST_ATTEMPTS = 1000
MOST_EVENTS = 10_000


def read_story(connection: Connection, seq: int, *, now_s: float, limits: Limits = no_limits) -> JobDetails:
    """Return everything about one job."""
    more = ("spec", "error", "user_failures", "lost", "declined")
    row = connection.execute(listed_jobs().add_columns(*(JOBS.c[name] for name in more)).where(JOBS.c.seq == seq)).one()
    spec = read_object(row.spec)
    newest = told_events().where(EVENTS.c.seq == seq).order_by(EVENTS.c.id.desc()).limit(_NEWEST_EVENTS)
    return JobDetails(
        job=job_view(row, now_s=now_s, limits=limits),
        args=spec.get("args", {}),
        requirements=spec.get("requirements", {}),
        code=spec.get("code", {}),
        folder=spec.get("folder", ""),
        project=spec.get("project", ""),
        code_tree=spec.get("code_tree", ""),
        commit=spec.get("commit", ""),
        inputs=spec.get("inputs", ()),
        environment=spec.get("environment", ()),
        after=_before_it(connection, seq),
        attempts=read_attempts(connection, seq),
        counts={"user": row.user_failures, "lost": row.lost, "declined": row.declined},
        events=tuple(event_object(event) for event in reversed(connection.execute(newest).all())),
        bundle=_bundle(connection, seq),
        error=read_object(row.error),
    )


def read_attempts(connection: Connection, seq: int) -> tuple[AttemptView, ...]:
    """Return the tries at a job, oldest first; of very many the newest."""
    newest = select(ATTEMPTS).where(ATTEMPTS.c.seq == seq).order_by(ATTEMPTS.c.attempt.desc()).limit(_MOST_ATTEMPTS)
    return tuple(attempt_view(row) for row in reversed(connection.execute(newest).all()))


def read_events(
    connection: Connection, after_id: int, limit: int, seq: int | None = None
) -> tuple[dict[str, Any], ...]:
    """Return what happened after an event, oldest first; of one job or of all."""
    asked = told_events().where(EVENTS.c.id > after_id).order_by(EVENTS.c.id).limit(max(0, min(limit, MOST_EVENTS)))
    if seq is not None:
        asked = asked.where(EVENTS.c.seq == seq)
    return tuple(event_object(row) for row in connection.execute(asked))


def read_newest_event(connection: Connection) -> int:
    """Return the id of the newest event; 0 before the first."""
    return connection.execute(select(func.max(EVENTS.c.id))).scalar() or 0


def bundle_object(row: Row[Any]) -> dict[str, Any]:
    """Return a row of the index of results."""
    return {
        "attempt": row.attempt,
        "tree": row.tree,
        "archive_sha256": row.archive_sha256,
        "size_bytes": row.size_bytes,
        "at_s": row.at_s,
        "is_pinned": bool(row.is_pinned),
        "pruned_s": row.pruned_s,
    }


def _before_it(connection: Connection, seq: int) -> tuple[str, ...]:
    """Return the names of the jobs that one comes after."""
    asked = (
        select(JOBS.c.name, JOBS.c.number)
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq == seq)
        .order_by(AFTER.c.before_seq)
    )
    return tuple(point_name(row.name, row.number) for row in connection.execute(asked))


def _bundle(connection: Connection, seq: int) -> dict[str, Any]:
    asked = select(BUNDLES).where(BUNDLES.c.seq == seq).order_by(BUNDLES.c.attempt.desc()).limit(1)
    row = connection.execute(asked).first()
    return bundle_object(row) if row is not None else {}


# What an explanation needs of the rows: the job and what it comes after, and the numbers of ready jobs.

# In the index's own words: a database uses it only where the question says the same literally.
_READY = text("state = 'pending' AND is_ready")


@frozen
class PrerequisiteRow:
    """A job that another one comes after, and that has not completed."""

    seq: int
    job: str
    name: str
    state: str


@frozen
class JobExplainRow:
    """A job, as an explanation asks about it."""

    seq: int
    class_id: int
    not_before_s: float
    message: str
    attempts: int
    """How many failures of its own it may have."""
    after: tuple[PrerequisiteRow, ...] = ()
    environment: tuple[EnvironmentChoice, ...] = ()
    inputs: tuple[JobInput, ...] = ()


def read_case(connection: Connection, seq: int) -> JobExplainRow:
    """Return what is known of a job beside its story."""
    asked = select(JOBS.c.class_id, JOBS.c.not_before_s, JOBS.c.message, JOBS.c.spec).where(JOBS.c.seq == seq)
    row = connection.execute(asked).one()
    before = (
        select(JOBS.c.seq, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.state)
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq == seq, JOBS.c.state != JobState.COMPLETED.value)
        .order_by(AFTER.c.before_seq)
    )
    spec = read_object(row.spec)
    return JobExplainRow(
        seq=seq,
        class_id=row.class_id,
        not_before_s=row.not_before_s,
        message=row.message,
        attempts=int(spec.get("attempts", 1)),
        environment=choices_in(spec),
        inputs=tuple(INPUT_BODY.validate_python(one) for one in spec.get("inputs", ())),
        after=tuple(
            PrerequisiteRow(seq=one.seq, job=one.id, name=point_name(one.name, one.number), state=one.state)
            for one in connection.execute(before)
        ),
    )


def read_ready_numbers(
    connection: Connection, levels: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the first ready jobs of each class and priority, as many as asked for, in order."""
    found = {}
    for (class_id, priority), most in levels.items():
        asked = select(JOBS.c.seq).where(_READY, JOBS.c.class_id == class_id, JOBS.c.priority == priority)
        found[class_id, priority] = list(connection.scalars(asked.order_by(JOBS.c.seq).limit(most)))
    return found


def read_names(connection: Connection, seqs: Collection[int]) -> dict[int, str]:
    """Return what jobs are called, by number."""
    asked = select(JOBS.c.seq, JOBS.c.name, JOBS.c.number).where(JOBS.c.seq.in_(seqs))
    return {row.seq: point_name(row.name, row.number) for row in connection.execute(asked)}
