"""Reads for screens from committed rows: the overview, and the rows that changed after an event.

Every function takes a connection with a snapshot of the database, so that rows and the number of the last event belong
together. What is read is bounded, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import Connection, Row, func, select

from stoker.coordinator.database.tables import EVENTS, EVENTS_DROPPED_TO, JOBS, LEASES, META
from stoker.coordinator.queue.job_pages import read_listed
from stoker.coordinator.queue.read_jobs import Limits, job_view, pending_why, read_counts, read_newest_event
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.text import counted, point_name
from stoker.protocol.screen_messages import PendingReason
from stoker.protocol.view_messages import JobView

SHOWN = 20
"""Running and failed jobs in an overview."""
SAMPLE = 2000
"""Pending jobs whose reasons are looked at."""
MOST_BEHIND = 4096
MOST_ROWS = 500
"""Jobs in one answer about changes: beyond, reading pages again is less work."""
DAY_S = 24 * 3600.0
_MOST_FAILED = 10_000
_MOST_REASONS = 20
_MOST_NAMES = 3
_MOST_LEASES = 5000


@frozen
class OverviewRows:
    """What an overview shows of jobs."""

    seq: int
    counts: dict[str, int]
    running: tuple[JobView, ...]
    pending: tuple[PendingReason, ...]
    failed: tuple[JobView, ...]
    failed_count: int


def read_overview(connection: Connection, *, now_s: float, limits: Limits) -> OverviewRows:
    """Return what an overview shows."""
    counts = read_counts(connection)
    running = select(JOBS.c.seq).where(JOBS.c.state == JobState.RUNNING.value).order_by(JOBS.c.seq.desc())
    since = (JOBS.c.state == JobState.FAILED.value, JOBS.c.ended_s > now_s - DAY_S)
    failed = select(JOBS.c.seq).where(*since).order_by(JOBS.c.ended_s.desc(), JOBS.c.seq.desc())
    some = select(JOBS.c.seq).where(*since).limit(_MOST_FAILED).subquery()

    def views(statement: Any) -> tuple[JobView, ...]:
        rows = read_listed(connection, list(connection.scalars(statement.limit(SHOWN))))
        return tuple(job_view(row, now_s=now_s, limits=limits) for row in rows)

    return OverviewRows(
        seq=read_newest_event(connection),
        counts=counts,
        running=views(running),
        pending=_reasons(connection, counts[JobState.PENDING], now_s, limits),
        failed=views(failed),
        failed_count=int(connection.scalar(select(func.count()).select_from(some)) or 0),
    )


_REASON_COLUMNS = ("name", "number", "is_ready", "blockers", "not_before_s", "class_id", "message")


def _reasons(connection: Connection, pending: int, now_s: float, limits: Limits) -> tuple[PendingReason, ...]:
    """Return the first pending jobs by reason, the most frequent first."""
    if not pending:
        return ()
    asked = select(*(JOBS.c[name] for name in _REASON_COLUMNS)).where(JOBS.c.state == JobState.PENDING.value)
    by_reason: dict[str, list[str]] = {}
    numbers: dict[str, int] = {}
    for row in connection.execute(asked.order_by(JOBS.c.seq).limit(SAMPLE)):
        reason = _reason(row, now_s, limits)
        numbers[reason] = numbers.get(reason, 0) + 1
        names = by_reason.setdefault(reason, [])
        if len(names) < _MOST_NAMES:
            names.append(point_name(row.name, row.number))
    found = [
        PendingReason(reason=reason, count=count, jobs=tuple(by_reason[reason]))
        for reason, count in sorted(numbers.items(), key=lambda item: -item[1])
    ]
    seen, others = sum(numbers.values()), found[_MOST_REASONS:]
    found = found[:_MOST_REASONS]
    if others:
        found.append(PendingReason(reason=counted(len(others), "other reason"), count=sum(one.count for one in others)))
    if pending > seen >= SAMPLE:
        found.append(PendingReason(reason=f"not looked at: behind the first {SAMPLE:,}", count=pending - seen))
    return tuple(found)


def _reason(row: Row[Any], now_s: float, limits: Limits) -> str:
    if not row.blockers and not row.is_ready and row.not_before_s > now_s:
        # Each has a time of its own.
        return f"waits for its retry: {row.message}" if row.message else "waits for its retry"
    return pending_why(row, now_s, limits)


@frozen
class ChangesRead:
    """Jobs and machines that events after one are about."""

    seq: int
    counts: dict[str, int]
    jobs: tuple[JobView, ...] = ()
    machines: frozenset[str] = frozenset()
    is_too_much: bool = False
    """More than one answer has room for, or some events are no longer stored."""


def read_changes(
    connection: Connection,
    after: int,
    *,
    now_s: float,
    limits: Limits,
    more: Callable[[Connection], Collection[int]] = lambda _connection: (),
) -> ChangesRead:
    """Return what changed after an event; `more` returns the numbers of further jobs to include."""
    newest, counts = read_newest_event(connection), read_counts(connection)
    if after > newest or newest - after > MOST_BEHIND or after < _dropped_to(connection):
        return ChangesRead(seq=newest, counts=counts, is_too_much=True)
    rows = connection.execute(select(EVENTS.c.seq, EVENTS.c.machine).where(EVENTS.c.id > after, EVENTS.c.id <= newest))
    touched, machines = dict.fromkeys(more(connection)), set()
    for row in rows:
        if row.seq is not None:
            touched[row.seq] = None
        if row.machine:
            machines.add(row.machine)
    if len(touched) > MOST_ROWS:
        return ChangesRead(seq=newest, counts=counts, is_too_much=True)
    jobs = read_listed(connection, list(touched))
    return ChangesRead(
        seq=newest,
        counts=counts,
        jobs=tuple(job_view(row, now_s=now_s, limits=limits) for row in jobs),
        machines=frozenset(machines),
    )


def read_progress(connection: Connection) -> dict[int, int]:
    """Return a checksum of the progress of each live job, by its number; of very many jobs a part."""
    rows = connection.execute(select(LEASES.c.seq, LEASES.c.progress).limit(_MOST_LEASES))
    return {row.seq: hash(row.progress) for row in rows}


def _dropped_to(connection: Connection) -> int:
    return int(connection.scalar(select(META.c.value).where(META.c.key == EVENTS_DROPPED_TO)) or 0)
