"""What plain text means where no type is declared, and how a value is written so that it reads back the same.

The fixed rules, for a single value without quotes:

    null                                   in any case of letters; so are the next three
    true  false
    nan  inf  -inf  +inf
    0  42  -7  +3  1_000                   whole numbers; no zero in front, so 007 is text
    .5  5.  1e-5  1_000.5  -2.5E+3         numbers with a point or an exponent
    anything else                          text: on, off, yes, no, 1.2.3, 0x10, 2024-01-31
    1e999  1e-999  and 2,000 digits        text, too: what can't be held is not read as another number
"""

from __future__ import annotations

import math
import re
from typing import Any

_DIGITS = r"[0-9](?:_?[0-9])*"
_NUMBER = re.compile(rf"[+-]?(?:(?:0|[1-9](?:_?[0-9])*)(\.(?:{_DIGITS})?)?|(\.{_DIGITS}))([eE][+-]?{_DIGITS})?")
_NOT_ZERO = re.compile(r"[^eE]*[1-9]")
_NUMBER_STARTS = frozenset("0123456789+-.")
_WORDS: dict[str, Any] = {
    "null": None, "true": True, "false": False,
    "nan": math.nan, "+nan": math.nan, "-nan": math.nan,
    "inf": math.inf, "+inf": math.inf, "-inf": -math.inf,
}  # fmt: skip
_LONGEST_WORD = 5
_MOST_DIGITS = 2000

# What can stand without quotes wherever a value can, inside a list or a map, too.
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./@%+-](?:[A-Za-z0-9_./@%+ -]*[A-Za-z0-9_./@%+-])?", re.ASCII)


def scalar(text: str) -> Any:
    """Read a single value by the fixed rules."""
    if text[:1] in _NUMBER_STARTS:
        found = _NUMBER.fullmatch(text)
        if found is not None:
            return _whole(text) if found.lastindex is None else _broken(text)
    if len(text) <= _LONGEST_WORD:
        return _WORDS.get(text.lower(), text)
    return text


def text_of(value: Any) -> str:
    """Write a plain value so that the grammar of overrides reads exactly this value again."""
    if type(value) is str:
        return value if _stands_plain(value) else quoted(value)
    if type(value) in (list, tuple):
        return f"[{','.join(map(text_of, value))}]"
    if type(value) is dict:
        return f"{{{','.join(f'{text_of(str(key))}:{text_of(item)}' for key, item in value.items())}}}"
    return _scalar_text(value)


def fill_text(value: Any) -> str:
    """Write a plain value as a program's argument: text as it is, numbers in their shortest exact form."""
    return value if type(value) is str else text_of(value)


def quoted(text: str) -> str:
    """Put text in quotes, escaping what has to be: double ones, which stand well inside a shell's single ones."""
    quote = "'" if '"' in text and "'" not in text else '"'
    # A backslash means something only before the quote, so only the ones at a part's end are doubled.
    parts = text.split(quote)
    return quote + f"\\{quote}".join(part + "\\" * (len(part) - len(part.rstrip("\\"))) for part in parts) + quote


def same(one: Any, other: Any) -> bool:
    """Say whether two plain values are one: 1 is 1.0, but neither is true; NaN is NaN."""
    if type(one) is bool or type(other) is bool:
        return one is other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - only NaN differs from itself


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= _MOST_DIGITS else text


def _broken(text: str) -> float | str:
    number = float(text)
    if math.isinf(number) or (number == 0 and _NOT_ZERO.match(text)):
        return text
    return number


def _scalar_text(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in (int, float):
        return repr(value)
    message = f"{type(value).__qualname__} is not a plain value"
    raise TypeError(message)


def _stands_plain(text: str) -> bool:
    return _PLAIN_TEXT.fullmatch(text) is not None and scalar(text) is text
