"""Worker events as log lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.core.text import counted, format_duration

Fields = Mapping[str, Any]
_SHORTEST_S = 0.05
"""Shorter times are not shown."""


def worker_line(kind: str, fields: Fields) -> str:
    """Return a worker event as a line."""
    text = _LINES.get(kind)
    return text(fields) if text is not None else f"{kind} {_because(fields)}".strip()


def _because(fields: Fields) -> str:
    return f": {fields['why']}" if fields.get("why") else ""


def _hint(fields: Fields) -> str:
    return f" (hint: {fields['hint']})" if fields.get("hint") else ""


def _away(fields: Fields) -> str:
    running = ", jobs continue" if fields.get("held") else ""
    return f"coordinator not reachable{running}{_because(fields)}{_hint(fields)}"


def _joined(fields: Fields) -> str:
    slots = fields["slots"]
    at_once = f"{counted(slots, 'job')} at once"
    drift = "".join(f"; {one}" for one in fields["drift"])
    return f"joined as {fields['worker']}: {at_once}, lease {format_duration(fields['lease_s'])}{drift}"


def _ended(fields: Fields) -> str:
    took = f" after {format_duration(fields['seconds'])}" if fields.get("seconds", 0.0) >= _SHORTEST_S else ""
    return f"{fields['job']} {fields['state']}{took}{_because(fields)}"


def _settled(fields: Fields) -> str:
    shown = {
        "finish": "result recorded",
        "fail": "failure recorded",
        "release": "released",
        "cancelled": "cancelled, no processes left",
        "decline": "declined",
    }.get(fields["word"], fields["word"])
    return f"{fields['job']} {shown}"


def _closed(fields: Fields) -> str:
    return f"takes no jobs{_because(fields)}"


_LINES: dict[str, Callable[[Fields], str]] = {
    "joined": _joined,
    "granted": lambda fields: f"{fields['job']} granted (attempt {fields['attempt']})",
    "started": lambda fields: f"{fields['job']} started in {fields['run']}",
    "declined": lambda fields: f"{fields['job']} declined ({fields['reason']}){_because(fields)}",
    "ended": _ended,
    "settled": _settled,
    "stopping": lambda fields: f"{fields['job']} stopping{_because(fields)}",
    "stopped": lambda fields: f"{fields['job']} stopped",
    "dropped": lambda fields: f"{fields['job']} lease lost, result discarded{_because(fields)}",
    "lease_over": lambda fields: f"{fields['job']}: lease expired{_because(fields)}",
    "adopted": lambda fields: f"{fields['job']} adopted, running as process {fields['pid']}",
    "exec": lambda fields: f"{fields['job']}: exec session of an operator: {fields['program']}",
    "left_behind": lambda fields: f"{fields['job']} was left by an earlier worker; stopping it",
    "checkpoint": lambda fields: f"{fields['job']} resumes from a checkpoint{_because(fields)}",
    "checkpoint_missing": lambda fields: (
        f"{fields['job']} restarts from step 0: checkpoint not available{_because(fields)}"
    ),
    "not_shipped": lambda fields: f"{fields['job']}: upload to the coordinator incomplete{_because(fields)}",
    "away": _away,
    "back": lambda _fields: "coordinator reachable again",
    "refused": lambda fields: f"exiting{_because(fields)}{_hint(fields)}",
    "closed": _closed,
    "devices_gone": lambda fields: f"devices not found any more, not offered: {', '.join(fields['devices'])}",
    "devices_back": lambda fields: f"devices offered again: {', '.join(fields['devices'])}",
    "closed_python": lambda fields: f"warning: jobs that start this machine's python are declined{_because(fields)}",
    "certificate_renewed": lambda fields: f"certificate of {fields['worker']} renewed",
    "certificate_not_renewed": lambda fields: f"certificate not renewed yet{_because(fields)}{_hint(fields)}",
    "open": lambda fields: f"takes jobs again ({fields['by']})",
    "idle": lambda _fields: "no more jobs for this machine",
    "leaving": lambda fields: f"leaving, releasing {counted(fields['held'], 'job')}{_because(fields)}",
    "leaving_now": lambda _fields: "leaving now",
}
