"""Which attempts ran where in a span of time, read along the events: bounded work, and no index of its own."""

from __future__ import annotations

from math import inf
from typing import Any

from sqlalchemy import Connection, func, select

from stoker.coordinator.database.tables import ATTEMPTS, EVENTS, JOBS, LEASES
from stoker.core.events import FleetKinds
from stoker.core.jsontext import loads
from stoker.core.text import point_name
from stoker.protocol.telemetry_messages import TimelineSpan, TimelineView

MOST_SPANS = 3000
MOST_EVENTS = 50_000
"""Read of a span, and behind it: of a span with more, its end is shown."""
_PAGE = 5000
_ENDS = (
    FleetKinds.JOB_FINISHED,
    FleetKinds.JOB_FAILED,
    FleetKinds.JOB_RETRYING,
    FleetKinds.JOB_RELEASED,
    FleetKinds.JOB_EXPIRED,
    FleetKinds.JOB_CANCELLED,
)
_COLUMNS = (
    ATTEMPTS.c.seq,
    ATTEMPTS.c.attempt,
    ATTEMPTS.c.machine,
    ATTEMPTS.c.devices,
    ATTEMPTS.c.granted_s,
    ATTEMPTS.c.started_s,
    ATTEMPTS.c.ended_s,
    ATTEMPTS.c.ending,
    JOBS.c.id,
    JOBS.c.name,
    JOBS.c.number,
)


def read_timeline(
    connection: Connection, *, from_s: float, to_s: float, now_s: float, machine: str = ""
) -> TimelineView:
    """Return the attempts that ran within a span of time, on all machines or on one; bounded."""
    running = (
        select(*_COLUMNS)
        .join_from(LEASES, ATTEMPTS, (ATTEMPTS.c.seq == LEASES.c.seq) & (ATTEMPTS.c.attempt == LEASES.c.attempt))
        .join(JOBS, JOBS.c.seq == LEASES.c.seq)
        .where(ATTEMPTS.c.started_s.is_not(None), ATTEMPTS.c.started_s < to_s)
        .limit(MOST_SPANS + 1)
    )
    if machine:
        running = running.where(LEASES.c.machine == machine)
    found = {(row.seq, row.attempt): row for row in connection.execute(running)}
    windows, is_cut = _windows(connection, from_s, to_s)
    whole_from = 0
    for after, until in windows:
        if len(found) > MOST_SPANS:
            is_cut = True
            break
        whole_from = min(whole_from or until, after + 1)
        ended = (
            select(*_COLUMNS)
            .join_from(EVENTS, ATTEMPTS, (ATTEMPTS.c.seq == EVENTS.c.seq) & (ATTEMPTS.c.attempt == EVENTS.c.attempt))
            .join(JOBS, JOBS.c.seq == EVENTS.c.seq)
            .where(
                EVENTS.c.id > after,
                EVENTS.c.id <= until,
                EVENTS.c.kind.in_(_ENDS),
                ATTEMPTS.c.started_s.is_not(None),
                ATTEMPTS.c.started_s < to_s,
            )
        )
        if machine:
            ended = ended.where(ATTEMPTS.c.machine == machine)
        found |= {(row.seq, row.attempt): row for row in connection.execute(ended)}
    spans = [_span(row) for row in found.values()]
    whole_from_s = _time_of(connection, whole_from) if is_cut and whole_from else None
    if len(spans) > MOST_SPANS:
        # What runs, then what ended last.
        spans.sort(key=lambda one: -(inf if one.to_s is None else one.to_s))
        whole_from_s = spans[MOST_SPANS].to_s
    shown = sorted(spans[:MOST_SPANS], key=lambda one: (one.machine, one.from_s, one.job))
    return TimelineView(
        server_s=now_s,
        from_s=from_s,
        to_s=to_s,
        spans=tuple(shown),
        is_cut=is_cut or len(spans) > MOST_SPANS,
        whole_from_s=whole_from_s,
    )


def _windows(connection: Connection, from_s: float, to_s: float) -> tuple[list[tuple[int, int]], bool]:
    """Return which events to read, and whether some of the span are left out.

    First those of the span, the newest first, then those behind it: of attempts that ended later.
    """
    newest = connection.scalar(select(func.max(EVENTS.c.id))) or 0
    first = _first_event(connection, from_s, newest)
    end = newest if _time_of(connection, newest) < to_s else _first_event(connection, to_s, newest) - 1
    low = max(first, end - MOST_EVENTS + 1)
    high = min(newest, max(end, low - 1) + MOST_EVENTS)
    windows = [(max(low - 1, top - _PAGE), top) for top in range(end, low - 1, -_PAGE)]
    windows += [(bottom, min(high, bottom + _PAGE)) for bottom in range(max(end, low - 1), high, _PAGE)]
    return windows, low > first


def _first_event(connection: Connection, from_s: float, newest: int) -> int:
    """Return the id of the first event at or after a time, by halving: ids rise with time."""
    low, high = connection.scalar(select(func.min(EVENTS.c.id))) or 0, newest
    while low < high:
        middle = (low + high) // 2
        if _time_of(connection, middle) < from_s:
            low = middle + 1
        else:
            high = middle
    return low


def _time_of(connection: Connection, id: int) -> float:
    """Return the time of an event, or of the first after it: some ids may be missing."""
    asked = select(EVENTS.c.at_s).where(EVENTS.c.id >= id).order_by(EVENTS.c.id).limit(1)
    found = connection.scalar(asked)
    return inf if found is None else float(found)


def _span(row: Any) -> TimelineSpan:
    return TimelineSpan(
        machine=row.machine,
        devices=tuple(str(one) for one in loads(row.devices)) if row.devices else (),
        job=row.id,
        name=point_name(row.name, row.number),
        attempt=row.attempt,
        from_s=row.started_s,
        to_s=row.ended_s,
        ending=row.ending or "",
    )
