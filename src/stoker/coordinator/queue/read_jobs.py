"""The reading side of the queue: every question that people and programs ask, on connections of its own."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from heapq import nlargest
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, Row, Select, func, select

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import JOBS
from stoker.coordinator.queue.read_details import (
    JobExplainRow,
    Limits,
    job_view,
    listed_jobs,
    no_limits,
    read_attempts,
    read_case,
    read_events,
    read_names,
    read_newest_event,
    read_ready_numbers,
    read_story,
)
from stoker.coordinator.queue.read_fleet import (
    JobQueuePosition,
    MachineRow,
    WebhookRow,
    read_before,
    read_bundles,
    read_counts,
    read_hooks,
    read_leaderboard,
    read_machines,
    read_meta,
    read_ready,
    read_symptoms,
)
from stoker.core.clock import Clock
from stoker.core.errors import Ambiguous, BadInput, NotFound
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.text import did_you_mean, point_name
from stoker.protocol.view_messages import AttemptView, JobDetails, JobPage, Leaderboard, SymptomView

# Which job is meant: by name (the newest of it), `name/3`, the beginning of an id, or `last`.

SHORTEST_PREFIX = 4
_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")
_SHOWN = 5
_NAMES = 500


@frozen
class JobMatch:
    """The job that is meant."""

    seq: int
    id: str


@frozen
class JobCandidate:
    """One of the jobs that a name stands for."""

    id: str
    state: str


def find_job(connection: Connection, ref: str) -> JobMatch:
    """Find a job, or say what was probably meant, or which ones it could be."""
    row = _last(connection) if ref == "last" else _by_name(connection, ref)
    if row is not None:
        return JobMatch(seq=row.seq, id=row.id)
    begun = _begun_by(connection, ref)
    if len(begun) == 1:
        return JobMatch(seq=begun[0].seq, id=begun[0].id)
    if begun:
        raise _several(ref, begun)
    if ref == "last":
        raise NotFound("no job was submitted yet", hint="stoker submit manifest.toml")
    raise NotFound(
        f"there is no job {ref!r}", hint=did_you_mean(ref, _names(connection, ref)) or "`stoker jobs` lists them"
    )


def find_jobs(connection: Connection, ref: str) -> tuple[JobCandidate, ...]:
    """Find what a name stands for: one job, or of a sweep's bare name every point in its order, of each the newest."""
    newest = connection.execute(_newest(ref)).first()
    if newest is None or not newest.number:
        only = find_job(connection, ref)
        row = connection.execute(_jobs().where(JOBS.c.seq == only.seq)).one()
        return (JobCandidate(id=row.id, state=row.state),)
    points: dict[int, JobCandidate] = {}
    named = _jobs().where(JOBS.c.name == ref, JOBS.c.number > 0).order_by(JOBS.c.seq.desc())
    for row in connection.execute(named):
        points.setdefault(row.number, JobCandidate(id=row.id, state=row.state))
    return tuple(points[number] for number in sorted(points))


def _jobs() -> Select[Any]:
    return select(JOBS.c.seq, JOBS.c.id, JOBS.c.name, JOBS.c.number, JOBS.c.state)


def _last(connection: Connection) -> Row[Any] | None:
    return connection.execute(_jobs().order_by(JOBS.c.seq.desc()).limit(1)).first()


def _by_name(connection: Connection, ref: str) -> Row[Any] | None:
    row = connection.execute(_newest(ref)).first()
    name, _, number = ref.rpartition("/")
    if row is None and name and number.isascii() and number.isdigit():
        row = connection.execute(_newest(name).where(JOBS.c.number == int(number[:18]))).first()
    return row


def _newest(name: str) -> Select[Any]:
    return _jobs().where(JOBS.c.name == name).order_by(JOBS.c.seq.desc()).limit(1)


def _begun_by(connection: Connection, ref: str) -> list[Row[Any]]:
    text = ref.lower()
    if not SHORTEST_PREFIX <= len(text) <= _ID_LENGTH or not _HEX.issuperset(text):
        return []
    # `g` comes after every digit of an id, in every collation.
    begun = _jobs().where(JOBS.c.id >= text, JOBS.c.id < text + "g").order_by(JOBS.c.id).limit(_SHOWN + 1)
    return list(connection.execute(begun))


def _several(ref: str, rows: list[Row[Any]]) -> Ambiguous:
    shown = [f"{row.id[:12]} ({point_name(row.name, row.number)}, {row.state})" for row in rows[:_SHOWN]]
    more = ", …" if len(rows) > _SHOWN else ""
    return Ambiguous(
        f"{ref!r} begins the ids of several jobs: {', '.join(shown)}{more}",
        hint="type more of it",
        candidates=[
            {"id": row.id, "name": point_name(row.name, row.number), "state": row.state} for row in rows[:_SHOWN]
        ],
    )


def _names(connection: Connection, ref: str) -> list[str]:
    """Return different names, first those that begin alike."""
    return list(dict.fromkeys([*_names_from(connection, ref[:1]), *_names_from(connection, "")]))


def _names_from(connection: Connection, low: str) -> list[str]:
    """Return different names in their order. Each costs one step in the index, however many jobs have it."""
    walk = select(func.min(JOBS.c.name).label("name")).where(JOBS.c.name >= low).cte("walk", recursive=True)
    following = select(func.min(JOBS.c.name)).where(JOBS.c.name > walk.c.name).scalar_subquery()
    walk = walk.union_all(select(following).where(walk.c.name.is_not(None)))
    return list(connection.scalars(select(walk.c.name).where(walk.c.name.is_not(None)).limit(_NAMES)))


# Where a list goes on: a word that only we read, bound to the filters it was made for.

_MARK = "j1"


def write_cursor(seq: int, filters: Mapping[str, str]) -> str:
    """Return the word for the page after this job."""
    return urlsafe_b64encode(f"{_MARK}.{seq}.{_seal(seq, filters):08x}".encode()).decode().rstrip("=")


def read_cursor(word: str, filters: Mapping[str, str]) -> int:
    """Return the job after which a page begins, or refuse a word that is not ours or belongs to another list."""
    try:
        mark, number, seal = urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode("ascii").split(".")
        seq = int(number)
        if mark == _MARK and seq >= 0 and int(seal, 16) == _seal(seq, filters):
            return seq
    except (ValueError, binascii.Error):
        pass
    raise BadInput(
        f"{word[:40]!r} is not where this list goes on",
        hint="hand back the `next` of the page before, with the same filters; or begin again without it",
    )


def _seal(seq: int, filters: Mapping[str, str]) -> int:
    """Bind a place to its list. It guards against mistakes, not against people: everybody may read every page."""
    return crc32(repr((seq, sorted(filters.items()))).encode())


# Pages of jobs, newest first: each costs about the same, wherever it lies and however long the history is.
#
# One filter is answered by its index; a recipe with a state, and whatever few jobs are in a state, too. Other filters
# may each match much and together nothing: their page is looked for window by window and ends early once it took its
# time. It is then short, or even empty, and says where to go on.

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


class QueueReader:
    """Answers from what was committed, for any thread.

    Where a job is wanted, `ref` is a name (the newest of it), `name/3`, the beginning of an id, or `last`; `NotFound`
    and `Ambiguous` say what was probably meant.
    """

    def __init__(self, database: Database, *, clock: Clock, limits: Limits = no_limits) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits

    def page(
        self, *, state: str = "", name: str = "", recipe: str = "", machine: str = "", after: str = "", limit: int = 100
    ) -> JobPage:
        """Return a page of jobs, newest first. `state` may be several: `claimed,running`.

        With several filters that hardly anything matches a page may be short, or empty: it goes on while it has `next`.
        """
        asked = {"state": state, "name": name, "recipe": recipe, "machine": machine}
        filters = {word: value for word, value in asked.items() if value}
        now_s = self._clock.wall_s()
        with snapshot(self._database) as connection:
            counts = read_counts(connection)
            found = read_page(connection, filters, after=after, limit=limit, counts=counts, clock=self._clock)
        has_total = filters.keys() <= {"state"}
        return JobPage(
            jobs=tuple(job_view(row, now_s=now_s, limits=self._limits) for row in found.rows),
            next=found.next,
            total=sum(counts[one] for one in states_of(state) or counts) if has_total else None,
        )

    @property
    def database(self) -> Database:
        """Where it reads."""
        return self._database

    def find(self, ref: str) -> JobMatch:
        """Return which job is meant."""
        with snapshot(self._database) as connection:
            return find_job(connection, ref)

    def find_all(self, ref: str) -> tuple[JobCandidate, ...]:
        """Return which jobs are meant: of a sweep's bare name, all its points."""
        with snapshot(self._database) as connection:
            return find_jobs(connection, ref)

    def story(self, ref: str) -> JobDetails:
        """Return everything about one job."""
        with snapshot(self._database) as connection:
            return read_story(
                connection, find_job(connection, ref).seq, now_s=self._clock.wall_s(), limits=self._limits
            )

    def attempts_of(self, ref: str) -> tuple[AttemptView, ...]:
        """Return the tries at a job, oldest first."""
        with snapshot(self._database) as connection:
            return read_attempts(connection, find_job(connection, ref).seq)

    def events(self, after_id: int = 0, limit: int = 1000, ref: str | None = None) -> tuple[dict[str, Any], ...]:
        """Give what happened after an event, oldest first, in the envelope of every stream; `seq` is the event's id."""
        with snapshot(self._database) as connection:
            seq = None if ref is None else find_job(connection, ref).seq
            return read_events(connection, after_id, limit, seq)

    def newest_event(self) -> int:
        """Return the id of the newest event: whoever listens from now on begins behind it."""
        with snapshot(self._database) as connection:
            return read_newest_event(connection)

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        with snapshot(self._database) as connection:
            return read_counts(connection)

    def ready_by_class(self) -> dict[int, int]:
        """Return how many jobs of each requirement class could start now."""
        with snapshot(self._database) as connection:
            return read_ready(connection)

    def waiting_before(self, seq: int) -> JobQueuePosition:
        """Return how many ready jobs stand before one in the line."""
        with snapshot(self._database) as connection:
            return read_before(connection, seq)

    def machines(self, name: str = "") -> tuple[MachineRow, ...]:
        """Return every machine with its live leases; or one, nothing if it is unknown."""
        with snapshot(self._database) as connection:
            return read_machines(connection, name)

    def symptoms(self, machine: str = "") -> tuple[SymptomView, ...]:
        """Return what is wrong now, of all machines or of one."""
        with snapshot(self._database) as connection:
            return read_symptoms(connection, machine)

    def hooks(self, *, is_open: bool = False) -> tuple[WebhookRow, ...]:
        """Return who is told of events, the closed ones too unless told otherwise."""
        with snapshot(self._database) as connection:
            return read_hooks(connection, is_open=is_open)

    def case(self, ref: str) -> JobExplainRow:
        """Return what an explanation needs of a job beside its story."""
        with snapshot(self._database) as connection:
            return read_case(connection, find_job(connection, ref).seq)

    def ready_numbers(self, levels: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], list[int]]:
        """Return the numbers of the first ready jobs of each class and priority, as many as asked for, in order."""
        with snapshot(self._database) as connection:
            return read_ready_numbers(connection, levels)

    def names(self, seqs: Collection[int]) -> dict[int, str]:
        """Return what jobs are called, by number."""
        with snapshot(self._database) as connection:
            return read_names(connection, seqs)

    def leaderboard(self, metric: str = "", *, recipe: str = "", name: str = "", limit: int = 20) -> Leaderboard:
        """Rank completed jobs by one of their metrics, best first."""
        with snapshot(self._database) as connection:
            return read_leaderboard(connection, metric, recipe=recipe, name=name, limit=limit)

    def bundles(self, *, ref: str | None = None, after_id: int = 0, limit: int = 1000) -> tuple[dict[str, Any], ...]:
        """Return rows of the index of results, in its order."""
        with snapshot(self._database) as connection:
            seq = None if ref is None else find_job(connection, ref).seq
            return read_bundles(connection, seq=seq, after_id=after_id, limit=limit)

    def meta(self) -> dict[str, str]:
        """Return what the database says of itself: its generation, its latest time."""
        with snapshot(self._database) as connection:
            return read_meta(connection)
