"""A line of somebody's text with carets under the part that is meant.

Shown beneath a fault. Control characters become visible, tabs become one space, and a long line is cut around the
caret, so that what is printed is always one line over one line.
"""

from __future__ import annotations

from stoker.config.origin import Origin
from stoker.model.faults import Fault

_WIDEST = 100
_BEFORE = 60


def caret_lines(line: str, column: int, width: int = 1) -> str:
    """Give the line and, under `width` characters from `column` (counted from 1), carets."""
    start = min(max(column, 1), len(line) + 1) - 1
    end = min(start + max(width, 1), max(len(line), start + 1))
    first = max(0, start - _BEFORE) if len(line) > _WIDEST else 0
    last = min(len(line), first + _WIDEST)
    before = ("…" if first else "") + "".join(map(_visible, line[first:start]))
    marked = "".join(map(_visible, line[start : min(end, last)]))
    after = "".join(map(_visible, line[min(end, last) : last])) + ("…" if last < len(line) else "")
    return f"{before}{marked}{after}\n{' ' * _columns(before)}{'^' * max(_columns(marked), 1)}"


def fault_at(origin: Origin, message: str, *, hint: str = "", key: str = "", column: int = 0, width: int = 1) -> Fault:
    """Make the fault of a place, with the line that stands there and carets under it where the place has one.

    `column` is for a part of the line other than the one where the place begins.
    """
    where = origin.where if not origin.line else str(origin)
    shown = caret_lines(origin.text, column or origin.column, width) if origin.text else ""
    return Fault(f"{where}: {key}" if key else where, message, hint, shown)


def _visible(character: str) -> str:
    if character == "\t":
        return " "
    return character if character.isprintable() else "�"


def _columns(text: str) -> int:
    """Count terminal columns: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata  # noqa: PLC0415 - only a fault in text that is not ASCII should cost it

    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )
