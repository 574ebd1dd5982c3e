"""Everything about one job, and the journal: what happened, in order."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, func, select

from stoker.coordinator.database.tables import AFTER, ATTEMPTS, BUNDLES, EVENTS, JOBS
from stoker.coordinator.queue.reading.shaping import (
    Limits,
    attempt_view,
    event_object,
    job_view,
    listed_jobs,
    no_limits,
    read_object,
    told_events,
)
from stoker.model.names import point_name
from stoker.wire.views import AttemptView, JobStory

_NEWEST_EVENTS = 100
_MOST_ATTEMPTS = 1000
MOST_EVENTS = 10_000


def read_story(connection: Connection, seq: int, *, now_s: float, limits: Limits = no_limits) -> JobStory:
    """Return everything about one job."""
    more = ("spec", "error", "user_failures", "lost", "declined")
    row = connection.execute(listed_jobs().add_columns(*(JOBS.c[name] for name in more)).where(JOBS.c.seq == seq)).one()
    spec = read_object(row.spec)
    newest = told_events().where(EVENTS.c.seq == seq).order_by(EVENTS.c.id.desc()).limit(_NEWEST_EVENTS)
    return JobStory(
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
    """Give the tries at a job, oldest first; of very many the newest."""
    newest = select(ATTEMPTS).where(ATTEMPTS.c.seq == seq).order_by(ATTEMPTS.c.attempt.desc()).limit(_MOST_ATTEMPTS)
    return tuple(attempt_view(row) for row in reversed(connection.execute(newest).all()))


def read_events(
    connection: Connection, after_id: int, limit: int, seq: int | None = None
) -> tuple[dict[str, Any], ...]:
    """Give what happened after an event, oldest first; of one job or of all."""
    asked = told_events().where(EVENTS.c.id > after_id).order_by(EVENTS.c.id).limit(max(0, min(limit, MOST_EVENTS)))
    if seq is not None:
        asked = asked.where(EVENTS.c.seq == seq)
    return tuple(event_object(row) for row in connection.execute(asked))


def read_newest_event(connection: Connection) -> int:
    """Give the id of the newest event; 0 before the first."""
    return connection.execute(select(func.max(EVENTS.c.id))).scalar() or 0


def bundle_object(row: Row[Any]) -> dict[str, Any]:
    """Give a row of the index of results."""
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
    """Give the names of the jobs that one comes after."""
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
