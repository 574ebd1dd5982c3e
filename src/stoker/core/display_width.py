"""How many columns of a terminal a text takes, and texts cut or padded to so many.

Wide characters (Chinese, Japanese, Korean, most emoji) take two columns, combining marks none.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from stoker.core.text import outside

_ELLIPSIS = "…"
_IN_ASCII = str.maketrans("…–·×→←°", "~--x>< ")
"""Signs of our own texts that have a likeness in ASCII."""


def text_width(text: str) -> int:
    """Return the number of columns that a text without control characters takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def on_screen(text: str, *, is_ascii: bool = False) -> str:
    """Return untrusted text as part of one line of a screen.

    Control characters become escapes. Joiners and variation selectors are left out: terminals disagree about the width
    of what they join. With `is_ascii` other characters become `?`, twice for a wide one, unless ASCII has one like it.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = outside(text.replace("\t", "    "))
    if not shown.isascii():
        shown = "".join(char for char in shown if _is_drawn(char))
    if is_ascii and not shown.isascii():
        shown = "".join(char if char.isascii() else "?" * _width(char) for char in shown.translate(_IN_ASCII))
    return shown


def cut(text: str, columns: int) -> str:
    """Return a text that takes at most so many columns; a longer one ends with `…`."""
    if text_width(text) <= columns:
        return text
    return f"{_head(text, columns - 1)}{_ELLIPSIS}" if columns > 0 else ""


def cut_middle(text: str, columns: int) -> str:
    """Return a text that takes at most so many columns; of a longer one the middle is left out."""
    if text_width(text) <= columns:
        return text
    if columns < 5:
        return cut(text, columns)
    end = _head(text[::-1], (columns - 1) // 2)[::-1]
    return f"{_head(text, columns - 1 - text_width(end))}{_ELLIPSIS}{end}"


def padded(text: str, columns: int, *, is_right: bool = False) -> str:
    """Return a text that takes exactly so many columns: cut, or filled with blanks."""
    text = cut(text, columns)
    blanks = " " * (columns - text_width(text))
    return f"{blanks}{text}" if is_right else f"{text}{blanks}"


def filled(text: str, columns: int) -> str:
    """Return a text filled with blanks to at least so many columns."""
    return text if (blanks := columns - text_width(text)) <= 0 else f"{text}{' ' * blanks}"


def wrapped(text: str, columns: int) -> list[str]:
    """Return a text as lines of at most so many columns, broken at blanks; a longer word is broken inside."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if text_width(joined) <= columns:
            line = joined
            continue
        lines += [line.rstrip()] if line else []
        line = word
        while text_width(line) > columns and (first := _head(line, columns)):
            lines.append(first)
            line = line[len(first) :]
    return [*lines, line] if line or not lines else lines


def _head(text: str, columns: int) -> str:
    """Return the longest beginning of a text that takes at most so many columns."""
    if text.isascii():
        return text[: max(0, columns)]
    taken = 0
    for place, char in enumerate(text):
        taken += _width(char)
        if taken > columns:
            return text[:place]
    return text


@lru_cache(maxsize=4096)
def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


@lru_cache(maxsize=4096)
def _is_drawn(char: str) -> bool:
    is_selector = "\ufe00" <= char <= "\ufe0f"
    return not is_selector and unicodedata.category(char) not in ("Cf", "Cs", "Cn", "Co")
