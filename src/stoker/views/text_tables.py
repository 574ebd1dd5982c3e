"""Tables, times, signs and paths as text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime

from stoker.core.frozen import frozen
from stoker.core.text import format_duration, outside

_GAP = "  "


def table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), columns: int = 0, indent: str = ""
) -> list[str]:
    """Return rows as lines. `columns` is the width of the terminal, 0 for no limit; only the last column wraps.

    Line breaks in cells are escaped.
    """
    shown = [[outside(cell) for cell in row] for row in ((header, *rows) if header else rows)]
    if not shown:
        return []
    count = max(map(len, shown))
    widths = [max((len(row[place]) for row in shown if place < len(row)), default=0) for place in range(count)]
    before = len(indent) + sum(widths[:-1]) + len(_GAP) * (count - 1)
    room = columns - before if columns else 0
    lines = []
    for row in shown:
        cells = [f"{cell:<{widths[place]}}" for place, cell in enumerate(row[: count - 1])]
        last = row[count - 1] if len(row) == count else ""
        first, *more = _wrap(last, room)
        lines.append((indent + _GAP.join([*cells, first])).rstrip())
        lines += [" " * before + line for line in more]
    return lines


def _wrap(text: str, room: int) -> list[str]:
    if room < 20 or len(text) <= room:
        return [text]
    from textwrap import wrap

    return wrap(text, room, break_on_hyphens=False) or [""]


# Times and durations.


def ago(then_s: float, now_s: float) -> str:
    """Return how long ago something was."""
    passed_s = now_s - then_s
    if passed_s < 1:
        return "just now"
    for unit_s, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {word} ago"
    return f"{int(passed_s)} s ago"


def span(seconds: float | None) -> str:
    """Return a duration in a suitable unit."""
    if seconds is None:
        return ""
    if seconds < 0.00995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.2f}s" if seconds < 0.95 else format_duration(seconds)


def moment(then_s: float, now_s: float) -> str:
    """Return a local time: `now`, `14:40`, or on another day `Nov 18 14:40`."""
    if abs(then_s - now_s) < 1:
        return "now"
    then, now = datetime.fromtimestamp(then_s).astimezone(), datetime.fromtimestamp(now_s).astimezone()
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%b %d %H:%M}"


@frozen
class Signs:
    """The signs before lines, in Unicode and ASCII; the line repeats its sign in words."""

    ran: str
    hit: str
    failed: str
    left: str
    warned: str
    again: str


UNICODE = Signs(ran="✓", hit="=", failed="✗", left="-", warned="!", again="~")
ASCII = Signs(ran="+", hit="=", failed="x", left="-", warned="!", again="~")


def with_signs(text: str, signs: Signs) -> str:
    """Return a text with the signs that the terminal can show."""
    return text.replace(UNICODE.ran, signs.ran).replace(UNICODE.failed, signs.failed)


def near_path(path: str, folder: str) -> str:
    """Return a path relative to a folder if it is below it."""
    relative = os.path.relpath(path, folder)
    return path if relative.startswith("..") else relative
