"""Events for hooks, from the journal: a bounded piece at a time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.database.tables import EVENTS, JOBS
from stoker.coordinator.queue.reading.shaping import event_object, told_events
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState

PAGE = 500
_TOGETHER = 500
_TERMINAL = tuple(state.value for state in JobState if state.is_terminal)


@frozen
class Piece:
    """Some events, oldest first, each with its job's number."""

    events: tuple[tuple[int | None, dict[str, Any]], ...]
    until: int
    """The last event that was looked at."""
    is_last: bool
    """Nothing followed it."""


def read_piece(database: Database, after: int) -> Piece:
    """Give what follows an event."""
    asked = told_events().where(EVENTS.c.id > after).order_by(EVENTS.c.id).limit(PAGE)
    with snapshot(database) as connection:
        rows = connection.execute(asked).all()
    return Piece(
        events=tuple((row.seq, event_object(row)) for row in rows),
        until=rows[-1].id if rows else after,
        is_last=len(rows) < PAGE,
    )


def have_ended(database: Database, jobs: tuple[int, ...]) -> bool:
    """Say whether all of some jobs (their numbers) have ended; whoever is no longer known has."""
    with snapshot(database) as connection:
        for start in range(0, len(jobs), _TOGETHER):
            some = jobs[start : start + _TOGETHER]
            asked = select(func.count()).where(JOBS.c.seq.in_(some), JOBS.c.state.not_in(_TERMINAL))
            if connection.execute(asked).scalar():
                return False
    return True
