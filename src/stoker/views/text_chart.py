"""Charts drawn with characters: a panel of curves in braille or ASCII, and values in one line.

Every value that can be drawn is drawn: a spike between two columns stays visible, because lines join all points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.core.display_width import padded
from stoker.views.charts import Panel, Scale, can_be_drawn, tick_text

FEWEST_COLUMNS, FEWEST_ROWS = 20, 4
"""A smaller panel is not drawn."""
_LABEL = 9
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
_BRAILLE = 0x2800
# The bits of a braille character: two columns of four dots.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def panel_lines(
    panel: Panel, *, columns: int, rows: int, borders: Sequence[float] = (), is_ascii: bool = False
) -> list[str]:
    """Return the curves of a panel in so many columns and rows, with its axes; [] if that is too small.

    `borders` are positions on the horizontal axis with a vertical line, such as the first step of an attempt.
    """
    if columns < FEWEST_COLUMNS or rows < FEWEST_ROWS:
        return []
    height, width = rows - 1, columns - _LABEL - 2
    canvas = _AsciiCanvas(width, height) if is_ascii else _BrailleCanvas(width, height)
    for line in panel.lines:
        canvas.draw(list(_spots(panel, line.points)))
    labels = _labels(panel.y, height)
    axis, tick = ("|", "+") if is_ascii else ("│", "┤")
    border = ":" if is_ascii else "┊"
    marked = {round(panel.x.place(at) * (width - 1)) for at in borders if panel.x.low <= at <= panel.x.high}
    lines = []
    for row in range(height):
        drawn = canvas.line(row)
        drawn = "".join(border if at in marked and char == " " else char for at, char in enumerate(drawn))
        label = labels.get(row, "")
        lines.append(f"{padded(label, _LABEL, is_right=True)} {tick if label else axis}{drawn}".rstrip())
    return [*lines, _foot(panel, width, is_ascii=is_ascii)]


def sparkline(values: Sequence[float], columns: int, *, is_ascii: bool = False) -> str:
    """Return values as one line of blocks, the highest of each column; a blank where none can be drawn."""
    blocks = _ASCII_BLOCKS if is_ascii else _BLOCKS
    parts = [values[len(values) * at // columns : max(len(values) * (at + 1) // columns, 1)] for at in range(columns)]
    if len(values) <= columns:
        parts = [[value] for value in values]
    highest = [max((value for value in part if can_be_drawn(value)), default=None) for part in parts]
    drawn = [value for value in highest if value is not None]
    if not drawn:
        return " " * len(highest)
    low, high = min(drawn), max(drawn)
    top = len(blocks) - 1
    return "".join(
        " " if value is None else blocks[round((value - low) / (high - low) * top) if high > low else top // 2]
        for value in highest
    )


def _spots(panel: Panel, points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float] | None]:
    """Yield the position of each point, from 0 to 1; None where a line is interrupted."""
    for x, y in points:
        if panel.x.holds(x) and panel.y.holds(y):
            yield min(max(panel.x.place(x), 0.0), 1.0), min(max(panel.y.place(y), 0.0), 1.0)
        else:
            yield None


def _labels(scale: Scale, height: int) -> dict[int, str]:
    """Return the tick labels by row; at most one in every second row."""
    labels: dict[int, str] = {}
    for value, text in scale.ticks(max(2, height // 3)):
        if scale.low <= value <= scale.high:
            row = round((1 - scale.place(value)) * (height - 1))
            if not {row - 1, row, row + 1} & labels.keys():
                labels[row] = text
    return labels if len(labels) > 1 else {0: tick_text(scale.high), height - 1: tick_text(scale.low)}


def _foot(panel: Panel, width: int, *, is_ascii: bool) -> str:
    """Return the line below a panel: first step, name and last step."""
    first, last = tick_text(panel.x.low), tick_text(panel.x.high)
    name = panel.x_title
    gap = width - len(first) - len(last) - len(name)
    middle = f"{' ' * (gap // 2)}{name}{' ' * (gap - gap // 2)}" if gap >= 2 else " " * (gap + len(name))
    return f"{' ' * _LABEL} {'+' if is_ascii else '└'}{first}{middle}{last}".rstrip()


class _DotCanvas:
    """Dots in cells of `across` by `down` dots."""

    across, down = 1, 1

    def __init__(self, columns: int, rows: int) -> None:
        self._width, self._height = columns * self.across, rows * self.down
        self._cells = [[0] * columns for _ in range(rows)]

    def draw(self, spots: Sequence[tuple[float, float] | None]) -> None:
        """Join spots by lines; a single one between gaps is a dot."""
        before: tuple[int, int] | None = None
        for spot in spots:
            if spot is None:
                before = None
                continue
            at = round(spot[0] * (self._width - 1)), round((1 - spot[1]) * (self._height - 1))
            self._join(before or at, at)
            before = at

    def _join(self, first: tuple[int, int], last: tuple[int, int]) -> None:
        steps = max(abs(last[0] - first[0]), abs(last[1] - first[1]), 1)
        for step in range(steps + 1):
            x = first[0] + (last[0] - first[0]) * step // steps
            y = first[1] + (last[1] - first[1]) * step // steps
            self._set(x, y)

    def _set(self, x: int, y: int) -> None:
        self._cells[y // self.down][x // self.across] |= _DOTS[x % self.across][y % self.down]

    def line(self, row: int) -> str:
        """Return one row as text."""
        raise NotImplementedError


class _BrailleCanvas(_DotCanvas):
    across, down = 2, 4

    def line(self, row: int) -> str:
        return "".join(chr(_BRAILLE + cell) if cell else " " for cell in self._cells[row])


class _AsciiCanvas(_DotCanvas):
    def line(self, row: int) -> str:
        return "".join("*" if cell else " " for cell in self._cells[row])
