"""Pages of jobs: filtered, in any of six orders, with the number of jobs by state. No page reads all jobs.

A page is read in two steps: the keys of its jobs along an index, then the rows. There are three ways to read keys:

- *direct*: an index has the filter and the order;
- *few*: one filter, or the state, has at most 5,000 jobs: these are sorted;
- *walk*: filters may each match much and together nothing. The order's index is searched window by window, and the page
  ends early after a time limit. It is then short, or even empty, and has a cursor.

An order has phases, one after the other: jobs that never started come after those that did. Inside a phase the key is
a column and the job's number. Cursors are opaque, and bound to filters and order.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from sqlalchemy import ColumnElement, Connection, Executable, Select, func, literal, or_, select, tuple_

from stoker.coordinator.database.tables import JOBS
from stoker.coordinator.queue.read_jobs import Limits, job_view, listed_jobs, read_counts, states_of
from stoker.core.clock import Clock
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.jsontext import dumps, loads
from stoker.core.text import did_you_mean
from stoker.protocol.view_messages import MARK_EVERY, MOST_IDS, JobPage

MOST = 1000
_WINDOW = 2000
_LONGEST_S = 0.01
_FEW = 5000
_COUNTED = 5000
"""Jobs that are looked at for the numbers by state, if neither counters nor an index have them."""
_COUNTED_BY_TEXT = 2000
_COUNTED_IN_INDEX = 100_000
_FAR = 1 << 63
_STATES = tuple(str(state) for state in JobState)
_ENDED = tuple(str(state) for state in JobState if state.is_terminal)
_LIVE = tuple(state for state in _STATES if state not in _ENDED)

Key = tuple[int, Any, int]
"""The phase of an order, the value of its column (None: it has none), the number of a job."""
_Condition = ColumnElement[bool]
_Column = ColumnElement[Any]


# Orders.


@frozen
class _Phase:
    """One stretch of an order."""

    where: tuple[_Condition, ...] = ()
    states: tuple[str, ...] = _STATES


@frozen
class _Order:
    """In which order jobs are listed."""

    column: _Column | None = None
    """None: by number, which is the time of submission."""
    is_descending: bool = True
    phases: tuple[_Phase, ...] = (_Phase(),)
    is_by_state: bool = False
    """Its index begins with the state: states are read separately."""

    @property
    def columns(self) -> tuple[_Column, ...]:
        return (JOBS.c.seq,) if self.column is None else (self.column, JOBS.c.seq)

    def may_have(self, value: Any) -> bool:
        """Return True if a key of this order may have a value; every key may have none."""
        if value is None or self.column is None:
            return value is None
        return isinstance(value, str if self.column.type.python_type is str else int | float)

    def sorted(self, statement: Select[Any], *, by_index: bool = True) -> Select[Any]:
        """Add the order; without `by_index` as expressions, so that databases do not go along its index."""
        plain = self.columns if by_index else tuple(_unindexed(column) for column in self.columns)
        return statement.order_by(*(column.desc() if self.is_descending else column.asc() for column in plain))

    def after(self, key: Key) -> _Condition:
        """Return the condition for jobs behind a key of the same phase."""
        return self._compared(key, is_behind=True)

    def until(self, key: Key) -> _Condition:
        """Return the condition for jobs up to a key of the same phase, which is included."""
        return self._compared(key, is_behind=False)

    def _compared(self, key: Key, *, is_behind: bool) -> _Condition:
        _, value, seq = key
        is_lower = self.is_descending == is_behind
        if self.column is None or value is None:
            column: Any = JOBS.c.seq
            given: Any = seq
        else:
            column, given = tuple_(*self.columns), tuple_(literal(value), literal(seq))
        if is_behind:
            found: _Condition = column < given if is_lower else column > given
        else:
            found = column <= given if is_lower else column >= given
        return found


def _by_time(column: _Column, *, is_by_state: bool = False) -> _Order:
    known = _Phase(where=(column.is_not(None),), states=_ENDED if is_by_state else _STATES)
    unknown = _Phase(where=(column.is_(None),), states=_LIVE if is_by_state else _STATES)
    return _Order(column=column, phases=(known, unknown), is_by_state=is_by_state)


_ORDERS: Mapping[str, _Order] = {
    "submitted": _Order(),
    "started": _by_time(JOBS.c.started_s),
    "ended": _by_time(JOBS.c.ended_s, is_by_state=True),
    "name": _Order(column=JOBS.c.name, is_descending=False),
    "priority": _Order(column=JOBS.c.priority),
    "state": _Order(phases=tuple(_Phase(states=(state,)) for state in _STATES), is_by_state=True),
}
SORTS = tuple(_ORDERS)


def _order_of(sort: str) -> _Order:
    name = sort.removeprefix("-") or SORTS[0]
    order = _ORDERS.get(name)
    if order is None:
        raise BadInput(
            f"jobs can't be sorted by {name[:40]!r}", hint=did_you_mean(name, SORTS) or f"by {', '.join(SORTS)}"
        )
    if not sort.startswith("-"):
        return order
    phases = tuple(reversed(order.phases)) if name == "state" else order.phases
    return _Order(
        column=order.column,
        is_descending=not order.is_descending,
        phases=phases,
        is_by_state=order.is_by_state,
    )


# Filters.


def _conditions(filters: Mapping[str, str], lead: str = "", *, is_free: bool = False) -> list[_Condition]:
    """Return the conditions of all filters except `state`.

    Only the filter `lead` uses its index, or with `is_free` any that the database prefers: an expression keeps it from
    the others.
    """
    return [
        _condition(name, value, is_indexed=is_free or name == lead)
        for name, value in filters.items()
        if name != "state"
    ]


def _condition(name: str, value: str, *, is_indexed: bool = True) -> _Condition:
    if name == "ids":
        return JOBS.c.id.in_(ids_of(value))
    if name == "q":
        return _holds(value)
    column = JOBS.c["name" if name == "sweep" else name]
    found: _Condition = (column if is_indexed else _unindexed(column)) == value
    return found & (JOBS.c.number > 0) if name == "sweep" else found


def _holds(part: str) -> _Condition:
    """Return the condition for jobs whose name or label holds a text, whatever its case."""
    named, _, number = part.rpartition("/")
    found = or_(JOBS.c.name.icontains(part, autoescape=True), JOBS.c.label.icontains(part, autoescape=True))
    if named and number.isascii() and number.isdigit() and len(number) < 10:
        # `resnet/3` is how a point of a sweep is shown.
        found = or_(found, JOBS.c.name.icontains(named, autoescape=True) & (JOBS.c.number == int(number)))
    return found


def ids_of(text: str) -> tuple[str, ...]:
    """Read whole ids, separated by commas."""
    ids = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(ids) > MOST_IDS:
        raise BadInput(f"{len(ids)} ids are too many", hint=f"at most {MOST_IDS} in a request")
    return ids


def _unindexed(column: _Column) -> _Column:
    """Return the same value as an expression that no index has."""
    return column.concat("") if column.type.python_type is str else column + 0


_INDEXED = ("ids", "sweep", "name", "machine", "submitter", "recipe")
"""Filters with an index, in the order in which they are tried."""


def _lead_of(connection: Connection, filters: Mapping[str, str]) -> str:
    """Return a filter that matches few jobs; empty: none does. Each trial reads `_FEW` entries of an index at most."""
    for name in _INDEXED:
        if name in filters:
            some = select(JOBS.c.seq).where(_condition(name, filters[name])).limit(_FEW + 1).subquery()
            if int(connection.scalar(select(func.count()).select_from(some)) or 0) <= _FEW:
                return name
    return ""


# Ways to read keys.


@frozen
class _Way:
    """How the keys of a page are read."""

    order: _Order
    where: tuple[_Condition, ...] = ()
    states: tuple[str, ...] = ()
    """None of them: all."""
    splits_states: bool = False
    """States are read one by one, each along its index."""
    is_few: bool = False
    leads_by_state: bool = False
    """Of few jobs: the states have few, and are found along their index."""
    is_walk: bool = False

    def parts(self, phase: _Phase) -> list[tuple[_Condition, ...]]:
        """Return the conditions of the parts of a phase, which together have its jobs."""
        states = tuple(one for one in phase.states if not self.states or one in self.states)
        if not states:
            return []
        if self.splits_states:
            return [(JOBS.c.state == state, *phase.where) for state in states]
        if len(states) == len(_STATES):
            return [phase.where]
        is_indexed = self.leads_by_state or not (self.is_few or self.is_walk)
        column = JOBS.c.state if is_indexed else _unindexed(JOBS.c.state)
        return [(column.in_(states), *phase.where)]


def _way_of(connection: Connection, filters: Mapping[str, str], order: _Order, counts: Mapping[str, int]) -> _Way:
    states, others = states_of(filters.get("state", "")), [name for name in filters if name != "state"]
    is_plain = order.column is None and not order.is_by_state
    if not others and (is_plain or order.is_by_state or not states):
        return _Way(order=order, states=states, splits_states=order.is_by_state or len(states) > 0)
    if is_plain and others == ["recipe"]:
        # Its index is by state.
        return _Way(
            order=order, where=tuple(_conditions(filters, "recipe")), states=states or _STATES, splits_states=True
        )
    if is_plain and not states and len(others) == 1 and others[0] in _INDEXED and others[0] != "ids":
        return _Way(order=order, where=tuple(_conditions(filters, others[0])))
    if states and sum(counts[state] for state in states) <= _FEW and "ids" not in filters:
        # In one part: the database alone knows the order of its texts, which may be that of a language.
        return _Way(order=order, where=tuple(_conditions(filters)), states=states, is_few=True, leads_by_state=True)
    lead = _lead_of(connection, filters)
    if lead:
        return _Way(order=order, where=tuple(_conditions(filters, lead)), states=states, is_few=True)
    where = tuple(_conditions(filters, is_free=is_plain))
    splits = order.is_by_state or (is_plain and bool(states))
    return _Way(order=order, where=where, states=states, splits_states=splits, is_walk=True)


def _read_keys(
    connection: Connection, way: _Way, after: Key | None, limit: int, clock: Clock
) -> tuple[list[Key], Key | None]:
    """Return the keys of a page, and the key after which the next begins (None: there is none)."""
    deadline_s = clock.monotonic_s() + _LONGEST_S
    keys: list[Key] = []

    def is_late() -> bool:
        return clock.monotonic_s() >= deadline_s

    for number in range(after[0] if after else 0, len(way.order.phases)):
        begin = after if after and after[0] == number else None
        if way.is_walk:
            more, stopped = _walk(connection, way, number, begin, limit + 1 - len(keys), is_late)
        else:
            more, stopped = _direct(connection, way, number, (begin,), limit + 1 - len(keys)), None
        keys += more
        if len(keys) > limit:
            return keys[:limit], keys[limit - 1]
        if stopped is not None:
            return keys, stopped
    return keys, None


def _direct(connection: Connection, way: _Way, number: int, bounds: tuple[Key | None, ...], limit: int) -> list[Key]:
    """Return the first keys of a phase; `bounds` are the key before them, and perhaps the last one."""
    order, found = way.order, []
    parts = way.parts(order.phases[number])
    conditions = [
        compare(bound) for compare, bound in zip((order.after, order.until), bounds, strict=False) if bound is not None
    ]
    for part in parts:
        statement = select(*order.columns).where(*way.where, *part, *conditions)
        rows = connection.execute(order.sorted(statement, by_index=not way.is_few).limit(limit))
        found += [(number, None if len(row) == 1 else row[0], row[-1]) for row in rows]
    if len(parts) > 1:
        found.sort(key=lambda key: (key[1] or 0, key[2]), reverse=order.is_descending)
    return found[:limit]


def _walk(
    connection: Connection, way: _Way, number: int, begin: Key | None, limit: int, is_late: Callable[[], bool]
) -> tuple[list[Key], Key | None]:
    """Search a phase window by window; return keys, and where it was stopped (None: it was not)."""
    found: list[Key] = []
    while True:
        end = _window_end(connection, way, number, begin)
        found += _direct(connection, way, number, (begin, end), limit - len(found))
        if len(found) >= limit or end is None:
            return found, None
        begin = end
        if is_late():
            return found, end


def _window_end(connection: Connection, way: _Way, number: int, begin: Key | None) -> Key | None:
    """Return the last key of a window; None: fewer are left."""
    order = way.order
    if order.column is None:
        # Numbers have few holes: no need to count.
        low, high = _ends(connection)
        first = (begin[2] if begin else high + 1) if order.is_descending else (begin[2] if begin else low - 1)
        end = min(first, high + 1) - _WINDOW if order.is_descending else max(first, low - 1) + _WINDOW
        return (number, None, end) if low < end < high else None
    ends: list[Key] = []
    for part in way.parts(order.phases[number]) if way.splits_states else [order.phases[number].where]:
        statement = select(*order.columns).where(*part, *((order.after(begin),) if begin else ()))
        row = connection.execute(order.sorted(statement).limit(1).offset(_WINDOW - 1)).first()
        if row is not None:
            ends.append((number, row[0], row[1]))
    if not ends:
        return None
    nearest: Callable[..., Key] = max if order.is_descending else min
    return nearest(ends, key=lambda key: (key[1] or 0, key[2]))


def _ends(connection: Connection) -> tuple[int, int]:
    """Return the lowest and the highest number of a job."""
    # Each on its own is one step in SQLite; both in one statement read all jobs.
    return connection.scalar(select(func.min(JOBS.c.seq))) or 0, connection.scalar(select(func.max(JOBS.c.seq))) or 0


# Pages.


@frozen
class JobPageRequest:
    """Which page of which list."""

    filters: Mapping[str, str]
    """The given ones only."""
    sort: str = ""
    after: str = ""
    limit: int = 100
    has_marks: bool = False


def read_page(connection: Connection, asked: JobPageRequest, *, clock: Clock, limits: Limits) -> JobPage:
    """Return one page of jobs."""
    filters, sort, after = asked.filters, asked.sort, asked.after
    limit = max(1, min(asked.limit, MOST))
    order, all_counts = _order_of(sort), read_counts(connection)
    states = states_of(filters.get("state", ""))
    bound = {**filters, "sort": sort} if sort else filters
    begin = read_cursor(after, bound, order) if after else None
    others = {name: value for name, value in filters.items() if name != "state"}
    counts, is_cut = (all_counts, False) if not others else ({}, False)
    if others and not after:
        counts, is_cut = _counts_of(connection, others)
    keys, following = _read_keys(connection, _way_of(connection, filters, order, all_counts), begin, limit, clock)
    is_counted = bool(counts) and not is_cut
    is_marked = asked.has_marks and not after and sort in ("", "submitted") and not others
    now_s = clock.wall_s()
    return JobPage(
        jobs=tuple(
            job_view(row, now_s=now_s, limits=limits) for row in read_listed(connection, [key[2] for key in keys])
        ),
        next=write_cursor(following, bound) if following else "",
        total=sum(counts[state] for state in states or _STATES) if is_counted else None,
        counts=counts,
        is_counts_cut=is_cut,
        marks=tuple(write_cursor(key, bound) for key in _marks(connection, states, all_counts)) if is_marked else (),
    )


def read_listed(connection: Connection, seqs: Sequence[int]) -> list[Any]:
    """Return the rows of jobs for a list, in the given order; those that are gone are left out."""
    rows = {row.seq: row for row in connection.execute(listed_jobs().where(JOBS.c.seq.in_(seqs)))} if seqs else {}
    return [rows[seq] for seq in seqs if seq in rows]


def _counts_of(connection: Connection, filters: Mapping[str, str]) -> tuple[dict[str, int], bool]:
    """Return the number of jobs by state under filters, and whether only the newest were looked at."""
    lead = next((name for name in _INDEXED if name in filters), "")
    state: _Column = _unindexed(JOBS.c.state)
    most = _COUNTED
    oldest: int | None = None
    if filters.keys() == {"recipe"}:
        # Its index has the states.
        most, state = _COUNTED_IN_INDEX, JOBS.c.state
        some = select(JOBS.c.state).where(JOBS.c.recipe == filters["recipe"]).limit(most + 1).subquery()
        counts = _counted(connection, select(some.c.state, func.count()).group_by(some.c.state))
        return counts, sum(counts.values()) > most
    if not lead:
        newest = connection.scalar(select(func.max(JOBS.c.seq))) or 0
        most = min(most, _COUNTED_BY_TEXT)
        oldest = newest - most + 1 if newest > most else None
    elif lead != "ids":
        numbers = select(JOBS.c.seq).where(_condition(lead, filters[lead])).order_by(JOBS.c.seq.desc())
        oldest = connection.scalar(numbers.limit(1).offset(most - 1))
    asked = select(state, func.count()).where(*_conditions(filters, lead)).group_by(state)
    if oldest is not None:
        asked = asked.where(JOBS.c.seq >= oldest)
    return _counted(connection, asked), oldest is not None


def _counted(connection: Connection, statement: Executable) -> dict[str, int]:
    return dict.fromkeys(_STATES, 0) | {row[0]: row[1] for row in connection.execute(statement)}


def _marks(connection: Connection, states: tuple[str, ...], counts: Mapping[str, int]) -> list[Key]:
    """Return the keys of the newest jobs between pages, of all or of one state; none where that takes long."""
    if len(states) > 1 or sum(counts[state] for state in states or _STATES) > _COUNTED_IN_INDEX:
        return []
    if not states:
        low, high = _ends(connection)
        # Without holes they need not be read.
        is_dense = high - low + 1 == sum(counts.values())
        return [(0, None, seq) for seq in range(high - MARK_EVERY + 1, low, -MARK_EVERY)] if is_dense else []
    # One statement that goes along the index, in steps.
    numbers = select(JOBS.c.seq).where(JOBS.c.state == states[0]).order_by(JOBS.c.seq.desc())
    step = numbers.limit(1).offset(MARK_EVERY - 1)
    marks = select(step.scalar_subquery().label("seq")).cte("marks", recursive=True)
    further = step.where(JOBS.c.seq < marks.c.seq).correlate(marks).scalar_subquery()
    marks = marks.union_all(select(further).where(marks.c.seq.is_not(None)))
    return [(0, None, seq) for seq in connection.scalars(select(marks.c.seq).where(marks.c.seq.is_not(None)))]


# Cursors.

_MARK = "j2"


def write_cursor(key: Key, filters: Mapping[str, str]) -> str:
    """Return the cursor of the page after this key."""
    text = dumps(key)
    return urlsafe_b64encode(f"{_MARK}.{_seal(text, filters):08x}.{text}".encode()).decode().rstrip("=")


def read_cursor(word: str, filters: Mapping[str, str], order: _Order) -> Key:
    """Return the key after which a page begins. Raises `BadInput` for an invalid cursor or one of another list."""
    try:
        mark, seal, text = urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode().split(".", 2)
        if mark == _MARK and int(seal, 16) == _seal(text, filters):
            phase, value, seq = loads(text)
            is_valid = order.may_have(value) and 0 <= phase < len(order.phases)
            if is_valid and isinstance(seq, int) and 0 <= seq < _FAR:
                return phase, value, seq
    except (ValueError, TypeError, binascii.Error):
        pass
    raise BadInput(
        f"{word[:40]!r} is not a cursor of this list",
        hint="use the `next` of the page before, with the same filters and order; or begin again without it",
    )


def _seal(text: str, filters: Mapping[str, str]) -> int:
    """Return a checksum of a cursor. It detects mistakes, not forgery: all users may read every page."""
    return crc32(repr((text, sorted(filters.items()))).encode())
