"""Moments and spans as people say them."""

from __future__ import annotations

from datetime import datetime

from stoker.model.units import format_duration


def ago(then_s: float, now_s: float) -> str:
    """Say how long ago something was."""
    passed_s = now_s - then_s
    if passed_s < 1:
        return "just now"
    for unit_s, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {word} ago"
    return f"{int(passed_s)} s ago"


def span(seconds: float | None) -> str:
    """Say how long something took, in the unit that tells something."""
    if seconds is None:
        return ""
    if seconds < 0.00995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.2f}s" if seconds < 0.95 else format_duration(seconds)


def moment(then_s: float, now_s: float) -> str:
    """Return a time of the clock here: `now`, `14:40`, or on another day `Nov 18 14:40`."""
    if abs(then_s - now_s) < 1:
        return "now"
    then, now = datetime.fromtimestamp(then_s).astimezone(), datetime.fromtimestamp(now_s).astimezone()
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%b %d %H:%M}"
