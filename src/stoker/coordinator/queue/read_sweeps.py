"""Reads of sweeps and results from committed rows: lists of sweeps, the trials of one, results with their lineage.

Every function takes a connection with a snapshot of the database (`database.snapshot`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from stoker.coordinator.database.tables import AFTER, BUNDLES, JOBS, LEASES
from stoker.coordinator.queue.read_jobs import find_job, read_object
from stoker.core.errors import NotFound
from stoker.core.frozen import frozen
from stoker.core.text import point_name
from stoker.protocol.screen_messages import SweepList, SweepSummary

MOST_ROWS = 50_000
"""Of one sweep, or of all sweeps of a list, that are read: of more the newest."""
_MOST_SWEEPS = 200


def read_sweeps(connection: Connection, *, limit: int = 50, before: int | None = None) -> SweepList:
    """Return the sweeps whose newest trials are the newest, of those before a number (the `next` of a page).

    Names and numbers are read along one index; states of the listed sweeps only.
    """
    newest = func.max(JOBS.c.seq)
    by_name = select(JOBS.c.name, newest.label("newest"), func.count().label("rows")).where(JOBS.c.number > 0)
    found = connection.execute(by_name.group_by(JOBS.c.name).order_by(newest.desc())).all()
    listed: list[Row[Any]] = []
    rows = 0
    following = [one for one in found if before is None or one.newest < before]
    for one in following[: max(1, min(limit, _MOST_SWEEPS))]:
        rows += one.rows
        if listed and rows > MOST_ROWS:
            break
        listed.append(one)
    heads = _heads(connection, [one.newest for one in listed])
    states = _states(connection, [one.name for one in listed if one.rows <= MOST_ROWS])
    return SweepList(
        sweeps=tuple(_summary(one, heads[one.newest], states.get(one.name, {})) for one in listed),
        total=len(found),
        next=str(listed[-1].newest) if len(listed) < len(following) else "",
    )


def _heads(connection: Connection, seqs: Sequence[int]) -> dict[int, Row[Any]]:
    columns = ("seq", "recipe", "submitter", "submitted_s", "changed_s")
    asked: Select[Any] = select(*(JOBS.c[column] for column in columns)).where(JOBS.c.seq.in_(seqs))
    return {row.seq: row for row in connection.execute(asked)}


def _states(connection: Connection, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of trials of each sweep by state; of a number that was submitted again the newest counts."""
    newest = (
        select(func.max(JOBS.c.seq).label("seq"))
        .where(JOBS.c.name.in_(names), JOBS.c.number > 0)
        .group_by(JOBS.c.name, JOBS.c.number)
        .subquery()
    )
    counted = (
        select(JOBS.c.name, JOBS.c.state, func.count().label("trials"))
        .join_from(newest, JOBS, JOBS.c.seq == newest.c.seq)
        .group_by(JOBS.c.name, JOBS.c.state)
    )
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(counted):
        found.setdefault(row.name, {})[row.state] = row.trials
    return found


def _summary(one: Row[Any], head: Row[Any], states: Mapping[str, int]) -> SweepSummary:
    return SweepSummary(
        name=one.name,
        recipe=head.recipe,
        submitter=head.submitter,
        jobs=dict(states),
        total=sum(states.values()) or one.rows,
        submitted_s=head.submitted_s,
        changed_s=head.changed_s,
    )


@frozen
class SweepTrialRow:
    """One trial of a sweep, without its configuration."""

    seq: int
    id: str
    number: int
    label: str
    recipe: str
    state: str
    attempt: int
    metrics: Mapping[str, float]
    """The last ones: reported by a live lease, or with the result."""
    step: int | None = None
    of: int | None = None
    started_s: float | None = None
    ended_s: float | None = None


def read_sweep(connection: Connection, name: str) -> tuple[SweepTrialRow, ...]:
    """Return the trials of a sweep by its bare name, in order; of a number that was submitted again the newest.

    Raises `NotFound` if there is no such sweep.
    """
    columns = ("seq", "id", "number", "label", "recipe", "state", "attempt", "metrics", "started_s", "ended_s")
    asked: Select[Any] = (
        select(*(JOBS.c[column] for column in columns), LEASES.c.progress)
        .select_from(JOBS.outerjoin(LEASES, LEASES.c.seq == JOBS.c.seq))
        .where(JOBS.c.name == name, JOBS.c.number > 0)
        .order_by(JOBS.c.seq.desc())
        .limit(MOST_ROWS)
    )
    found: dict[int, SweepTrialRow] = {}
    for row in connection.execute(asked):
        if row.number not in found:
            found[row.number] = _trial(row)
    if not found:
        # Raises the same error with the nearest name if there is no job of it at all.
        job = find_job(connection, name)
        raise NotFound(f"{name!r} is no sweep", hint=f"stoker jobs show {job.id[:12]}")
    return tuple(found[number] for number in sorted(found))


def _trial(row: Row[Any]) -> SweepTrialRow:
    progress = read_object(row.progress)
    return SweepTrialRow(
        seq=row.seq,
        id=row.id,
        number=row.number,
        label=row.label,
        recipe=row.recipe,
        state=row.state,
        attempt=row.attempt,
        metrics=progress.get("metrics") or read_object(row.metrics),
        step=progress.get("step"),
        of=progress.get("of"),
        started_s=row.started_s,
        ended_s=row.ended_s,
    )


def read_specs(connection: Connection, seqs: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the specs of jobs as they are stored, by number."""
    found: dict[int, dict[str, Any]] = {}
    for begin in range(0, len(seqs), _SOME):
        asked = select(JOBS.c.seq, JOBS.c.spec).where(JOBS.c.seq.in_(seqs[begin : begin + _SOME]))
        found |= {row.seq: read_object(row.spec) for row in connection.execute(asked)}
    return found


_SOME = 500
"""Values in one statement."""


# Results with what they were made from, and jobs that train adapters.


@frozen
class ResultRow:
    """A result with its job."""

    id: int
    tree: str
    attempt: int
    at_s: float
    size_bytes: int
    is_pinned: bool
    is_pruned: bool
    job: str
    name: str
    label: str
    recipe: str
    machine: str
    submitter: str
    metrics: Mapping[str, Any]
    spec: Mapping[str, Any]
    parents: Sequence[tuple[str, str, str]] = ()
    """Name, id and result of the jobs that it came after."""


def read_results(
    connection: Connection, *, before_id: int | None = None, digest: str = "", job: str = "", limit: int = 50
) -> tuple[ResultRow, ...]:
    """Return results, the newest first, before one; of a job by its id, or of trees by the beginning of a digest."""
    columns = ("id", "seq", "attempt", "tree", "at_s", "size_bytes", "is_pinned", "pruned_s")
    of_job = ("name", "number", "label", "recipe", "machine", "submitter", "metrics", "spec")
    asked: Select[Any] = (
        select(*(BUNDLES.c[one] for one in columns), JOBS.c.id.label("job"), *(JOBS.c[one] for one in of_job))
        .join_from(BUNDLES, JOBS, JOBS.c.seq == BUNDLES.c.seq)
        .order_by(BUNDLES.c.id.desc())
        .limit(limit)
    )
    if before_id is not None:
        asked = asked.where(BUNDLES.c.id < before_id)
    if job:
        asked = asked.where(JOBS.c.id == job)
    if digest:
        asked = asked.where(BUNDLES.c.tree.startswith(digest, autoescape=True))
    rows = connection.execute(asked).all()
    parents = _parents(connection, [row.seq for row in rows])
    return tuple(
        ResultRow(
            id=row.id,
            tree=row.tree,
            attempt=row.attempt,
            at_s=row.at_s,
            size_bytes=row.size_bytes,
            is_pinned=bool(row.is_pinned),
            is_pruned=row.pruned_s is not None,
            job=row.job,
            name=point_name(row.name, row.number),
            label=row.label,
            recipe=row.recipe,
            machine=row.machine,
            submitter=row.submitter,
            metrics=read_object(row.metrics),
            spec=read_object(row.spec),
            parents=parents.get(row.seq, ()),
        )
        for row in rows
    )


def _parents(connection: Connection, seqs: Sequence[int]) -> dict[int, list[tuple[str, str, str]]]:
    asked: Select[Any] = (
        select(AFTER.c.seq, JOBS.c.name, JOBS.c.number, JOBS.c.id, JOBS.c.tree)
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq.in_(seqs))
        .order_by(AFTER.c.before_seq)
        .limit(_MOST_PARENTS)
    )
    found: dict[int, list[tuple[str, str, str]]] = {}
    for row in connection.execute(asked):
        found.setdefault(row.seq, []).append((point_name(row.name, row.number), row.id, row.tree))
    return found


_MOST_PARENTS = 5000


@frozen
class TrainingRow:
    """A job of a recipe, with its configuration and its last metrics."""

    name: str
    label: str
    state: str
    result: str
    metrics: Mapping[str, float]
    step: int | None
    spec: Mapping[str, Any]


def read_trainings(
    connection: Connection, recipe: str, states: Sequence[str], *, limit: int = 1000
) -> tuple[TrainingRow, ...]:
    """Return the newest jobs of a recipe in some states, along its index."""
    columns = ("seq", "name", "number", "label", "state", "tree", "metrics", "spec")
    found: list[Row[Any]] = []
    for state in states:
        asked: Select[Any] = (
            select(*(JOBS.c[one] for one in columns), LEASES.c.progress)
            .select_from(JOBS.outerjoin(LEASES, LEASES.c.seq == JOBS.c.seq))
            .where(JOBS.c.recipe == recipe, JOBS.c.state == state)
            .order_by(JOBS.c.seq.desc())
            .limit(limit)
        )
        found += connection.execute(asked)
    found.sort(key=lambda row: -row.seq)
    return tuple(_training(row) for row in found[:limit])


def _training(row: Row[Any]) -> TrainingRow:
    progress = read_object(row.progress)
    return TrainingRow(
        name=point_name(row.name, row.number),
        label=row.label,
        state=row.state,
        result=row.tree,
        metrics=progress.get("metrics") or read_object(row.metrics),
        step=progress.get("step"),
        spec=read_object(row.spec),
    )
