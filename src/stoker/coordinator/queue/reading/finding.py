"""Which job is meant: by name (the newest of it), `name/3`, the beginning of an id, or `last`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from stoker.coordinator.database.tables import JOBS
from stoker.model.errors import Ambiguous, NotFound
from stoker.model.frozen import frozen
from stoker.model.names import point_name
from stoker.model.suggest import did_you_mean

SHORTEST_PREFIX = 4
_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")
_SHOWN = 5
_NAMES = 500


@frozen
class Found:
    """The job that is meant."""

    seq: int
    id: str


@frozen
class Meant:
    """One of the jobs that a name stands for."""

    id: str
    state: str


def find_job(connection: Connection, ref: str) -> Found:
    """Find a job, or say what was probably meant, or which ones it could be."""
    row = _last(connection) if ref == "last" else _by_name(connection, ref)
    if row is not None:
        return Found(seq=row.seq, id=row.id)
    begun = _begun_by(connection, ref)
    if len(begun) == 1:
        return Found(seq=begun[0].seq, id=begun[0].id)
    if begun:
        raise _several(ref, begun)
    if ref == "last":
        raise NotFound("no job was submitted yet", hint="stoker submit manifest.toml")
    raise NotFound(
        f"there is no job {ref!r}", hint=did_you_mean(ref, _names(connection, ref)) or "`stoker jobs` lists them"
    )


def find_jobs(connection: Connection, ref: str) -> tuple[Meant, ...]:
    """Find what a name stands for: one job, or of a sweep's bare name every point in its order, of each the newest."""
    newest = connection.execute(_newest(ref)).first()
    if newest is None or not newest.number:
        only = find_job(connection, ref)
        row = connection.execute(_jobs().where(JOBS.c.seq == only.seq)).one()
        return (Meant(id=row.id, state=row.state),)
    points: dict[int, Meant] = {}
    named = _jobs().where(JOBS.c.name == ref, JOBS.c.number > 0).order_by(JOBS.c.seq.desc())
    for row in connection.execute(named):
        points.setdefault(row.number, Meant(id=row.id, state=row.state))
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
    """Give different names, first those that begin alike."""
    return list(dict.fromkeys([*_names_from(connection, ref[:1]), *_names_from(connection, "")]))


def _names_from(connection: Connection, low: str) -> list[str]:
    """Give different names in their order. Each costs one step in the index, however many jobs have it."""
    walk = select(func.min(JOBS.c.name).label("name")).where(JOBS.c.name >= low).cte("walk", recursive=True)
    following = select(func.min(JOBS.c.name)).where(JOBS.c.name > walk.c.name).scalar_subquery()
    walk = walk.union_all(select(following).where(walk.c.name.is_not(None)))
    return list(connection.scalars(select(walk.c.name).where(walk.c.name.is_not(None)).limit(_NAMES)))
