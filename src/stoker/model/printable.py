"""Text from elsewhere, made safe to show.

What a program printed may hold codes that move a terminal's cursor, set its title or answer in the user's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Everything that is not printed as itself, but for tabs, line ends and our own few colours.
_CODES = re.compile(r"\x1b\[(?:0|1|2|31|32|33)m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ALL_CODES = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLOURED = "\x1b["


def printable(text: str) -> str:
    """Give a text whose control codes are shown instead of obeyed; tabs, line ends and plain colours stay."""
    if text.isprintable():
        return text
    return _CODES.sub(lambda found: found[0] if found[0].startswith(_COLOURED) else f"\\x{ord(found[0]):02x}", text)


def outside(text: str) -> str:
    """Give a text that somebody else chose as part of a line of ours: nothing in it is obeyed, nor are colours."""
    if text.isprintable():
        return text
    return _ALL_CODES.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def json_printable(text: str) -> str:
    """Give a line of JSON in which whatever a terminal might obey is escaped; it stays the same JSON."""
    if text.isprintable():
        return text
    return _ALL_CODES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, longest: int = 0) -> str:
    """Give a text without breaks and control characters, cut where it becomes a story; 0 means any length."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if not longest or len(line) <= longest else f"{line[: longest - 1]}…"


def some_of(names: Sequence[str], most: int) -> str:
    """Return names in one line: at most so many, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    """Give the first line of what an error says; what it is called if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
