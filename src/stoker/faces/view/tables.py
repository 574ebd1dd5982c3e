"""Tables as text: columns as wide as they have to be, the last one cut or wrapped to the screen."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.printable import outside

_GAP = "  "


def table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), columns: int = 0, indent: str = ""
) -> list[str]:
    """Lay rows out. `columns` is the width of the screen, 0 for as wide as it gets; only the last column wraps.

    No cell breaks its line, whoever wrote what stands in it.
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
