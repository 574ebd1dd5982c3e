"""Hooks in rows: made, moved on, closed. A closed one is remembered for a month, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.database.tables import HOOKS, SYMPTOMS
from stoker.coordinator.queue.commands import AddHook, CloseHook, MoveHook, NoteReport, NoteSymptoms, QueueCommandResult
from stoker.coordinator.queue.machines import named
from stoker.coordinator.queue.moves import plain, telling
from stoker.coordinator.queue.operator_commands import rows_of
from stoker.coordinator.queue.sql import records
from stoker.coordinator.queue.transaction import WriterTransaction
from stoker.core.errors import NotFound, Refused
from stoker.core.events import FleetKinds
from stoker.core.job import JobState
from stoker.core.jsontext import dumps
from stoker.core.leases import Symptom

# Symptoms in rows: an event for each that is new, again after an hour, and one when it is over.

AGAIN_S = 3600.0
"""What lasts is told again after so long, and what comes back sooner is not news."""
KEPT_S = 7 * 24 * 3600.0
"""For so long it is remembered what is over."""


def note_symptoms(turn: WriterTransaction, asked: NoteSymptoms) -> QueueCommandResult:
    """Bring the rows up to date. `changed` are the machines of which something was told."""
    rows = {
        (row["machine"], row["device"], row["symptom"]): row
        for row in records(SYMPTOMS, turn.read(turn.queries.symptoms))
    }
    changed: list[str] = []
    found = {symptom.key: symptom for symptom in asked.symptoms if symptom.machine in turn.book.machines}
    for key, symptom in found.items():
        if _note(turn, symptom, rows.get(key)):
            changed.append(symptom.machine)
    for key, row in rows.items():
        if key in found:
            continue
        if row["over_s"] is None:
            turn.write(turn.statements.put_symptom, **{**row, "over_s": turn.now_s})
            _tell(turn, row, is_over=True)
            changed.append(row["machine"])
        elif row["over_s"] < turn.now_s - KEPT_S:
            turn.write(turn.statements.drop_symptom, at_machine=key[0], at_device=key[1], at_symptom=key[2])
    return QueueCommandResult(changed=tuple(dict.fromkeys(changed)))


def note_report(turn: WriterTransaction, asked: NoteReport) -> QueueCommandResult:
    """Keep what a machine's worker found out, in the place of what it said before."""
    machine = named(turn, asked.machine)
    machine.row["report"] = asked.report
    turn.write(turn.statements.put_report, at_name=asked.machine, report=asked.report)
    return QueueCommandResult(changed=(asked.machine,))


def _note(turn: WriterTransaction, symptom: Symptom, row: dict[str, Any] | None) -> bool:
    is_told = row is None or turn.now_s - row["told_s"] >= AGAIN_S
    is_back = row is not None and row["over_s"] is not None
    fresh = {
        "machine": symptom.machine,
        "device": symptom.device,
        "symptom": symptom.ailment.value,
        "since_s": turn.now_s if row is None or is_back else row["since_s"],
        "told_s": turn.now_s if row is None or is_told else row["told_s"],
        "over_s": None,
        "message": plain(symptom.message),
        "hint": plain(symptom.hint),
    }
    if fresh != row:
        turn.write(turn.statements.put_symptom, **fresh)
    if is_told:
        _tell(turn, fresh, is_over=False)
    return is_told


def _tell(turn: WriterTransaction, row: dict[str, Any], *, is_over: bool) -> None:
    fields = {word: row[word] for word in ("symptom", "device", "message", "hint") if row[word]}
    kind = FleetKinds.SYMPTOM_OVER if is_over else FleetKinds.SYMPTOM
    turn.tell(kind, machine=row["machine"], fields=fields)


MOST_OPEN = 1000
"""Hooks at one time."""
WEBHOOK_EVENTS_KEPT_S = 30 * 24 * 3600.0


def add_hook(turn: WriterTransaction, asked: AddHook) -> QueueCommandResult:
    """Begin to tell somebody of events: of all that follow, or of how some jobs end."""
    hooks = _all(turn)
    if sum(row["closed_s"] is None for row in hooks) >= MOST_OPEN:
        raise Refused(f"{MOST_OPEN} hooks are open already", hint="`stoker admin notify rm ID` closes one")
    for row in hooks[:-1]:
        if row["closed_s"] is not None and row["closed_s"] < turn.now_s - WEBHOOK_EVENTS_KEPT_S:
            turn.write(turn.statements.drop_hook, at_id=row["id"])
    seqs, cursor = _jobs(turn, asked.jobs) if asked.jobs else ([], turn.book.event_id)
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
        "made_s": turn.now_s,
        "closed_s": None,
        "by": plain(asked.by),
    }
    turn.write(turn.statements.put_hook, **fresh)
    _tell_hooking(turn, FleetKinds.HOOK_MADE, number, by=asked.by)
    return QueueCommandResult(changed=(str(number),), data={"id": number})


def move_hook(turn: WriterTransaction, asked: MoveHook) -> QueueCommandResult:
    """Note how far one has come, and how it goes; of one that is closed nothing is noted."""
    row = _find(turn, asked.id)
    if row["closed_s"] is not None:
        return QueueCommandResult(notes=(f"hook {asked.id} is closed",))
    row |= {
        "cursor": max(row["cursor"], asked.cursor),
        "failures": asked.failures,
        "failing_since_s": asked.failing_since_s,
        "not_before_s": asked.not_before_s,
        "last_error": plain(asked.last_error),
    }
    turn.write(turn.statements.put_hook, **row)
    return QueueCommandResult(changed=(str(asked.id),))


def close_hook(turn: WriterTransaction, asked: CloseHook) -> QueueCommandResult:
    """Tell one nothing more; what signed its messages is forgotten."""
    row = _find(turn, asked.id)
    if row["closed_s"] is not None:
        return QueueCommandResult(notes=(f"hook {asked.id} is closed already",))
    turn.write(
        turn.statements.put_hook, **{**row, "closed_s": turn.now_s, "secret": "", "last_error": plain(asked.why)}
    )
    _tell_hooking(turn, FleetKinds.HOOK_CLOSED, asked.id, why=asked.why, by=asked.by)
    return QueueCommandResult(changed=(str(asked.id),))


def _jobs(turn: WriterTransaction, ids: tuple[str, ...]) -> tuple[list[int], int]:
    """Return the numbers of jobs, and behind which event a hook of theirs begins."""
    rows = rows_of(turn, ids)
    ended = [row.seq for row in rows if JobState(row.state).is_terminal]
    cursor = turn.book.event_id
    if ended:
        found = [id for _, id in turn.read(turn.queries.ends_of, seqs=turn.many(ended))]
        cursor = min([cursor, *(id - 1 for id in found)])
    return [row.seq for row in rows], cursor


def _all(turn: WriterTransaction) -> list[dict[str, Any]]:
    return records(HOOKS, turn.read(turn.queries.hooks))


def _find(turn: WriterTransaction, id: int) -> dict[str, Any]:
    for row in _all(turn):
        if row["id"] == id:
            return row
    raise NotFound(f"there is no hook {id}", hint="`stoker admin notify` lists them")


def _tell_hooking(turn: WriterTransaction, kind: str, id: int, *, why: str = "", by: str = "") -> None:
    fields = {"hook": id, "why": plain(why), "by": plain(by)}
    turn.tell(kind, fields=telling(fields))


# The verbs about machines' health and about who is told of events, by their commands.

HEALTH_VERBS: dict[type, Callable[[WriterTransaction, Any], QueueCommandResult]] = {
    NoteSymptoms: note_symptoms,
    NoteReport: note_report,
    AddHook: add_hook,
    MoveHook: move_hook,
    CloseHook: close_hook,
}
