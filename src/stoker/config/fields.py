"""Typed fields of a file's tree: a form declares the keys of a map, and the type of each value.

    GPU = Form("GPU", (Field("uuid", Text(), "its identity", is_required=True), Field("vram_mb", Whole(), "in MiB")))

Reading continues after every fault. Each one points at the wrong value, at the unknown key, or at the map that lacks a
key; it has the key's whole path, what is there, and what would be right. Values without a fault are returned; defaults
are applied by the caller. Combinations of fields are not checked here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from stoker.config.config_file import read_config
from stoker.config.positions import LocatedValue, SourceFile, fault_at
from stoker.core.errors import Diagnostic, InvalidInput
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.machine import PLATFORM_RULE, is_platform
from stoker.core.text import did_you_mean, parse_size, whole_number

MOST_SHOWN: Final = 100
WRONG: Final = object()
"""In place of a refused value; the fault is noted."""
PLAIN: Final = (str, int, float, bool, dict, list, type(None))
"""Types of values. Others, such as a date of TOML, were refused when the file was read."""

# For these, equal means the same. Not so floats: 0.0 equals -0.0.
_EXACT = frozenset({str, int, bool})
# Immutable values may be returned twice.
_LASTING = frozenset({str, int, bool, float, tuple})
_LONGEST_SHOWN = 60
_LINE = re.compile(r":(\d+):\d+(?:: |$)")
_MOST_BITS = 128


class FileDiagnostics:
    """One file while it is read: its source, and its faults. The first are kept, all are counted."""

    def __init__(self, source: SourceFile, faults: Iterable[Diagnostic] = ()) -> None:
        self.source = source
        self.faults = list(faults)
        self.count = len(self.faults)

    @property
    def is_full(self) -> bool:
        """True if a further fault would only be counted; then no hint is needed."""
        return len(self.faults) >= MOST_SHOWN

    def refuse(self, node: LocatedValue, key: str, message: str, hint: str = "", *, at_key: bool = False) -> Any:
        """Note a fault at a value, or at its key; return `WRONG`."""
        self.count += 1
        if not self.is_full:
            origin = self.source.key_of(node) if at_key else self.source.value_of(node)
            self.faults.append(fault_at(origin, message, hint=hint, key=key))
        return WRONG

    def add(self, faults: Iterable[Diagnostic]) -> None:
        """Note faults from another check."""
        for fault in faults:
            self.count += 1
            if not self.is_full:
                self.faults.append(fault)

    def sort(self) -> None:
        """Sort the faults by their place in the file."""
        self.faults.sort(key=_line_of)

    def raise_any(self, kind: type[InvalidInput]) -> None:
        """Raise an error with the faults, if there are any. A single one is the message itself."""
        if not self.count:
            return
        message = str(self.faults[0]) if self.count == 1 else f"{self.source.name} has {self.count:,} errors"
        shown = tuple(self.faults[:MOST_SHOWN])
        more = self.count - len(shown)
        hint = f"and {more:,} more; fix these and check again" if more else ""
        raise kind(message, faults=shown, hint=hint, file=self.source.name, count=self.count)


def _line_of(fault: Diagnostic) -> int:
    found = _LINE.search(fault.where)
    return int(found[1]) if found else 0


class FieldType(Protocol):
    """What a value has to be."""

    @property
    def says(self) -> str:
        """What is valid, in words: `a whole number from 1`."""

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        """Return the value, or `WRONG` after noting the fault."""


@frozen_by_position
class Field:
    """One key of a map."""

    name: str
    kind: FieldType
    help: str
    is_required: bool = False
    may_be_null: bool = False
    """True if `null` means the same as a missing key. Only for fields without a default."""
    sets: str = ""
    """Of a job in a manifest: the field of a `JobSpec` that it sets."""


class ParsedMap:
    """A map that was read: the valid values by key, and the places of it and of each of them."""

    __slots__ = ("key", "node", "values")

    def __init__(self, node: LocatedValue, key: str, values: dict[str, Any]) -> None:
        self.node = node
        self.key = key
        self.values = values

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def at(self, name: str) -> LocatedValue:
        """Return the place of a value; that of the map if it has none."""
        found: LocatedValue | None = self.node.value.get(name)
        return self.node if found is None else found

    def says(self, name: str) -> bool:
        """Return True if the map has this key, with a valid value or not."""
        return name in self.node.value


class MapSchema:
    """A map with known keys. `meant` maps names that people use elsewhere to the right keys."""

    def __init__(self, noun: str, fields: tuple[Field, ...], *, meant: Mapping[str, str] | None = None) -> None:
        self.noun = noun
        self.meant = meant or {}
        self.fields = fields
        self._by_name = {field.name: field for field in fields}
        self._required = [field for field in fields if field.is_required]
        self._read_last: dict[str, tuple[type, Any, Any]] = {}
        """By name, a valid immutable value, and its reading: ten thousand maps have the same."""

    @property
    def says(self) -> str:
        return f"a {self.noun}: a map of keys and values"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) is not dict:
            needs = ", ".join(field.name for field in self._required)
            hint = f"a map with {needs}" if needs else ""
            return reading.refuse(node, key, f"{shown(node.value)} is not {self.says}", hint)
        values: dict[str, Any] = {}
        inside = f"{key}." if key else ""
        for name, item in node.value.items():
            last = self._read_last.get(name)
            if last is not None and type(item.value) is last[0] and item.value == last[1]:
                values[name] = last[2]
                continue
            field = self._by_name.get(name)
            if field is None:
                self._refuse_unknown(item, name, key, reading)
            elif item.value is not None:
                value = self._read_field(field, item, inside + name, reading)
                if value is not WRONG:
                    values[name] = value
            elif not field.may_be_null:
                reading.refuse(item, inside + name, "has no value", f"it is {field.kind.says}", at_key=True)
        for field in self._required:
            if field.name not in node.value:
                reading.refuse(node, key, f"{field.name} is missing", f"{field.name}: {field.help}")
        return ParsedMap(node, key, values)

    def _read_field(self, field: Field, item: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(item.value) not in PLAIN:
            return WRONG
        value = field.kind.read(item, key, reading)
        if type(item.value) in _EXACT and type(value) in _LASTING:
            self._read_last[field.name] = (type(item.value), item.value, value)
        return value

    def _refuse_unknown(self, item: LocatedValue, name: str, key: str, reading: FileDiagnostics) -> None:
        hint = ""
        if not reading.is_full:
            right = self.meant.get(name)
            hint = f"did you mean {right!r}? {right}: {self._by_name[right].help}" if right else ""
            hint = hint or did_you_mean(name, self._by_name) or f"known: {', '.join(self._by_name)}"
        reading.refuse(item, below(key, name), f"a {self.noun} has no key {shown(name)}", hint, at_key=True)


def below(key: str, name: str) -> str:
    """Return the path of a key from outside, below another."""
    step = name if name.isprintable() and len(name) <= _LONGEST_SHOWN else shown(name)
    return f"{key}.{step}" if key else step


def shown(value: object) -> str:
    """Return a value for a message: short, in one line, as in a file."""
    if type(value) is dict or type(value) is list:
        return f"{'an empty' if not value else 'a'} {'map' if type(value) is dict else 'list'}"
    if value is None or type(value) is bool:
        return str(value).lower().replace("none", "null")
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value[: 2 * _LONGEST_SHOWN]) if type(value) is str else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


# The types of values of a field: text, flags, choices, numbers, lists and maps.
#
# Strict, so that a file has one meaning: a number in quotes is text, `yes` is text. Whole numbers are read by the rule
# of every schema (`core.text.whole_number`). A value that is nearly right gets a hint that can be typed.

_LONGEST_TEXT = 10_000
_LONGEST_SIZE = 40
_MOST = 2**31 - 1
_FLAGS = {"yes": "true", "on": "true", "true": "true", "1": "true"} | dict.fromkeys(
    ("no", "off", "false", "0"), "false"
)


class Text:
    """Text, perhaps of a certain form."""

    def __init__(
        self,
        says: str = "text",
        *,
        fits: Callable[[str], bool] | None = None,
        hint: str | Callable[[str], str] = "",
        may_be_empty: bool = False,
    ) -> None:
        """Make it; `hint` is for texts that do not fit, or returns it for one of them."""
        self.says = says
        self._fits = fits
        self._hint = hint
        self._may_be_empty = may_be_empty

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        text = node.value
        if type(text) is not str:
            hint = "put it in quotes" if type(text) in (int, float, bool) else ""
            return reading.refuse(node, key, f"{shown(text)} is not text", hint)
        if not text and not self._may_be_empty:
            return reading.refuse(node, key, "is empty", f"it is {self.says}")
        if len(text) > _LONGEST_TEXT or not _can_be_written(text):
            return reading.refuse(node, key, f"{shown(text)} has characters that can't be printed")
        if self._fits is not None and not self._fits(text):
            hint = self._hint if isinstance(self._hint, str) else self._hint(text)
            return reading.refuse(node, key, f"{shown(text)} is not {self.says}", hint)
        return text


class Flag:
    """True or false."""

    says = "true or false"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) is bool:
            return node.value
        word = str(node.value).lower() if type(node.value) in (str, int) else ""
        meant = _FLAGS.get(word)
        hint = f"write {meant}" if meant else f"it is {self.says}"
        return reading.refuse(node, key, f"{shown(node.value)} is neither true nor false", hint)


class EnumField:
    """One of some words, all of them in lower case."""

    def __init__(self, words: Iterable[StrEnum]) -> None:
        self._words = {str(word): word for word in words}
        self.says = " or ".join(self._words)

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        found = self._words.get(node.value) if type(node.value) is str else None
        if found is not None:
            return found
        hint = ""
        if type(node.value) is str and not reading.is_full:
            hint = did_you_mean(node.value.lower(), self._words)
        return reading.refuse(node, key, f"{shown(node.value)} is not {self.says}", hint)


@frozen
class IntegerField:
    """A whole number within bounds."""

    least: int = 0
    most: int = _MOST
    let_pass: int | None = None
    """A value beyond the bounds that the caller refuses with a better message."""
    unit_bytes: int = 0
    """Bytes per unit, if it counts bytes: a size with a suffix gets a hint."""

    @property
    def says(self) -> str:
        unit = " of MiB" if self.unit_bytes else ""
        least = f" from {self.least}" if self.least > -_MOST else ""
        return f"a whole number{unit}{least}" + (f" to {self.most}" if self.most < _MOST else "")

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        value = whole_number(node.value)
        if value is None:
            hint = _whole_hint(node.value, self.unit_bytes) or f"it is {self.says}"
            return reading.refuse(node, key, f"{shown(node.value)} is not a whole number", hint)
        if self.least <= value <= self.most or value == self.let_pass:
            return value
        bound = f"less than {self.least}" if value < self.least else f"more than {self.most}"
        return reading.refuse(node, key, f"{shown(value)} is {bound}", f"it is {self.says}")


@frozen
class NumberField:
    """A finite number, whole or not."""

    most: float = 1e12
    unit_bytes: int = 0
    least: float = 0.0

    @property
    def says(self) -> str:
        return f"a number{' of GiB' if self.unit_bytes else ''} from {self.least:g}"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        value = node.value
        if type(value) not in (int, float):
            hint = _number_hint(value, self.unit_bytes) or f"it is {self.says}"
            return reading.refuse(node, key, f"{shown(value)} is not a number", hint)
        if not self.least <= value <= self.most:
            is_odd = type(value) is float and not math.isfinite(value)
            bound = f"less than {self.least:g}" if value < self.least else f"more than {self.most:g}"
            bound = "not finite" if is_odd else bound
            return reading.refuse(node, key, f"{shown(value)} is {bound}", f"it is {self.says}")
        return float(value)


@frozen_by_position
class ListOf:
    """A list whose items are all of one kind; read, it is a tuple of those that are right."""

    kind: FieldType
    is_set: bool = False
    """True if a repeated item is a fault."""

    @property
    def says(self) -> str:
        return f"a list, each item {self.kind.says}"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) is not list:
            hint = f"in a list: [{shown(node.value)}]" if type(node.value) in (str, int) else f"it is {self.says}"
            return reading.refuse(node, key, f"{shown(node.value)} is not a list", hint)
        items: list[Any] = []
        seen: set[Any] = set()
        for index, item in enumerate(node.value):
            inside = f"{key}[{index}]"
            if type(item.value) not in PLAIN:
                continue
            value = self.kind.read(item, inside, reading)
            if value is WRONG:
                continue
            if self.is_set:
                if value in seen:
                    reading.refuse(item, inside, f"{shown(value)} is in the list twice")
                seen.add(value)
            items.append(value)
        return tuple(items)


@frozen_by_position
class MapOf:
    """A map with keys of the user's own, all values of one kind."""

    kind: FieldType
    names: FieldType

    @property
    def says(self) -> str:
        return f"a map; each key {self.names.says}, each value {self.kind.says}"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) is not dict:
            return reading.refuse(node, key, f"{shown(node.value)} is not a map", f"it is {self.says}")
        values = {}
        for name, item in node.value.items():
            at_key = LocatedValue(name, item.key_line, item.key_column, item.key_line, item.key_column)
            inside = below(key, name)
            is_named = self.names.read(at_key, inside, reading) is not WRONG
            value = self.kind.read(item, inside, reading) if type(item.value) in PLAIN else WRONG
            if is_named and value is not WRONG:
                values[name] = value
        return values


@frozen_by_position
class Anything:
    """Any value of these types, as in the file: without places, maps and lists as they are."""

    types: tuple[type, ...]
    says: str

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) not in self.types:
            return reading.refuse(node, key, f"{shown(node.value)} is not {self.says}")
        return node.plain()


def _can_be_written(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _whole_hint(value: object, unit_bytes: int) -> str:
    if type(value) is not str:
        return ""
    if value.strip().isdecimal():
        return "write it without quotes"
    size_bytes = _size(value) if unit_bytes else 0
    return f"it counts MiB: write {size_bytes // unit_bytes}" if size_bytes >= unit_bytes > 0 else ""


def _number_hint(value: object, unit_bytes: int) -> str:
    if type(value) is not str:
        return ""
    size_bytes = _size(value) if unit_bytes else 0
    if size_bytes and not value.strip().isdecimal():
        return f"it counts GiB: write {size_bytes / unit_bytes:g}"
    try:
        is_number = math.isfinite(float(value[:_LONGEST_SIZE]))
    except ValueError:
        return ""
    return "write it without quotes" if is_number else ""


def _size(text: str) -> int:
    try:
        return parse_size(text[:_LONGEST_SIZE])
    except ValueError:
        return 0


ANY = ""
"""The key for platforms without their own; in a file it is called `default`."""
_DEFAULT = "default"
_VERSION = re.compile(r"(?:(?:[<>=!~]=?|===)\s*)?\d+(?:\.\d+){0,2}(?:\.\*)?")


@frozen_by_position
class ByPlatform:
    """One value, or a map from platforms to values; read, it is always a map."""

    kind: FieldType

    @property
    def says(self) -> str:
        return f"{self.kind.says}, or a map of platforms and such"

    def read(self, node: LocatedValue, key: str, reading: FileDiagnostics) -> Any:
        if type(node.value) is not dict:
            value = self.kind.read(node, key, reading)
            return WRONG if value is WRONG else {ANY: value}
        if not node.value:
            return reading.refuse(node, key, "names no platform", f"{_DEFAULT}, or one {PLATFORM_RULE}")
        values = {}
        for name, item in node.value.items():
            inside = below(key, name)
            is_named = name == _DEFAULT or is_platform(name)
            if not is_named:
                hint = f"{PLATFORM_RULE}; {_DEFAULT} for all others"
                reading.refuse(item, inside, f"{shown(name)} is no platform", hint, at_key=True)
            value = self.kind.read(item, inside, reading) if type(item.value) in PLAIN else WRONG
            if is_named and value is not WRONG:
                values[ANY if name == _DEFAULT else name] = value
        return values


def is_version(text: str) -> bool:
    """Return True if a text requires a version of Python, `3.11` or `>=3.10,<3.13`, and is not a file."""
    return all(_VERSION.fullmatch(part.strip()) for part in text.split(","))


T = TypeVar("T")

MOST_DECLARED: Final = 500_000
"""Maximum number of values in one file, each alias counted with its content."""


def read_as(
    what: str,
    name: str,
    path: str,
    make: Callable[[FileDiagnostics, LocatedValue | None], T],
    data: bytes | None = None,
) -> T:
    """Read a cluster file or a manifest, and build its object from its tree.

    With its `data` no file is read, and all places are known from the start.

    `make` raises `InvalidInput`. It gets no tree if the file can't be read to its end; the faults have the reason. A
    file that does not exist, may not be read or is too large is an error at once.

    They may be larger than a configuration: ten thousand machines with two devices each are 350,000 values of YAML.
    """
    try:
        return make(*_opened(what, name, path, data, is_placed=data is not None))
    except InvalidInput:
        if not path.endswith(".toml") or data is not None:
            raise
    # Now there is a place to point at.
    return make(*_opened(what, name, path, data, is_placed=True))


def _opened(
    what: str, name: str, path: str, data: bytes | None, *, is_placed: bool
) -> tuple[FileDiagnostics, LocatedValue | None]:
    faults: list[Diagnostic] = []
    source, tree = read_config(name, path, faults, what=what, most_values=MOST_DECLARED, is_placed=is_placed, data=data)
    is_torn = bool(faults) and not source.text
    return FileDiagnostics(source, faults), None if is_torn else tree
