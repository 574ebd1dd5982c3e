"""Check a queue's database, also while it is served: the file itself, every value, counters, each job's whole history.

Everything is read at one moment, some jobs at a time. All faults are given, each with the rows that show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Table, func, select, text
from sqlalchemy.exc import DatabaseError, OperationalError

from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.portable import Progress, no_progress
from stoker.coordinator.database.raw_text import marked, read_text_as
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.database.tables import (
    AFTER,
    ATTEMPTS,
    BUNDLES,
    COUNTERS,
    EVENTS,
    EVENTS_FROM_S,
    JOBS,
    LEASES,
    META,
)
from stoker.coordinator.database.values import check_values
from stoker.coordinator.history import HasObject, JobHistory, Violation, check_job
from stoker.coordinator.replaying import Row
from stoker.model.leases import Budgets

_TOGETHER = 1000
_SHOWN = 10
_READY = text("state = 'pending' AND is_ready")


def check_database(
    database: Database,
    *,
    budgets: Budgets | None = None,
    has_object: HasObject | None = None,
    progress: Progress = no_progress,
) -> Iterator[Violation]:
    """Give every fault as it is found. Without `has_object` nobody looks for the bytes of results."""
    with snapshot(database) as connection:
        yield from check_rows(connection, budgets=budgets, has_object=has_object, progress=progress)


def check_rows(
    connection: Connection,
    *,
    budgets: Budgets | None = None,
    has_object: HasObject | None = None,
    progress: Progress = no_progress,
    behind: int = 0,
    is_quick: bool = False,
) -> Iterator[Violation]:
    """Give every fault of what a connection sees; of jobs behind a number, where one is given.

    If `is_quick`, what reads the whole file or the whole journal is left out.
    """
    try:
        with read_text_as(connection, marked):
            if not is_quick:
                yield from _of_the_file(connection)
                yield from check_values(connection)
                yield from _without_job(connection)
            yield from _of_meta(connection)
            yield from _of_counters(connection)
            for history in histories(connection, progress=progress, behind=behind):
                yield from _of_job(history, budgets, has_object)
    except OperationalError:
        # It can't be reached, is busy, or the disk fails: that says nothing about what is written there.
        raise
    except DatabaseError as error:
        yield Violation(rule="integrity", job="", message=f"it can't be read any further: {error.orig}")


def histories(connection: Connection, *, progress: Progress = no_progress, behind: int = 0) -> Iterator[JobHistory]:
    """Give the whole history of every job behind a number, in their order."""
    total = int(connection.scalar(select(func.count()).select_from(JOBS)) or 0)
    told_from_s = float(connection.scalar(select(META.c.value).where(META.c.key == EVENTS_FROM_S)) or 0.0)
    done, last = 0, behind
    while True:
        jobs = _rows(connection.execute(select(JOBS).where(JOBS.c.seq > last).order_by(JOBS.c.seq).limit(_TOGETHER)))
        if not jobs:
            return
        first, last = jobs[0]["seq"], jobs[-1]["seq"]
        parts = {
            table: _by_job(connection, table, order, first, last)
            for table, order in ((ATTEMPTS, "attempt"), (LEASES, "seq"), (EVENTS, "id"), (BUNDLES, "attempt"))
        }
        before = _states_before(connection, first, last)
        for job in jobs:
            seq = job["seq"]
            yield JobHistory(
                job=job,
                attempts=parts[ATTEMPTS].get(seq, ()),
                leases=parts[LEASES].get(seq, ()),
                events=parts[EVENTS].get(seq, ()),
                bundles=parts[BUNDLES].get(seq, ()),
                before=before.get(seq, ()),
                told_from_s=told_from_s,
            )
        done += len(jobs)
        progress(done, total)


def _of_job(history: JobHistory, budgets: Budgets | None, has_object: HasObject | None) -> Iterator[Violation]:
    try:
        yield from check_job(history, budgets=budgets, has_object=has_object)
    except (ValueError, TypeError, KeyError) as error:
        # Only what is damaged can't be understood: the others are looked at nevertheless.
        said = f"its rows can't be understood: {error}"
        yield Violation(rule="integrity", job=str(history.job["id"]), message=said)


def _of_the_file(connection: Connection) -> Iterator[Violation]:
    if connection.dialect.name == "sqlite":
        for (said,) in connection.exec_driver_sql(f"PRAGMA integrity_check({_SHOWN})"):
            if said != "ok":
                yield Violation(rule="integrity", job="", message=str(said))
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check").mappings():
            said = f"row {row['rowid']} of {row['table']} points at a row of {row['parent']} that is not there"
            yield Violation(rule="integrity", job="", message=said)
        return
    for (name,) in connection.exec_driver_sql("SELECT conname FROM pg_constraint WHERE NOT convalidated"):
        yield Violation(rule="integrity", job="", message=f"the constraint {name} was never checked")
    broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid OR NOT indisready"
    for (name,) in connection.exec_driver_sql(broken):
        yield Violation(rule="integrity", job="", message=f"the index {name} is not valid")


def _of_meta(connection: Connection) -> Iterator[Violation]:
    said = {row.key: row.value for row in connection.execute(select(META))}
    generation = int(said.get("generation", 0)) if said.get("generation", "0").isdecimal() else -1
    for table in (EVENTS, LEASES, ATTEMPTS):
        highest = connection.scalar(select(func.max(table.c.generation)))
        if highest is not None and highest > generation:
            message = f"{table.name} know generation {highest}, the database is at {generation}"
            yield Violation(rule="epochs_grow", job="", message=message, rows=(said,))


def _of_counters(connection: Connection) -> Iterator[Violation]:
    kept = {row.key: row.value for row in connection.execute(select(COUNTERS))}
    true: dict[str, int] = defaultdict(int)
    for state, count in connection.execute(select(JOBS.c.state, func.count()).group_by(JOBS.c.state)):
        true[f"state:{state}"] = count
    ready = select(JOBS.c.class_id, func.count()).where(_READY).group_by(JOBS.c.class_id)
    for class_id, count in connection.execute(ready):
        true[f"class:{class_id}"] = count
    for key in sorted(true.keys() | {key for key in kept if key.startswith(("state:", "class:"))}):
        if kept.get(key, 0) != true[key]:
            message = f"the counter {key} says {kept.get(key, 0)}, there are {true[key]}"
            yield Violation(rule="counters", job="", message=message)


def _without_job(connection: Connection) -> Iterator[Violation]:
    """Find events of jobs that are not there: the journal has no foreign key, so that it is never in the way."""
    asked = (
        select(EVENTS)
        .outerjoin(JOBS, JOBS.c.seq == EVENTS.c.seq)
        .where(EVENTS.c.seq.is_not(None), JOBS.c.seq.is_(None))
        .limit(_SHOWN)
    )
    for event in _rows(connection.execute(asked)):
        message = f"event {event['id']} tells of a job that is not there"
        yield Violation(rule="events_replay", job="", message=message, rows=(event,))


def _by_job(connection: Connection, table: Table, order: str, first: int, last: int) -> dict[int, tuple[Row, ...]]:
    asked = select(table).where(table.c.seq.between(first, last)).order_by(table.c.seq, table.c[order])
    found: dict[int, list[Row]] = defaultdict(list)
    for row in _rows(connection.execute(asked)):
        found[row["seq"]].append(row)
    return {seq: tuple(rows) for seq, rows in found.items()}


def _states_before(connection: Connection, first: int, last: int) -> dict[int, tuple[str, ...]]:
    asked = (
        select(AFTER.c.seq, JOBS.c.state)
        .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
        .where(AFTER.c.seq.between(first, last))
    )
    found: dict[int, tuple[str, ...]] = defaultdict(tuple)
    for seq, state in connection.execute(asked):
        found[seq] += (state,)
    return found


def _rows(result: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in result.mappings()]
