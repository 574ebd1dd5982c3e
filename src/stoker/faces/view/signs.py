"""The signs before lines, for terminals that know many and for those that know few."""

from __future__ import annotations

from stoker.model.frozen import frozen


@frozen
class Signs:
    """The sign before each line; every line also says in words what the sign says."""

    ran: str
    hit: str
    failed: str
    left: str
    warned: str
    again: str


UNICODE = Signs(ran="✓", hit="=", failed="✗", left="-", warned="!", again="~")
ASCII = Signs(ran="+", hit="=", failed="x", left="-", warned="!", again="~")


def with_signs(text: str, signs: Signs) -> str:
    """Give a text that was written where nobody knows the terminal, with the signs that it knows."""
    return text.replace(UNICODE.ran, signs.ran).replace(UNICODE.failed, signs.failed)
