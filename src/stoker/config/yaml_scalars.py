"""What a plain word of YAML stands for, by the core schema of YAML 1.2.

`on`, `off`, `yes` and `no` are text, and so are dates, `1_000` and `12:30`; `0o17` is octal, `017` is seventeen and
`1e-5` is a number. Whatever is in quotes is text.
"""

from __future__ import annotations

import math
import re
from typing import Any

PREFIX = "tag:yaml.org,2002:"

_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_FINITE_NOT: dict[str, float] = {
    sign + word: value if sign != "-" else -value
    for sign in ("", "+", "-")
    for word, value in ((".inf", math.inf), (".Inf", math.inf), (".INF", math.inf))
} | {".nan": math.nan, ".NaN": math.nan, ".NAN": math.nan}
_MOST_DIGITS = 2400
_STARTS = frozenset("+-.0123456789")
_OTHER_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
# A group matches if there is a point or an exponent.
_NUMBER = re.compile(r"[-+]?(?:(\.[0-9]+)|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def read_plain(text: str) -> Any:
    """Give the value of a plain scalar; `ValueError` if it is a number that can't be held."""
    if text[:1] in _STARTS and text:
        number = _NUMBER.fullmatch(text)
        if number is not None:
            return _whole(text, 10) if number.lastindex is None else _finite(text)
        if text in _FINITE_NOT:
            return _FINITE_NOT[text]
        if _OTHER_INT.fullmatch(text):
            return _whole(text[2:], 8 if text[1] == "o" else 16)
        return text
    return _WORDS.get(text, text)


def read_tagged(tag: str, text: str) -> Any:
    """Give the value of a scalar with a core tag; `ValueError` if it does not fit it, or there is no such tag."""
    kind = tag.removeprefix(PREFIX)
    if kind in ("str", "!"):
        return text
    if kind not in _KINDS or not tag.startswith(PREFIX):
        message = f"the tag {_spell(tag)} is not allowed"
        raise ValueError(message)
    value = read_plain(text)
    if kind == "float" and type(value) is int:
        return float(value)
    if type(value) is not _KINDS[kind]:
        message = f"{text!r} is not what its tag {_spell(tag)} says"
        raise ValueError(message)
    return value


def refuse_tag(tag: str, kind: str) -> None:
    """Raise `ValueError` if a map or a list has a tag other than its own."""
    if tag not in ("!", PREFIX + kind):
        message = f"the tag {_spell(tag)} is not allowed"
        raise ValueError(message)


def _whole(digits: str, base: int) -> int:
    # No limit on a machine's memory: Python refuses to print what is much larger, and so does all that we write.
    if len(digits) > _MOST_DIGITS:
        message = f"a whole number of {len(digits)} digits is too large"
        raise ValueError(message)
    return int(digits, base)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        message = f"{text} is more than a number can hold; write .inf if that is meant"
        raise ValueError(message)
    return value


def _spell(tag: str) -> str:
    return "!!" + tag.removeprefix(PREFIX) if tag.startswith(PREFIX) else tag


_KINDS: dict[str, type] = {"null": type(None), "bool": bool, "int": int, "float": float}
