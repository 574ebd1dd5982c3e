"""Symptoms, worker reports and webhooks in rows. A closed webhook is kept for 30 days, for users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.database.tables import HOOKS, SYMPTOMS
from stoker.coordinator.queue.commands import AddHook, CloseHook, MoveHook, NoteReport, NoteSymptoms, QueueCommandResult
from stoker.coordinator.queue.machines import named
from stoker.coordinator.queue.operator_commands import rows_of
from stoker.coordinator.queue.sql import records
from stoker.coordinator.queue.transaction import WriterTransaction, plain, telling
from stoker.core.errors import NotFound, Refused
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.core.jsontext import dumps
from stoker.core.leases import Symptom
from stoker.core.text import lazy_pattern

# Symptoms: an event for each new one, when it gets worse, again after an hour, and one when it is over.

AGAIN_S = 3600.0
"""A lasting symptom gets another event after so long; one that comes back sooner gets none."""
KEPT_S = 7 * 24 * 3600.0
"""How long a past symptom is stored."""


def note_symptoms(transaction: WriterTransaction, asked: NoteSymptoms) -> QueueCommandResult:
    """Update the rows of symptoms. `changed` are the machines with new events."""
    rows = {
        (row["machine"], row["device"], row["symptom"]): row
        for row in records(SYMPTOMS, transaction.read(transaction.queries.symptoms))
    }
    changed: list[str] = []
    found = {symptom.key: symptom for symptom in asked.symptoms if symptom.machine in transaction.book.machines}
    for key, symptom in found.items():
        if _note(transaction, symptom, rows.get(key)):
            changed.append(symptom.machine)
    for key, row in rows.items():
        if key in found:
            continue
        if row["over_s"] is None:
            transaction.write(transaction.statements.put_symptom, **{**row, "over_s": transaction.now_s})
            _tell(transaction, row, is_over=True)
            changed.append(row["machine"])
        elif row["over_s"] < transaction.now_s - KEPT_S:
            transaction.write(
                transaction.statements.drop_symptom, at_machine=key[0], at_device=key[1], at_symptom=key[2]
            )
    return QueueCommandResult(changed=tuple(dict.fromkeys(changed)))


def note_report(transaction: WriterTransaction, asked: NoteReport) -> QueueCommandResult:
    """Store the report of a machine's worker in place of the earlier one."""
    machine = named(transaction, asked.machine)
    machine.row["report"] = asked.report
    transaction.write(transaction.statements.put_report, at_name=asked.machine, report=asked.report)
    return QueueCommandResult(changed=(asked.machine,))


_SEVERITY = lazy_pattern(r" \(severity (\d{1,3})(?:, (\d{1,3}) before)?\)$")


def severity_of(message: str) -> int:
    """Return the highest severity that the message of a symptom ends with; 0 without one."""
    found = _SEVERITY.search(message)
    return max(int(number) for number in found.groups("0")) if found else 0


def _note(transaction: WriterTransaction, symptom: Symptom, row: dict[str, Any] | None) -> bool:
    is_due = row is None or transaction.now_s - row["told_s"] >= AGAIN_S
    message, worst = plain(symptom.message), 0 if row is None or is_due else severity_of(row["message"])
    # One that gets worse is reported at once. It keeps the worst severity, so that each is reported once an hour.
    has_event = is_due or severity_of(message) > worst > 0
    if 0 < severity_of(message) < worst:
        message = f"{message.removesuffix(')')}, {worst} before)"
    is_back = row is not None and row["over_s"] is not None
    fresh = {
        "machine": symptom.machine,
        "device": symptom.device,
        "symptom": symptom.ailment.value,
        "since_s": transaction.now_s if row is None or is_back else row["since_s"],
        "told_s": transaction.now_s if row is None or has_event else row["told_s"],
        "over_s": None,
        "message": message,
        "hint": plain(symptom.hint),
    }
    if fresh != row:
        transaction.write(transaction.statements.put_symptom, **fresh)
    if has_event:
        _tell(transaction, fresh, is_over=False)
    return has_event


def _tell(transaction: WriterTransaction, row: dict[str, Any], *, is_over: bool) -> None:
    fields = {word: row[word] for word in ("symptom", "device", "message", "hint") if row[word]}
    kind = FleetKinds.SYMPTOM_OVER if is_over else FleetKinds.SYMPTOM
    transaction.tell(kind, machine=row["machine"], fields=fields)


MOST_OPEN = 1000
"""Number of open webhooks."""
WEBHOOK_EVENTS_KEPT_S = 30 * 24 * 3600.0


def add_hook(transaction: WriterTransaction, asked: AddHook) -> QueueCommandResult:
    """Create a webhook: for all later events, or for the ends of some jobs."""
    hooks = _all(transaction)
    if sum(row["closed_s"] is None for row in hooks) >= MOST_OPEN:
        raise Refused(f"{MOST_OPEN} webhooks are open already", hint="close one: `stoker admin notify rm ID`")
    for row in hooks[:-1]:
        if row["closed_s"] is not None and row["closed_s"] < transaction.now_s - WEBHOOK_EVENTS_KEPT_S:
            transaction.write(transaction.statements.drop_hook, at_id=row["id"])
    seqs, cursor = _jobs(transaction, asked.jobs) if asked.jobs else ([], transaction.book.event_id)
    number: int = hooks[-1]["id"] + 1 if hooks else 1
    fresh = {
        "id": number,
        "url": asked.url,
        "secret": asked.secret,
        "kinds": dumps(list(asked.kinds)) if asked.kinds else "",
        "jobs": dumps(seqs) if seqs else "",
        "cursor": cursor,
        "is_inner": asked.is_inner,
        "failures": 0,
        "failing_since_s": None,
        "not_before_s": 0.0,
        "last_error": "",
        "made_s": transaction.now_s,
        "closed_s": None,
        "by": plain(asked.by),
        "format": asked.format,
    }
    transaction.write(transaction.statements.put_hook, **fresh)
    _emit_webhook_event(transaction, FleetKinds.HOOK_MADE, number, by=asked.by)
    return QueueCommandResult(changed=(str(number),), data={"id": number})


def move_hook(transaction: WriterTransaction, asked: MoveHook) -> QueueCommandResult:
    """Store a webhook's cursor and failures; ignored for a closed one."""
    row = _find(transaction, asked.id)
    if row["closed_s"] is not None:
        return QueueCommandResult(notes=(f"webhook {asked.id} is closed",))
    row |= {
        "cursor": max(row["cursor"], asked.cursor),
        "failures": asked.failures,
        "failing_since_s": asked.failing_since_s,
        "not_before_s": asked.not_before_s,
        "last_error": plain(asked.last_error),
    }
    transaction.write(transaction.statements.put_hook, **row)
    return QueueCommandResult(changed=(str(asked.id),))


def close_hook(transaction: WriterTransaction, asked: CloseHook) -> QueueCommandResult:
    """Close a webhook, and delete its secret."""
    row = _find(transaction, asked.id)
    if row["closed_s"] is not None:
        return QueueCommandResult(notes=(f"webhook {asked.id} is closed already",))
    transaction.write(
        transaction.statements.put_hook,
        **{**row, "closed_s": transaction.now_s, "secret": "", "last_error": plain(asked.why)},
    )
    _emit_webhook_event(transaction, FleetKinds.HOOK_CLOSED, asked.id, why=asked.why, by=asked.by)
    return QueueCommandResult(changed=(str(asked.id),))


def _jobs(transaction: WriterTransaction, ids: tuple[str, ...]) -> tuple[list[int], int]:
    """Return the numbers of jobs, and the event behind which their webhook begins."""
    rows = rows_of(transaction, ids)
    ended = [row.seq for row in rows if JobState(row.state).is_terminal]
    cursor = transaction.book.event_id
    if ended:
        found = [id for _, id in transaction.read(transaction.queries.ends_of, seqs=transaction.many(ended))]
        cursor = min([cursor, *(id - 1 for id in found)])
    return [row.seq for row in rows], cursor


def _all(transaction: WriterTransaction) -> list[dict[str, Any]]:
    return records(HOOKS, transaction.read(transaction.queries.hooks))


def _find(transaction: WriterTransaction, id: int) -> dict[str, Any]:
    for row in _all(transaction):
        if row["id"] == id:
            return row
    raise NotFound(f"there is no webhook {id}", hint="`stoker admin notify` lists them")


def _emit_webhook_event(transaction: WriterTransaction, kind: str, id: int, *, why: str = "", by: str = "") -> None:
    fields = {"hook": id, "why": plain(why), "by": plain(by)}
    transaction.tell(kind, fields=telling(fields))


HEALTH_VERBS: dict[type, Callable[[WriterTransaction, Any], QueueCommandResult]] = {
    NoteSymptoms: note_symptoms,
    NoteReport: note_report,
    AddHook: add_hook,
    MoveHook: move_hook,
    CloseHook: close_hook,
}
