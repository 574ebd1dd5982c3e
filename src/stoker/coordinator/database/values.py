"""Is every value what its column holds? A database keeps bytes damaged inside a value as readily as any others.

Each row is held against what can be known of it: text is text, JSON can be read, digests are digests, states are
states, and what a digest was made from still gives that digest. Rows are read as they lie on disk, some at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Connection, Double, Integer, String, Table, select

from stoker.coordinator.database.portable import TABLES
from stoker.coordinator.database.raw_text import read_text_as
from stoker.coordinator.database.tables import CLASSES, JOBS
from stoker.coordinator.history import Violation
from stoker.model.digests import digest_value
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.wire.identity import identity_fault
from stoker.wire.orders import JobOrder

_TOGETHER = 1000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STATES = frozenset(state.value for state in JobState)
_JSON = frozenset(
    {
        "jobs.spec", "jobs.error", "jobs.metrics", "jobs.checkpoint", "classes.wanted", "leases.devices",
        "leases.progress", "attempts.devices", "attempts.facts", "events.fields", "machines.outdated",
        "machines.capability", "machines.declared", "machines.closed_devices", "machines.report", "policies.policy",
        "claims.granted", "submissions.answer", "hooks.kinds", "hooks.jobs",
    }
)  # fmt: skip
"""What holds JSON, or nothing."""
_ALWAYS_JSON = frozenset({"jobs.spec", "classes.wanted", "policies.policy", "claims.granted", "submissions.answer"})
_DIGESTS = frozenset(
    {
        "jobs.code", "jobs.tree", "jobs.archive_sha256", "attempts.tree", "bundles.tree", "bundles.archive_sha256",
        "contents.tree", "contents.listing", "tokens.sha256",
    }
)  # fmt: skip
"""What holds a digest, or nothing."""
_WORDS: Mapping[str, frozenset[str]] = {
    "jobs.state": _STATES,
    "events.from_state": _STATES | {""},
    "events.to_state": _STATES | {""},
    "attempts.ending": frozenset({"", "completed", "failed", "cancelled", "released", "declined", "expired"}),
    "machines.closed": frozenset({"", "drained", "cordoned", "paused"}),
}
Row = dict[str, Any]


def check_values(connection: Connection) -> Iterator[Violation]:
    """Give every value of every table that can't be what was written there."""
    for table in TABLES:
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


def _raw(connection: Connection, table: Table) -> Iterator[Row]:
    """Give rows as they lie there: of SQLite, text as its bytes."""
    statement = str(select(table).compile(dialect=connection.dialect))
    names = table.columns.keys()
    pages = connection.exec_driver_sql(statement, execution_options={"yield_per": _TOGETHER}).partitions()
    while True:
        # Whoever gets the rows may read text meanwhile.
        with read_text_as(connection, bytes):
            page = next(pages, None)
        if page is None:
            return
        for row in page:
            yield dict(zip(names, row, strict=True))


def _check_of(table: Table, column: Column[Any]) -> Callable[[Any], str]:
    """Give what says what is wrong with a value of a column; nothing if nothing is."""
    inner = _INNER.get(type(column.type), _text_check)(f"{table.name}.{column.name}", column)

    def check(value: Any) -> str:
        if value is None:
            return "" if column.nullable else "is missing"
        return inner(value)

    return check


def _boolean_check(_place: str, _column: Column[Any]) -> Callable[[Any], str]:
    return lambda value: "" if value in (0, 1) and not isinstance(value, float) else "is neither true nor false"


def _integer_check(_place: str, _column: Column[Any]) -> Callable[[Any], str]:
    return lambda value: "" if type(value) is int else "is no whole number"


def _double_check(_place: str, _column: Column[Any]) -> Callable[[Any], str]:
    return lambda value: "" if type(value) in (int, float) and math.isfinite(value) else "is no number"


def _text_check(place: str, column: Column[Any]) -> Callable[[Any], str]:
    most = column.type.length if isinstance(column.type, String) else None
    words, is_digest, is_json = _WORDS.get(place), place in _DIGESTS, place in _JSON

    def check(value: Any) -> str:
        try:
            text = value if isinstance(value, str) else bytes.decode(value)
        except (UnicodeDecodeError, TypeError):
            return "is no text"
        if "\0" in text or (most is not None and len(text) > most):
            return "is no text that was ever written"
        if words is not None and text not in words:
            return f"is {text[:40]!r}"
        if is_digest and text and _DIGEST.fullmatch(text) is None:
            return "is no digest"
        return _json_fault(place, text) if is_json else ""

    return check


def _json_fault(place: str, text: str) -> str:
    if not text:
        return "is empty" if place in _ALWAYS_JSON else ""
    try:
        loads(text)
    except (ValueError, RecursionError):
        return "is no JSON"
    return ""


def _job_fault(row: Row) -> str:
    """Hold a job's id against what it was made from."""
    try:
        order = JobOrder.model_validate({**loads(row["spec"]), "id": _plain(row["id"])})
    except (TypeError, ValueError):
        return "spec is no order of a job"
    if fault := identity_fault(order.id, order):
        return f"spec: {fault}"
    stored = tuple(_plain(row[name]) for name in ("recipe", "mode"))
    return "" if (order.recipe, order.mode) == stored else "its spec is another job's"


def _class_fault(row: Row) -> str:
    """Hold a class's key against what it was made from."""
    try:
        made = digest_value("requirement class", loads(row["wanted"]))
    except (TypeError, ValueError):
        return "wanted is no class of jobs"
    return "" if made == _plain(row["key"]) else "its key is not that of what it wants"


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
"""What is looked at once every value of a row is right by itself."""
