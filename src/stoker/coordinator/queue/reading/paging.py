"""Pages of jobs, newest first: each costs about the same, wherever it lies and however long the history is.

One filter is answered by its index; a recipe with a state, and whatever few jobs are in a state, too. Other filters may
each match much and together nothing: their page is looked for window by window and ends early once it took its time. It
is then short, or even empty, and says where to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from stoker.coordinator.database.tables import JOBS
from stoker.coordinator.queue.reading.cursors import read_cursor, write_cursor
from stoker.coordinator.queue.reading.shaping import listed_jobs
from stoker.model.clock import Clock
from stoker.model.errors import BadInput
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState
from stoker.model.suggest import did_you_mean

MOST = 1000
_WINDOW = 10_000
_LONGEST_S = 0.05
_FEW = 5000
_FAR = (1 << 63) - 1


@frozen
class PageRows:
    """What a page consists of, and where the next one begins."""

    rows: tuple[Row[Any], ...]
    next: str = ""


def read_page(
    connection: Connection,
    filters: Mapping[str, str],
    *,
    after: str,
    limit: int,
    counts: Mapping[str, int],
    clock: Clock,
) -> PageRows:
    """Read one page. `filters` hold only what is asked for; `counts` says how many jobs are in each state."""
    limit = max(1, min(limit, MOST))
    states = states_of(filters.get("state", ""))
    before = read_cursor(after, filters) if after else _FAR
    is_rare = bool(states) and sum(counts[state] for state in states) <= _FEW
    if "recipe" in filters and not states:
        # Its index is ordered within each state.
        states = tuple(str(state) for state in JobState)
    if is_rare or len(filters) <= 1 or filters.keys() == {"recipe", "state"}:
        rows = _part(connection, _asked(filters, is_rare=is_rare), states, before, 0, limit + 1)
        return _page(rows[:limit], rows[limit - 1].seq if len(rows) > limit else 0, filters)
    asked = _asked(filters)
    upper = min(before, 1 + int(connection.scalar(select(func.max(JOBS.c.seq))) or 0))
    found: list[Row[Any]] = []
    deadline_s = clock.monotonic_s() + _LONGEST_S
    while upper > 1:
        lower = max(1, upper - _WINDOW)
        found += _part(connection, asked, states, upper, lower, limit + 1 - len(found))
        if len(found) > limit:
            return _page(found[:limit], found[limit - 1].seq, filters)
        upper = lower
        if clock.monotonic_s() >= deadline_s:
            break
    return _page(found, upper if upper > 1 else 0, filters)


def states_of(text: str) -> tuple[str, ...]:
    """Read `failed`, or several: `claimed,running`; none: all."""
    states = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    known = [str(state) for state in JobState]
    for state in states:
        if state not in known:
            raise BadInput(
                f"there is no state {state!r}", hint=did_you_mean(state, known) or f"there are {', '.join(known)}"
            )
    return states


def _page(rows: list[Row[Any]], seq: int, filters: Mapping[str, str]) -> PageRows:
    return PageRows(rows=tuple(rows), next=write_cursor(seq, filters) if seq else "")


def _asked(filters: Mapping[str, str], *, is_rare: bool = False) -> Select[Any]:
    statement = listed_jobs()
    for column in ("name", "recipe", "machine"):
        if column in filters:
            # Of a rare state every job is looked at; an expression keeps databases from preferring a longer index.
            said = JOBS.c[column].concat("") if is_rare else JOBS.c[column]
            statement = statement.where(said == filters[column])
    return statement


def _part(
    connection: Connection, asked: Select[Any], states: tuple[str, ...], before: int, lower: int, limit: int
) -> list[Row[Any]]:
    """Read the newest of one window; of several states each by itself, so that each is read in order."""
    asked = asked.where(JOBS.c.seq < before).order_by(JOBS.c.seq.desc()).limit(limit)
    if lower:
        asked = asked.where(JOBS.c.seq >= lower)
    rows: list[Row[Any]] = []
    for state in states or ("",):
        rows += connection.execute(asked.where(JOBS.c.state == state) if state else asked)
    return rows if len(states) <= 1 else nlargest(limit, rows, key=lambda row: row.seq)
