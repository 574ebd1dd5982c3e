"""The value of plain text without a declared type, and the text of a value that reads back the same.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen
from stoker.core.text import lazy_pattern

_DIGITS = r"[0-9](?:_?[0-9])*"
_NUMBER = lazy_pattern(rf"[+-]?(?:(?:0|[1-9](?:_?[0-9])*)(\.(?:{_DIGITS})?)?|(\.{_DIGITS}))([eE][+-]?{_DIGITS})?")
_NOT_ZERO = lazy_pattern(r"[^eE]*[1-9]")
_NUMBER_STARTS = frozenset("0123456789+-.")
_WORDS: dict[str, Any] = {
    "null": None, "true": True, "false": False,
    "nan": math.nan, "+nan": math.nan, "-nan": math.nan,
    "inf": math.inf, "+inf": math.inf, "-inf": -math.inf,
}  # fmt: skip
_LONGEST_WORD = 5
_MOST_DIGITS = 2000

# Valid without quotes wherever a value is, inside a list or a map, too.
_PLAIN_TEXT = lazy_pattern(r"[A-Za-z0-9_./@%+-](?:[A-Za-z0-9_./@%+ -]*[A-Za-z0-9_./@%+-])?", re.ASCII)


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
    """Format a plain value so that the grammar of overrides reads exactly this value again."""
    if type(value) is str:
        return value if _stands_plain(value) else quoted(value)
    if type(value) in (list, tuple):
        return f"[{','.join(map(text_of, value))}]"
    if type(value) is dict:
        return f"{{{','.join(f'{text_of(str(key))}:{text_of(item)}' for key, item in value.items())}}}"
    return _scalar_text(value)


def fill_text(value: Any) -> str:
    """Format a plain value as a program's argument: text as it is, numbers in their shortest exact form."""
    return value if type(value) is str else text_of(value)


def quoted(text: str) -> str:
    """Put text in quotes, with escapes: double ones, which fit inside a shell's single ones."""
    quote = "'" if '"' in text and "'" not in text else '"'
    # A backslash has a meaning only before the quote, so only those at a part's end are doubled.
    parts = text.split(quote)
    return quote + f"\\{quote}".join(part + "\\" * (len(part) - len(part.rstrip("\\"))) for part in parts) + quote


def same(one: Any, other: Any) -> bool:
    """Return True if two plain values are equal: 1 is 1.0, but neither is true; NaN is NaN."""
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


# Nested plain maps and lists, walked and changed by path. Changed parts are copied; the rest is shared.

ABSENT: Final[Any] = object()
"""The value of a path that does not exist."""


def step_into(value: Any, step: str) -> Any:
    """Return the value of one step of a path: a key of a map, an index of a list, or `ABSENT`."""
    if type(value) is dict:
        return value.get(step, ABSENT)
    if type(value) in (list, tuple) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
        return value[int(step)]
    return ABSENT


def found(value: Any, steps: Sequence[str]) -> Any:
    """Return the value of a path, or `ABSENT`."""
    for step in steps:
        value = step_into(value, step)
        if value is ABSENT:
            break
    return value


def with_value(tree: Any, steps: Sequence[str], value: Any) -> Any:
    """Return a tree with one value set; a value in the way of a branch is replaced by one."""
    if not steps:
        return value
    copied = dict(tree) if type(tree) is dict else {}
    copied[steps[0]] = with_value(copied.get(steps[0]), steps[1:], value)
    return copied


def without(tree: dict[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """Return a tree without one leaf or branch; a branch that becomes empty is removed, too."""
    step = steps[0]
    if step not in tree:
        return tree
    left: Any = ABSENT
    if len(steps) > 1:
        inner = tree[step]
        left = without(inner, steps[1:]) if type(inner) is dict else inner
        if left is inner:
            return tree
        left = left or ABSENT
    return {key: left if key == step else value for key, value in tree.items() if key != step or left is not ABSENT}


def replaced(value: Any, steps: Sequence[str], new: Any) -> Any:
    """Return a value with one item inside it replaced, or removed (`ABSENT`).

    A map may get a new key; a list keeps its length unless an item is removed. `ABSENT` if there is no such place.
    """
    if not steps:
        return new
    inner = step_into(value, steps[0])
    if inner is ABSENT and (type(value) is not dict or len(steps) > 1):
        return ABSENT
    item = replaced(inner, steps[1:], new)
    if item is ABSENT and len(steps) > 1:
        return ABSENT
    if type(value) is dict:
        return {key: one for key, one in {**value, steps[0]: item}.items() if one is not ABSENT}
    index = int(steps[0])
    return [one for one in (*value[:index], item, *value[index + 1 :]) if one is not ABSENT]


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two maps, the second winning; lists and single values replace each other."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if type(value) is dict and type(inner) is dict else value
    return result


def refers(value: object) -> bool:
    """Return True if there is a reference, or an escaped one, anywhere in a value."""
    if type(value) is str:
        return "${" in value
    if type(value) is dict:
        return any(map(refers, value.values()))
    return type(value) in (list, tuple) and any(map(refers, value))  # type: ignore[call-overload]  # it is one of them


def leaf_paths(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted paths of everything except maps with content."""
    paths = []
    for key, value in tree.items():
        paths += leaf_paths(value, f"{prefix}{key}.") if type(value) is dict and value else [prefix + key]
    return paths


def extent(value: Any) -> tuple[int, int]:
    """Count the values in a tree, and its levels."""
    if type(value) is dict:
        items = list(value.values())
    elif type(value) in (list, tuple):
        items = list(value)
    else:
        return 1, 0
    extents = [extent(item) for item in items]
    return 1 + sum(weight for weight, _ in extents), 1 + max((depth for _, depth in extents), default=0)


def copied(value: Any) -> Any:
    """Return a copy that shares no map and no list with the original."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if type(value) is list else value


# The declared leaves of a configuration, given by the owner of the declaration.


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
"""The default of a required leaf."""


@frozen
class DeclaredLeaf:
    """One leaf that may be set."""

    path: str
    """Dotted."""
    read: Callable[[str], Any]
    """Parses typed text; `ValueError` names what would be right."""
    check: Callable[[Any], Any]
    """Returns the normal form of a value from a file; `ValueError` if it is invalid."""
    says: str
    """The type, named for people."""
    default: Any = NOTHING
    is_runtime: bool = False
    """Not part of the identity: threads, verbosity."""
    is_list: bool = False
    """One value of it is a list."""
    aliases: tuple[str, ...] = ()
    """Other words for it, for hints."""
    faults_in: Callable[[Any], Sequence[Diagnostic]] | None = None
    """Returns every fault in a value of several parts, each with its dotted place in it; None: it has one at most."""

    @property
    def is_required(self) -> bool:
        return self.default is NOTHING


@frozen
class Schema:
    """All declared leaves."""

    leaves: Mapping[str, DeclaredLeaf]
    is_open: bool = False
    """Undeclared keys are accepted: the parameters of a user's program."""
