"""The verbs about machines' health and about who is told of events, by their commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.coordinator.queue.commands import Done
from stoker.coordinator.queue.health_commands import AddHook, CloseHook, MoveHook, NoteReport, NoteSymptoms
from stoker.coordinator.queue.hooking import add_hook, close_hook, move_hook
from stoker.coordinator.queue.symptoms import note_report, note_symptoms
from stoker.coordinator.queue.turn import Turn

HEALTH_VERBS: dict[type, Callable[[Turn, Any], Done]] = {
    NoteSymptoms: note_symptoms,
    NoteReport: note_report,
    AddHook: add_hook,
    MoveHook: move_hook,
    CloseHook: close_hook,
}
