"""Symptoms in rows: an event for each that is new, again after an hour, and one when it is over."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.health_commands import NoteReport, NoteSymptoms
from stoker.coordinator.queue.moves import plain
from stoker.coordinator.queue.roster import named
from stoker.coordinator.queue.turn import Turn
from stoker.model.fleet_events import FleetKinds
from stoker.model.symptoms import Symptom

AGAIN_S = 3600.0
"""What lasts is told again after so long, and what comes back sooner is not news."""
KEPT_S = 7 * 24 * 3600.0
"""For so long it is remembered what is over."""
SYMPTOM_FIELDS = ("machine", "device", "symptom", "since_s", "told_s", "over_s", "message", "hint")


def note_symptoms(turn: Turn, asked: NoteSymptoms) -> Done:
    """Bring the rows up to date. `changed` are the machines of which something was told."""
    rows = {row[:3]: dict(zip(SYMPTOM_FIELDS, row, strict=True)) for row in turn.read(turn.queries.symptoms)}
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
    return Done(changed=tuple(dict.fromkeys(changed)))


def note_report(turn: Turn, asked: NoteReport) -> Done:
    """Keep what a machine's worker found out, in the place of what it said before."""
    machine = named(turn, asked.machine)
    machine.row["report"] = asked.report
    turn.write(turn.statements.put_report, at_name=asked.machine, report=asked.report)
    return Done(changed=(asked.machine,))


def _note(turn: Turn, symptom: Symptom, row: dict[str, Any] | None) -> bool:
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


def _tell(turn: Turn, row: dict[str, Any], *, is_over: bool) -> None:
    fields = {word: row[word] for word in ("symptom", "device", "message", "hint") if row[word]}
    kind = FleetKinds.SYMPTOM_OVER if is_over else FleetKinds.SYMPTOM
    turn.tell(kind, machine=row["machine"], fields=fields)
