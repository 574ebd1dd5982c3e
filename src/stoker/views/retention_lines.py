"""What a worker tells, one line per event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.core.text import format_duration

Fields = Mapping[str, Any]
_SHORTEST_S = 0.05
"""What took less would be said to take no time at all."""


def keeping_line(kind: str, fields: Fields) -> str:
    """Return an event of a worker in a line."""
    say = _LINES.get(kind)
    return say(fields) if say is not None else f"{kind} {_because(fields)}".strip()


def _because(fields: Fields) -> str:
    return f": {fields['why']}" if fields.get("why") else ""


def _hint(fields: Fields) -> str:
    return f" (hint: {fields['hint']})" if fields.get("hint") else ""


def _away(fields: Fields) -> str:
    goes_on = ", jobs go on" if fields.get("held") else ""
    return f"the coordinator does not answer{goes_on}{_because(fields)}{_hint(fields)}"


def _joined(fields: Fields) -> str:
    slots = fields["slots"]
    at_once = f"{slots} job{'s' if slots > 1 else ''} at once"
    drift = "".join(f"; {one}" for one in fields["drift"])
    return f"joined as {fields['worker']}: {at_once}, leases of {format_duration(fields['lease_s'])}{drift}"


def _ended(fields: Fields) -> str:
    took = f" after {format_duration(fields['seconds'])}" if fields.get("seconds", 0.0) >= _SHORTEST_S else ""
    return f"{fields['job']} {fields['state']}{took}{_because(fields)}"


def _settled(fields: Fields) -> str:
    shown = {
        "finish": "recorded",
        "fail": "failure recorded",
        "release": "given back",
        "cancelled": "cancelled, and nothing of it runs",
        "decline": "declined",
    }.get(fields["word"], fields["word"])
    return f"{fields['job']} {shown}"


def _closed(fields: Fields) -> str:
    return f"takes no work{_because(fields)}"


_LINES: dict[str, Callable[[Fields], str]] = {
    "joined": _joined,
    "granted": lambda fields: f"{fields['job']} granted (attempt {fields['attempt']})",
    "started": lambda fields: f"{fields['job']} started in {fields['run']}",
    "declined": lambda fields: f"{fields['job']} declined ({fields['reason']}){_because(fields)}",
    "ended": _ended,
    "settled": _settled,
    "stopping": lambda fields: f"{fields['job']} is stopped{_because(fields)}",
    "stopped": lambda fields: f"{fields['job']} has stopped",
    "dropped": lambda fields: f"{fields['job']} is no longer ours, its result is dropped{_because(fields)}",
    "lease_over": lambda fields: f"{fields['job']}: its lease is over{_because(fields)}",
    "adopted": lambda fields: f"{fields['job']} found again, running as process {fields['pid']}",
    "exec": lambda fields: f"{fields['job']}: an operator runs {fields['program']} in it",
    "left_behind": lambda fields: f"{fields['job']} was left behind by an earlier worker and is ended",
    "checkpoint": lambda fields: f"{fields['job']} goes on from a checkpoint{_because(fields)}",
    "checkpoint_missing": lambda fields: f"{fields['job']} begins anew, its checkpoint did not come{_because(fields)}",
    "not_shipped": lambda fields: f"{fields['job']}: not all of it is brought to the coordinator{_because(fields)}",
    "away": _away,
    "back": lambda _fields: "the coordinator answers again",
    "refused": lambda fields: f"ends{_because(fields)}{_hint(fields)}",
    "closed": _closed,
    "devices_gone": lambda fields: f"no longer offered, not found any more: {', '.join(fields['devices'])}",
    "devices_back": lambda fields: f"offered: {', '.join(fields['devices'])}",
    "closed_python": lambda fields: f"warning: jobs that start this machine's python are declined{_because(fields)}",
    "certificate_renewed": lambda fields: f"the certificate of {fields['worker']} is renewed",
    "certificate_not_renewed": lambda fields: f"the certificate can't be renewed yet{_because(fields)}{_hint(fields)}",
    "open": lambda fields: f"takes work again ({fields['by']})",
    "idle": lambda _fields: "nothing is left for this machine",
    "leaving": lambda fields: f"leaving, gives back what it holds ({fields['held']}){_because(fields)}",
    "leaving_now": lambda _fields: "leaving now",
}
