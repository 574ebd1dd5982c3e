"""Check a queue's database, also while it is served: the file itself, every value, counters, each job's whole history.

Everything is read at one moment, some jobs at a time. All faults are given, each with the rows that show it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Double,
    Integer,
    String,
    Table,
    func,
    select,
    text,
)
from sqlalchemy.exc import DatabaseError, OperationalError

from stoker.coordinator.database.backup import TABLES, Progress, no_progress
from stoker.coordinator.database.database import Database, marked, read_text_as, snapshot
from stoker.coordinator.database.history import HasObject, JobHistory, Violation, check_job
from stoker.coordinator.database.history import Row as HistoryRow
from stoker.coordinator.database.tables import (
    AFTER,
    ALLOCATIONS,
    ATTEMPTS,
    BUNDLES,
    CERTIFICATES,
    CLASSES,
    COUNTERS,
    EVENTS,
    EVENTS_FROM_S,
    INVITES,
    JOBS,
    LEASES,
    MACHINES,
    META,
    POOLS,
)
from stoker.core.digests import digest_value
from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.leases import Budgets
from stoker.core.pool import AllocationCause, AllocationState, may_move
from stoker.protocol.job_checks import identity_fault
from stoker.protocol.job_messages import JOB_BODY

_TOGETHER = 1000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STATES = frozenset(state.value for state in JobState)
_ALLOCATION_STATES = frozenset(state.value for state in AllocationState)
_OVER = (AllocationState.ENDED.value, AllocationState.REFUSED.value)
_JSON = frozenset(
    {
        "jobs.spec", "jobs.error", "jobs.metrics", "jobs.checkpoint", "classes.wanted", "leases.devices",
        "leases.progress", "attempts.devices", "attempts.facts", "events.fields", "machines.outdated",
        "machines.capability", "machines.declared", "machines.closed_devices", "machines.report", "policies.policy",
        "claims.granted", "submissions.answer", "hooks.kinds", "hooks.jobs", "pools.pool", "allocations.wanted",
        "launch_requests.allocations",
    }
)  # fmt: skip
"""Columns with JSON, or empty."""
_ALWAYS_JSON = frozenset(
    {"jobs.spec", "classes.wanted", "policies.policy", "claims.granted", "submissions.answer", "pools.pool"}
)
_DIGESTS = frozenset(
    {
        "jobs.code", "jobs.tree", "jobs.archive_sha256", "attempts.tree", "bundles.tree", "bundles.archive_sha256",
        "contents.tree", "contents.listing", "tokens.sha256",
    }
)  # fmt: skip
"""Columns with a digest, or empty."""
_WORDS: Mapping[str, frozenset[str]] = {
    "jobs.state": _STATES,
    "events.from_state": _STATES | _ALLOCATION_STATES | {""},
    "events.to_state": _STATES | _ALLOCATION_STATES | {""},
    "allocations.state": _ALLOCATION_STATES,
    "allocations.cause": frozenset(cause.value for cause in AllocationCause) | {""},
    "attempts.ending": frozenset({"", "completed", "failed", "cancelled", "released", "declined", "expired"}),
    "machines.closed": frozenset({"", "drained", "cordoned", "paused"}),
}
Row = dict[str, Any]


def check_values(connection: Connection) -> Iterator[Violation]:
    """Yield a violation for every invalid value of every table.

    Text is valid, JSON can be parsed, digests and states are valid, and ids match their content. Rows are read as
    stored, some at a time.
    """
    for table in _filled(connection):
        checks = [(column.name, _check_of(table, column)) for column in table.columns]
        for row in _raw(connection, table):
            faults = [f"{name} {fault}" for name, check in checks if (fault := check(row[name]))]
            if not faults and (whole := _WHOLE.get(table.name)) is not None and (fault := whole(row)):
                faults.append(fault)
            for fault in faults:
                job = row.get("id") if table is JOBS else ""
                yield Violation(
                    rule="integrity",
                    job=job.decode(errors="replace") if isinstance(job, bytes) else str(job),
                    message=f"{table.name}, row {_called(table, row)}: {fault}",
                )


def _filled(connection: Connection) -> Iterator[Table]:
    """Yield the tables that have rows. For SQLite all: an empty one costs nothing, a damaged one may not hide others.

    A cursor on a server takes four messages, and most tables of a small queue are empty.
    """
    if connection.dialect.name == "sqlite":
        yield from TABLES
        return
    for table, is_filled in zip(TABLES, connection.execute(_HAS_ROWS).one(), strict=True):
        if is_filled:
            yield table


_HAS_ROWS = select(*(select(table).exists().label(table.name) for table in TABLES))


def _raw(connection: Connection, table: Table) -> Iterator[Row]:
    """Yield rows as stored: for SQLite, text as bytes."""
    statement = _select_all(table, connection.dialect)
    names = table.columns.keys()
    pages = connection.exec_driver_sql(statement, execution_options={"yield_per": _TOGETHER}).partitions()
    while True:
        # The consumer of the rows may read text meanwhile.
        with read_text_as(connection, bytes):
            page = next(pages, None)
        if page is None:
            return
        for row in page:
            yield dict(zip(names, row, strict=True))


@cache
def _select_all(table: Table, dialect: Dialect) -> str:
    return str(select(table).compile(dialect=dialect))


def _check_of(table: Table, column: Column[Any]) -> Callable[[Any], str]:
    """Return the check of a column's values; it returns the fault, or an empty text."""
    inner = _INNER.get(type(column.type), _text_check)(f"{table.name}.{column.name}", column)

    def check(value: Any) -> str:
        if value is None:
            return "" if column.nullable else "is missing"
        return inner(value)

    return check


def _boolean_check(_place: str, _column: Column[Any]) -> Callable[[Any], str]:
    return lambda value: "" if value in (0, 1) and not isinstance(value, float) else "is neither true nor false"


def _integer_check(_place: str, _column: Column[Any]) -> Callable[[Any], str]:
    return lambda value: "" if type(value) is int else "is not a whole number"


def _double_check(_place: str, _column: Column[Any]) -> Callable[[Any], str]:
    return lambda value: "" if type(value) in (int, float) and math.isfinite(value) else "is not a number"


def _text_check(place: str, column: Column[Any]) -> Callable[[Any], str]:
    most = column.type.length if isinstance(column.type, String) else None
    words, is_digest, is_json = _WORDS.get(place), place in _DIGESTS, place in _JSON

    def check(value: Any) -> str:
        try:
            text = value if isinstance(value, str) else bytes.decode(value)
        except (UnicodeDecodeError, TypeError):
            return "is not text"
        if "\0" in text or (most is not None and len(text) > most):
            return "has a NUL, or is too long"
        if words is not None and text not in words:
            return f"is {text[:40]!r}"
        if is_digest and text and _DIGEST.fullmatch(text) is None:
            return "is not a digest"
        return _json_fault(place, text) if is_json else ""

    return check


def _json_fault(place: str, text: str) -> str:
    if not text:
        return "is empty" if place in _ALWAYS_JSON else ""
    try:
        loads(text)
    except (ValueError, RecursionError):
        return "is not JSON"
    return ""


def _job_fault(row: Row) -> str:
    """Return the fault of a job's spec or id."""
    try:
        order = JOB_BODY.validate_python({**loads(row["spec"]), "id": _plain(row["id"])})
    except (TypeError, ValueError):
        return "spec is not a job spec"
    if fault := identity_fault(order):
        return f"spec: {fault}"
    stored = tuple(_plain(row[name]) for name in ("recipe", "mode"))
    return "" if (order.recipe, order.mode) == stored else "spec is of another job"


def _class_fault(row: Row) -> str:
    """Return the fault of a class's key."""
    try:
        made = digest_value("requirement class", loads(row["wanted"]))
    except (TypeError, ValueError):
        return "wanted is not a class of jobs"
    return "" if made == _plain(row["key"]) else "key does not match wanted"


def _called(table: Table, row: Row) -> str:
    return ", ".join(_plain(row[column.name])[:40] for column in table.primary_key.columns)


def _plain(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_INNER: Mapping[type, Callable[[str, Column[Any]], Callable[[Any], str]]] = {
    Boolean: _boolean_check,
    Double: _double_check,
    Integer: _integer_check,
    BigInteger: _integer_check,
}
_WHOLE: Mapping[str, Callable[[Row], str]] = {JOBS.name: _job_fault, CLASSES.name: _class_fault}
"""Checks of whole rows, after their values."""


_SHOWN = 10
_READY = text("state = 'pending' AND is_ready")


def check_database(
    database: Database,
    *,
    budgets: Budgets | None = None,
    has_object: HasObject | None = None,
    progress: Progress = no_progress,
) -> Iterator[Violation]:
    """Yield all violations. Without `has_object` the bytes of results are not checked."""
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
    """Yield all violations of a connection's rows; of jobs behind a number, if one is given.

    If `is_quick`, checks of the whole file and of all events are left out.
    """
    try:
        with read_text_as(connection, marked):
            if not is_quick:
                yield from _of_the_file(connection)
                yield from check_values(connection)
                yield from _without_job(connection)
                yield from _of_allocation_events(connection)
            yield from _of_meta(connection)
            yield from _of_counters(connection)
            yield from _of_allocations(connection)
            for history in histories(connection, progress=progress, behind=behind):
                yield from _of_job(history, budgets, has_object)
    except OperationalError:
        # It can't be reached, is busy, or the disk fails: that says nothing about its content.
        raise
    except DatabaseError as error:
        yield Violation(rule="integrity", job="", message=f"the rest can't be read: {error.orig}")


def histories(connection: Connection, *, progress: Progress = no_progress, behind: int = 0) -> Iterator[JobHistory]:
    """Yield the history of every job behind a number, in order."""
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
        # Damaged rows: the other jobs are still checked.
        yield Violation(rule="integrity", job=str(history.job["id"]), message=f"rows can't be interpreted: {error}")


def _of_the_file(connection: Connection) -> Iterator[Violation]:
    if connection.dialect.name == "sqlite":
        for (found,) in connection.exec_driver_sql(f"PRAGMA integrity_check({_SHOWN})"):
            if found != "ok":
                yield Violation(rule="integrity", job="", message=str(found))
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check").mappings():
            message = f"row {row['rowid']} of {row['table']} references a missing row of {row['parent']}"
            yield Violation(rule="integrity", job="", message=message)
        return
    for (name,) in connection.exec_driver_sql("SELECT conname FROM pg_constraint WHERE NOT convalidated"):
        yield Violation(rule="integrity", job="", message=f"constraint {name} was never validated")
    broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid OR NOT indisready"
    for (name,) in connection.exec_driver_sql(broken):
        yield Violation(rule="integrity", job="", message=f"index {name} is not valid")


def _of_meta(connection: Connection) -> Iterator[Violation]:
    meta = {row.key: row.value for row in connection.execute(select(META))}
    generation = int(meta.get("generation", 0)) if meta.get("generation", "0").isdecimal() else -1
    for table in (EVENTS, LEASES, ATTEMPTS):
        highest = connection.scalar(select(func.max(table.c.generation)))
        if highest is not None and highest > generation:
            message = f"{table.name} has generation {highest}, the database {generation}"
            yield Violation(rule="epochs_grow", job="", message=message, rows=(meta,))


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
            message = f"counter {key} is {kept.get(key, 0)}, there are {true[key]}"
            yield Violation(rule="counters", job="", message=message)


def _without_job(connection: Connection) -> Iterator[Violation]:
    """Yield events of missing jobs: events have no foreign key."""
    asked = (
        select(EVENTS)
        .outerjoin(JOBS, JOBS.c.seq == EVENTS.c.seq)
        .where(EVENTS.c.seq.is_not(None), JOBS.c.seq.is_(None))
        .limit(_SHOWN)
    )
    for event in _rows(connection.execute(asked)):
        message = f"event {event['id']} is of a missing job"
        yield Violation(rule="events_replay", job="", message=message, rows=(event,))


def _of_allocations(connection: Connection) -> Iterator[Violation]:
    """Yield allocations without a pool, and what is left of ended ones: tickets, machines, leases, certificates."""
    pools = {row.name for row in connection.execute(select(POOLS.c.name))}
    for row in _rows(connection.execute(select(ALLOCATIONS).order_by(ALLOCATIONS.c.id))):
        is_over = row["state"] in _OVER
        if is_over != (row["ended_s"] is not None) or is_over != bool(row["cause"]):
            yield _fault("terminal_is_final", row, "its state, end and cause contradict each other")
        elif not is_over and row["pool"] not in pools:
            yield _fault("terminal_is_final", row, "its pool is missing")
        if is_over:
            for what in _left_of(connection, row):
                yield _fault("terminal_is_final", row, f"it has ended, and its {what} is left")


def _left_of(connection: Connection, row: Row) -> Iterator[str]:
    machine = f"{row['pool']}-{row['id']}"
    is_valid = CERTIFICATES.c.revoked_s.is_(None) & (CERTIFICATES.c.expires_s > row["ended_s"])
    for what, table, condition in (
        ("ticket", INVITES, INVITES.c.id == row["id"].upper()),
        ("machine", MACHINES, MACHINES.c.name == machine),
        ("lease", LEASES, LEASES.c.machine == machine),
        ("certificate", CERTIFICATES, (CERTIFICATES.c.name == machine) & is_valid),
    ):
        if connection.scalar(select(func.count()).select_from(table).where(condition)):
            yield what


def _of_allocation_events(connection: Connection) -> Iterator[Violation]:
    """Yield allocations whose events do not lead to their state, by allowed moves."""
    told_from_s = float(connection.scalar(select(META.c.value).where(META.c.key == EVENTS_FROM_S)) or 0.0)
    rows = {
        f"{row['pool']}-{row['id']}": row
        for row in _rows(connection.execute(select(ALLOCATIONS).order_by(ALLOCATIONS.c.id)))
    }
    # What was planned before may have lost its first events.
    states = {machine: None if row["planned_s"] < told_from_s else "" for machine, row in rows.items()}
    moves = select(EVENTS).where(EVENTS.c.kind == FleetKinds.ALLOCATION_CHANGED).order_by(EVENTS.c.id)
    for event in connection.execute(moves.execution_options(yield_per=_TOGETHER)).mappings():
        machine, old, new = event["machine"], event["from_state"], event["to_state"]
        if machine not in rows:
            continue
        before = states[machine]
        if before is not None and old != before:
            yield _fault("events_replay", rows[machine], f"event {event['id']} begins at {old!r}, not at {before!r}")
        elif not _is_move(old, new):
            yield _fault("one_event_per_move", rows[machine], f"event {event['id']}: no move from {old!r} to {new!r}")
        states[machine] = new
    for machine, row in rows.items():
        if states[machine] not in (None, row["state"]):
            yield _fault("events_replay", row, f"its events lead to {states[machine]!r}, its row is {row['state']!r}")


def _is_move(old: str, new: str) -> bool:
    if not old:
        return new == AllocationState.PLANNED
    return may_move(AllocationState(old), AllocationState(new))


def _fault(rule: str, row: Row, what: str) -> Violation:
    return Violation(rule=rule, job="", message=f"allocation {row['id']}: {what}", rows=(row,))


def _by_job(
    connection: Connection, table: Table, order: str, first: int, last: int
) -> dict[int, tuple[HistoryRow, ...]]:
    asked = select(table).where(table.c.seq.between(first, last)).order_by(table.c.seq, table.c[order])
    found: dict[int, list[HistoryRow]] = defaultdict(list)
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


# The check of the newest jobs of a served queue: bounded in jobs, on one snapshot.

RULES = (
    "one_lease",
    "epochs_grow",
    "no_stale_write",
    "terminal_is_final",
    "waits_with_reason",
    "within_budgets",
    "bundle_has_bytes",
    "events_replay",
    "one_event_per_move",
    "time_goes_on",
    "counters",
)
"""The rules of `history`, and of counters."""
_MOST_FAULTS_SHOWN = 50


@frozen
class DatabaseCheckResult:
    """The result of a check."""

    jobs: int
    is_whole: bool
    """All jobs were checked."""
    broken: dict[str, int]
    """Rule → how often."""
    violations: tuple[Violation, ...]
    """The first."""


def judge(database: Database, *, most: int, budgets: Budgets, has_object: HasObject | None) -> DatabaseCheckResult:
    """Check the newest jobs, and the database as a whole."""
    with snapshot(database) as connection:
        total = int(connection.scalar(select(func.count()).select_from(JOBS)) or 0)
        behind = 0
        if total > most:
            newest = select(JOBS.c.seq).order_by(JOBS.c.seq.desc()).offset(most).limit(1)
            behind = int(connection.scalar(newest) or 0)
        broken: Counter[str] = Counter(dict.fromkeys(RULES, 0))
        shown: list[Violation] = []
        # The check of the whole file takes long: only `admin db check` does it.
        for violation in check_rows(connection, budgets=budgets, has_object=has_object, behind=behind, is_quick=True):
            broken[violation.rule] += 1
            if len(shown) < _MOST_FAULTS_SHOWN:
                shown.append(violation)
    return DatabaseCheckResult(
        jobs=min(total, most), is_whole=total <= most, broken=dict(broken), violations=tuple(shown)
    )
