"""Frozen objects as plain JSON values, and back: by their annotations, checked and bounded.

Fields may be numbers, texts, flags, enums of texts, other frozen classes, tuples of these, or `None`. Fields that are
not known are passed over; an absent field has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from stoker.core.errors import BadInput
from stoker.core.frozen import fields_of

MOST_WHOLE = 1 << 60
MOST_SECONDS = 1e15
MOST_ITEMS = 1_000_000
LONGEST_TEXT = 4000
_MAY_BE_NEGATIVE = frozenset({"priority"})

T = TypeVar("T")


def to_plain(value: object) -> Any:
    """Return a frozen object, or a tuple of these, as JSON has it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    return {name: to_plain(one) for name, one in fields_of(value).items()}


def from_plain(kind: type[T], said: object, where: str) -> T:
    """Return the object of a frozen class that JSON describes.

    Raises:
        BadInput: a field is missing, of another type or beyond its bounds; the message names it.

    """
    if not isinstance(said, Mapping):
        raise _wrong(where, "an object", said)
    made: Any = kind
    fields = {
        name: _read(hint, said[name], f"{where}.{name}", name) for name, hint in _hints(made).items() if name in said
    }
    try:
        return kind(**fields)
    except TypeError as error:
        message = f"{where}: {error}"
        raise BadInput(message) from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__slots__}


def _read(hint: Any, said: object, where: str, name: str) -> Any:
    origin = get_origin(hint)
    if origin is UnionType:
        options = [one for one in get_args(hint) if one is not NoneType]
        return None if said is None else _read(options[0], said, where, name)
    if origin is tuple:
        return _read_tuple(get_args(hint), said, where, name)
    if hint is int:
        return _whole(said, where, least=-MOST_WHOLE if name in _MAY_BE_NEGATIVE else 0)
    reader = _READERS.get(hint)
    if reader is not None:
        return reader(said, where)
    return _one_of(hint, said, where) if issubclass(hint, StrEnum) else from_plain(hint, said, where)


def _read_tuple(hints: tuple[Any, ...], said: object, where: str, name: str) -> tuple[Any, ...]:
    is_any_length = len(hints) == 2 and hints[1] is Ellipsis
    if not isinstance(said, list | tuple) or len(said) > MOST_ITEMS or not (is_any_length or len(said) == len(hints)):
        length = f"at most {MOST_ITEMS}" if is_any_length else f"{len(hints)}"
        raise _wrong(where, f"a list of {length}", said)
    kinds = [hints[0]] * len(said) if is_any_length else hints
    pairs = enumerate(zip(kinds, said, strict=True))
    return tuple([_read(kind, one, f"{where}[{at}]", name) for at, (kind, one) in pairs])


def _flag(said: object, where: str) -> bool:
    if not isinstance(said, bool):
        raise _wrong(where, "true or false", said)
    return said


def _whole(said: object, where: str, *, least: int) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not least <= said <= MOST_WHOLE:
        raise _wrong(where, f"a whole number from {least} to {MOST_WHOLE}", said)
    return said


def _number(said: object, where: str) -> float:
    if not isinstance(said, int | float) or isinstance(said, bool) or not isfinite(said) or abs(said) > MOST_SECONDS:
        raise _wrong(where, f"a number from {-MOST_SECONDS:g} to {MOST_SECONDS:g}", said)
    return float(said)


def _text(said: object, where: str) -> str:
    if not isinstance(said, str) or len(said) > LONGEST_TEXT:
        raise _wrong(where, f"a text of at most {LONGEST_TEXT} characters", said)
    return said


_READERS: dict[type, Callable[[object, str], Any]] = {bool: _flag, float: _number, str: _text}


def _one_of(kind: type[StrEnum], said: object, where: str) -> StrEnum:
    try:
        return kind(_text(said, where))
    except ValueError:
        raise _wrong(where, f"one of {', '.join(kind)}", said) from None


def _wrong(where: str, wanted: str, said: object) -> BadInput:
    shown = repr(said) if isinstance(said, str | int | float | bool | None) else type(said).__name__
    return BadInput(f"{where}: {wanted}, not {shown[:60]}")
