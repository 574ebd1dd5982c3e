"""JSON as every file and stream of ours writes it: strict, compact, non-finite numbers tagged; and places in JSON.

Plain JSON has no NaN and no infinities. Here they are `{"$float": "nan" | "inf" | "-inf"}`; a key of a real map
that begins with `$` is written with one more `$`, so reading gives back exactly what was written.
This is for people and programs to read; identity never depends on it (see `core.digests`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from stoker.core.errors import BadInput
from stoker.core.frozen import changeable, fields_of, fresh, frozen, frozen_by_position
from stoker.core.text import lazy_pattern, whole_number

_TAGS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NESTED = (dict, list, tuple)
_FLOAT_DIGITS = 308
"""As many digits every float holds."""
_MOST_DIGITS = 4300
_SURROGATE = lazy_pattern("[\ud800-\udfff]")


def dumps(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Write a value as JSON text without spaces (unless indented); never emits NaN or Infinity literals."""
    try:
        # The plain encoder is several times faster, and nearly everything is finite and untagged.
        text = _write(value, indent, sort_keys=sort_keys)
    except ValueError:
        text = ""
    if text and '"$' not in text:
        return text
    return _write(_tag(value), indent, sort_keys=sort_keys)


def loads(text: str | bytes) -> Any:
    """Read what `dumps` wrote. Raises `ValueError` on anything else, NaN literals included."""
    if isinstance(text, bytes):
        text = text.decode()
    try:
        return (_TAGGED if '"$' in text else _PLAIN).decode(text)
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None


def loads_strict(data: bytes, *, most_bytes: int, most_levels: int = 64) -> Any:
    """Read JSON that others may have edited, so that two readers can't read it in two ways.

    Raises `ValueError` for what `loads` refuses, for text that is not UTF-8, a key that an object has twice, a number
    that no float holds (1e400, or as many digits), more than `most_bytes`, and nesting beyond `most_levels`.
    """
    if len(data) > most_bytes:
        message = f"more than {most_bytes:,} bytes"
        raise ValueError(message)
    try:
        value = _STRICT.decode(data.decode())
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None
    level: list[Any] = [value]
    for _ in range(most_levels):
        level = [item for one in level if isinstance(one, dict | list) for item in _items(one)]
        if not level:
            return value
    message = f"nested deeper than {most_levels} levels"
    raise ValueError(message)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _unique(pairs: list[tuple[str, Any]]) -> Any:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        message = f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice"
        raise ValueError(message)
    return _untag(value) if any(key.startswith("$") for key in value) else value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        message = f"{text[:40]} is beyond the largest number"
        raise ValueError(message)
    return value


def _whole(text: str) -> int:
    if len(text) > _FLOAT_DIGITS:
        if len(text) > _MOST_DIGITS:
            # More than Python reads.
            message = f"a number of {len(text):,} digits is too long"
            raise ValueError(message)
        _finite(text)
    return int(text)


def as_float(number: float) -> float:
    """Return a number as a float: an infinity for a whole number that no float holds."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _write(value: object, indent: int | None, *, sort_keys: bool) -> str:
    if indent is None and not sort_keys:
        text = _COMPACT.encode(value)
    elif indent is not None and not sort_keys and _is_flat(value):
        text = _write_flat(value, indent)
    else:
        separators = (",", ":") if indent is None else (",", ": ")
        text = json.dumps(
            value, allow_nan=False, ensure_ascii=False, separators=separators, indent=indent, sort_keys=sort_keys
        )
    # A file name that is not UTF-8 reaches us with lone surrogates, and those have no bytes to be written as.
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def _is_flat(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and not any(isinstance(item, _NESTED) for item in value.values())


def _write_flat(value: object, indent: int) -> str:
    """Write a map of plain values as `json.dumps` indents it. That has no quick way to indent; without, it has one."""
    line = "\n" + " " * indent
    body = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(f",{line}", ": ")).encode(value)
    return f"{{{line}{body[1:-1]}\n}}"


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _tag(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, dict):
        return {_tag_key(key): _tag(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tag(item) for item in value]
    return value


def _tag_key(key: object) -> object:
    return f"${key}" if isinstance(key, str) and key.startswith("$") else key


def _untag(value: dict[str, Any]) -> Any:
    if len(value) == 1 and "$float" in value:
        return _untag_float(value["$float"])
    return {_untag_key(key): item for key, item in value.items()}


def _untag_float(name: object) -> float:
    if not isinstance(name, str) or name not in _TAGS:
        message = f"$float is nan, inf or -inf, not {name!r}"
        raise ValueError(message)
    return _TAGS[name]


def _untag_key(key: str) -> str:
    if not key.startswith("$"):
        return key
    if not key.startswith("$$"):
        message = f"{key!r} is not a tag"
        raise ValueError(message)
    return key[1:]


def _refuse_constant(name: str) -> Any:
    message = f"{name} is not JSON"
    raise ValueError(message)


# Built once: the module's functions make a new coder for every call that is not the default one.
# Not looking for circles saves a third of the time; a value with one ends in `RecursionError` either way.
_COMPACT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":"))
_PLAIN = json.JSONDecoder(parse_constant=_refuse_constant)
_TAGGED = json.JSONDecoder(parse_constant=_refuse_constant, object_hook=_untag)
_STRICT = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_unique
)


MOST_WHOLE = 1 << 60
MOST_SECONDS = 1e15
MOST_ITEMS = 1_000_000
LONGEST_TEXT = 4000

T = TypeVar("T")


@frozen
class ReadRules:
    """How frozen objects are read from JSON: by their annotations, checked and bounded.

    Fields may be numbers, texts, flags, enums of texts, other frozen classes, tuples and maps of these, or `None`.
    Unknown fields are passed over, since a newer program may send some. A field that is absent or null has its default.
    """

    bounds: Mapping[str, tuple[int, int]]
    """By a field's name, the least and the most that its whole number, or the length of its list, may be."""
    null_is_missing: bool = False
    """A field that is null counts as not given; otherwise it is refused, unless its type allows none."""


def to_plain(value: object) -> Any:
    """Return a frozen object, or a tuple of these, as JSON has it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    return {name: to_plain(one) for name, one in fields_of(value).items()}


def from_plain(kind: type[T], plain: object, where: str, rules: ReadRules) -> T:
    """Return the object of a frozen class that JSON describes.

    Raises:
        BadInput: a field is missing, of another type or beyond its bounds; the message names it.

    """
    if not isinstance(plain, Mapping):
        raise _wrong(where, "an object", plain)
    made: Any = kind
    fields = {
        name: _read(hint, plain[name], f"{where}.{name}", name, rules)
        for name, hint in _hints(made).items()
        if name in plain and not (plain[name] is None and rules.null_is_missing)
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


def _read(hint: Any, plain: object, where: str, name: str, rules: ReadRules) -> Any:
    origin = get_origin(hint)
    if origin is UnionType:
        (hint,) = [one for one in get_args(hint) if one is not NoneType]
        return None if plain is None else _read(hint, plain, where, name, rules)
    if origin is tuple:
        return _read_tuple(get_args(hint), plain, where, name, rules)
    if origin is Mapping:
        if not isinstance(plain, dict) or len(plain) > MOST_ITEMS:
            raise _wrong(where, f"an object of at most {MOST_ITEMS} texts", plain)
        key, value = get_args(hint)
        items = {one: "" if text is None else text for one, text in plain.items()}
        return {_read_scalar(key, one, where): _read_scalar(value, text, where) for one, text in items.items()}
    if hint is int:
        least, most = rules.bounds.get(name, (0, MOST_WHOLE))
        number = whole_number(plain)
        if number is None or not least <= number <= most:
            raise _wrong(where, f"a whole number from {least} to {most}", plain)
        return number
    if hint in (bool, float, str) or issubclass(hint, StrEnum):
        return _read_scalar(hint, plain, where)
    return from_plain(hint, plain, where, rules)


def _read_tuple(hints: tuple[Any, ...], plain: object, where: str, name: str, rules: ReadRules) -> tuple[Any, ...]:
    is_any_length = len(hints) == 2 and hints[1] is Ellipsis
    _, most = rules.bounds.get(name, (0, MOST_ITEMS))
    if not isinstance(plain, list | tuple) or len(plain) > most or not (is_any_length or len(plain) == len(hints)):
        length = f"at most {most}" if is_any_length else f"{len(hints)}"
        raise _wrong(where, f"a list of {length}", plain)
    kinds = [hints[0]] * len(plain) if is_any_length else hints
    pairs = enumerate(zip(kinds, plain, strict=True))
    # A bound of a list is of its length, and not of the numbers in it.
    return tuple([_read(kind, one, f"{where}[{at}]", "", rules) for at, (kind, one) in pairs])


def _read_scalar(kind: Any, plain: object, where: str) -> Any:
    """Return a flag, a number of seconds and the like, a text, or an enum of texts."""
    if kind is bool:
        if not isinstance(plain, bool):
            raise _wrong(where, "true or false", plain)
        return plain
    if kind is float:
        is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
        if not is_number or not math.isfinite(plain) or abs(plain) > MOST_SECONDS:  # type: ignore[arg-type]  # a number
            raise _wrong(where, f"a number from {-MOST_SECONDS:g} to {MOST_SECONDS:g}", plain)
        return float(plain)  # type: ignore[arg-type]  # a number
    if not isinstance(plain, str) or len(plain) > LONGEST_TEXT:
        raise _wrong(where, f"a text of at most {LONGEST_TEXT} characters", plain)
    try:
        return kind(plain)
    except ValueError:
        raise _wrong(where, f"one of {', '.join(kind)}", plain) from None


def _wrong(where: str, wanted: str, plain: object) -> BadInput:
    shown = repr(plain) if isinstance(plain, str | int | float | bool | None) else type(plain).__name__
    return BadInput(f"{where}: {wanted}, not {shown[:60]}")


# Where things stand in a JSON text: the line of every key and of every item of a list, and keys given twice.
#
# For messages only, about text that is known to be JSON: the values themselves are read elsewhere.


Place = tuple[str | int, ...]
"""Keys and positions from the outside in: `("nodes", "load", "args")`, `("edges", 3)`."""

# Strings are taken whole, so that a brace inside one is no brace; numbers and words matter only by where they stand.
_WORD = lazy_pattern(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')


@frozen_by_position
class JsonPlaces:
    """Lines by place, the first one counting from 1."""

    lines: dict[Place, int]
    repeated: list[tuple[Place, int]]
    """Keys that their object already had, with the line where they stand again."""

    def line_of(self, place: Place) -> int | None:
        """Return the line of a place, or of what is around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def has_repeated_keys(text: str) -> bool:
    """Return whether any object of a JSON text has a key twice; reading would keep only the last one."""
    found = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    try:
        json.JSONDecoder(object_pairs_hook=look).decode(text)
    except RecursionError:
        # Nested so deeply that it could only just be read; the scan does not recurse, and will know.
        return True
    return found


@changeable
class _Open:
    """An object or a list that the scan is inside of."""

    is_object: bool
    key: str = ""
    position: int = 0
    awaits_key: bool = True
    keys: set[str] = fresh(factory=set)

    @property
    def step(self) -> str | int:
        return self.key if self.is_object else self.position


def find_places(text: str) -> JsonPlaces:
    """Scan a JSON text."""
    places = JsonPlaces({}, [])
    stack: list[_Open] = []
    line = 1
    for match in _WORD.finditer(text):
        word = match[0]
        if word == "\n":
            line += 1
        elif word in "}]":
            stack.pop()
        elif word == ",":
            stack[-1].position += 1
            stack[-1].awaits_key = True
        elif word != ":":
            if stack:
                _note(places, stack, word, line)
            if word in "{[":
                stack.append(_Open(is_object=word == "{"))
    return places


def _note(places: JsonPlaces, stack: list[_Open], word: str, line: int) -> None:
    """Note where a key, or an item of a list, begins; the value of a key stands where its key does."""
    top = stack[-1]
    if top.is_object:
        if not top.awaits_key:
            return
        top.awaits_key = False
        top.key = json.loads(word)
    place = tuple(opened.step for opened in stack)
    if top.is_object and top.key in top.keys:
        places.repeated.append((place, line))
    top.keys.add(top.key)
    places.lines.setdefault(place, line)
