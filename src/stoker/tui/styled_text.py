"""Lines of text with styles, exactly as wide as the screen."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.display_width import cut, on_screen, text_width, wrapped
from stoker.core.frozen import changed, frozen

StyledLine = tuple[tuple[str, str], ...]
"""Texts with the names of their styles: colours, `bold`, `dim` and `reverse`, separated by blanks."""


@frozen
class ScreenLook:
    """The size of the screen, what it can show, and the time."""

    columns: int
    rows: int
    now_s: float
    is_ascii: bool = False

    def narrowed(self, columns: int) -> ScreenLook:
        """Return the look of a part of the screen."""
        return changed(self, columns=columns)

    def safe(self, text: str) -> str:
        """Return untrusted text as part of a line."""
        return on_screen(text, is_ascii=self.is_ascii)


def plain(text: str, look: ScreenLook, style: str = "") -> StyledLine:
    """Return text in one style as a line of the screen's width."""
    return joined([(look.safe(text), style)], "", look)


def joined(pieces: Sequence[tuple[str, str]], right: str, look: ScreenLook) -> StyledLine:
    """Return pieces from the left and a text at the right edge, cut to the screen's width."""
    room = look.columns - text_width(right)
    if room < 10:
        right, room = "", look.columns
    line: list[tuple[str, str]] = []
    for text, style in pieces:
        shown = cut(text, room)
        if shown:
            line.append((shown, style))
        room -= text_width(shown)
        if room <= 0:
            break
    return (*line, (f"{' ' * room}{right}", ""))


def whole(line: StyledLine, style: str) -> StyledLine:
    """Return a line in one style."""
    return (("".join(text for text, _ in line), style),)


def line_text(line: StyledLine) -> str:
    """Return a line without its styles."""
    return "".join(text for text, _ in line)


def filled_lines(lines: Sequence[StyledLine], rows: int, look: ScreenLook) -> list[StyledLine]:
    """Return exactly so many lines."""
    return [*lines[:rows], *([plain("", look)] * (rows - len(lines)))]


def wrapped_line(text: str, columns: int) -> list[str]:
    """Return a line as lines that are no wider, with its indentation."""
    if text_width(text) <= columns:
        return [text]
    inner = text.lstrip(" ")
    indent = " " * min(len(text) - len(inner), columns // 2)
    return [f"{indent}{part}" for part in wrapped(inner, columns - len(indent))]
