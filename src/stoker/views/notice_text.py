"""An event as a short message for people: title, text and how bad it is. Used by notifications of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stoker.core.events import FleetKinds
from stoker.core.frozen import frozen
from stoker.core.job import JobState
from stoker.core.text import format_duration, one_line
from stoker.views.stage_lines import number

_LONGEST_TITLE = 120
_LONGEST_TEXT = 600
_MOST_METRICS = 4
_ENDS = frozenset(state.value for state in JobState if state.is_terminal)


class NoticeTone(StrEnum):
    """How bad what happened is."""

    GOOD = "good"
    NEUTRAL = "neutral"
    BAD = "bad"


@frozen
class NoticeText:
    """A message of one event, without markup and control characters."""

    title: str
    text: str
    tone: NoticeTone

    @property
    def whole(self) -> str:
        """Title and text in one line."""
        return f"{self.title}: {self.text}" if self.text else self.title


def notice_text(event: Mapping[str, Any]) -> NoticeText:
    """Return the message of an event of the fleet; fields that it does not have are left out."""
    kind, state = str(event.get("kind", "")), str(event.get("to", ""))
    if kind.startswith("job_") and state in _ENDS:
        tone = NoticeTone.GOOD if state == JobState.COMPLETED else NoticeTone.BAD
        return _made(f"{_name(event)} {state}", [_where(event), _metrics(event), _why(event)], tone)
    if kind == FleetKinds.MACHINE_LOST:
        return _made(f"machine {event.get('machine', '?')} is lost", [_silence(event), _why(event)], NoticeTone.BAD)
    if kind in (FleetKinds.SYMPTOM, FleetKinds.SYMPTOM_OVER):
        over = " is over" if kind == FleetKinds.SYMPTOM_OVER else ""
        title = f"{event.get('symptom', 'symptom')}{over} on {event.get('machine', '?')}"
        hint = str(event.get("hint", ""))
        return _made(title, [_why(event), hint], NoticeTone.NEUTRAL if over else NoticeTone.BAD)
    subject = event.get("name") or event.get("machine") or event.get("pool") or ""
    return _made(f"{kind.replace('_', ' ')} {subject}", [_where(event), _why(event)], NoticeTone.NEUTRAL)


def _made(title: str, parts: list[str], tone: NoticeTone) -> NoticeText:
    text = "; ".join(filter(None, parts))
    return NoticeText(title=one_line(title, _LONGEST_TITLE), text=one_line(text, _LONGEST_TEXT), tone=tone)


def _name(event: Mapping[str, Any]) -> str:
    label = event.get("label")
    name = str(event.get("name") or event.get("job") or "a job")
    return f"{name} ({label})" if label else name


def _where(event: Mapping[str, Any]) -> str:
    machine = event.get("machine")
    return f"on {machine}" if machine and event.get("name") else ""


def _metrics(event: Mapping[str, Any]) -> str:
    found = event.get("metrics")
    named = [(str(name), value) for name, value in found.items()] if isinstance(found, dict) else []
    shown = [f"{name} {number(value)}" for name, value in named if type(value) in (int, float)]
    return ", ".join(shown[:_MOST_METRICS])


def _silence(event: Mapping[str, Any]) -> str:
    """Return for how long a machine was silent when it was given up; empty if unknown."""
    at_s, seen_s = event.get("ts"), event.get("last_seen_s")
    if not isinstance(at_s, int | float) or not isinstance(seen_s, int | float):
        return ""
    return f"no heartbeat for {format_duration(max(0.0, at_s - seen_s))}; its jobs return to the queue"


def _why(event: Mapping[str, Any]) -> str:
    return str(event.get("message") or event.get("why") or event.get("reason") or "")
