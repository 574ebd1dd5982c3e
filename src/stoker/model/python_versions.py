"""Does a Python's version fit what is wished for: `3.11`, `3.11.7`, `>=3.10,<3.13`?

Only what such wishes say, so that nobody has to load a library for it: of interpreters, numbers are
all that tells them apart.
"""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+")
_PART = re.compile(r"(===|==|!=|~=|>=|<=|>|<)?\s*(\d+(?:\.\d+){0,3})(\.\*)?")
_PLACES = 3


def fits(version: str, wish: str) -> bool:
    """Say whether a version is wished for; an empty wish is for any, one that can't be read for none."""
    have = _numbers(version)
    return not wish.strip() or all(_fits_part(have, part.strip()) for part in wish.split(","))


def _fits_part(have: tuple[int, ...], part: str) -> bool:
    found = _PART.fullmatch(part)
    if found is None:
        return False
    sign, wanted, is_any = found[1] or "", _numbers(found[2]), bool(found[3])
    begins = have[: len(wanted)] == wanted
    if sign == "~=":
        return _filled(have) >= _filled(wanted) and have[: len(wanted) - 1] == wanted[:-1]
    if sign in ("", "==", "===", "!="):
        # 3.11 alone means any 3.11.
        is_open = is_any or (not sign and len(wanted) < _PLACES)
        return (begins if is_open else _filled(have) == _filled(wanted)) is not (sign == "!=")
    return _compared(sign, _filled(have), _filled(wanted))


def _compared(sign: str, have: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    if sign.startswith(">"):
        return have > wanted or (sign == ">=" and have == wanted)
    return have < wanted or (sign == "<=" and have == wanted)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in _NUMBERS.findall(text)[:_PLACES])


def _filled(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, *([0] * (_PLACES - len(numbers))))
