"""The kinds of values that a field may have: text, flags, choices, numbers, lists and maps.

Strict, so that a file means one thing: a number in quotes is text, 1.0 is no whole number, `yes` is text. A value that
is nearly right gets a hint that can be typed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from stoker.config.fields import PLAIN, WRONG, Kind, Reading, below, shown
from stoker.config.located import Located
from stoker.model.frozen import frozen, frozen_by_position
from stoker.model.suggest import did_you_mean
from stoker.model.units import parse_size

_LONGEST_TEXT = 10_000
_LONGEST_SIZE = 40
_MOST = 2**31 - 1
_EXACT = 2**53
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
        hint: str = "",
        may_be_empty: bool = False,
    ) -> None:
        self.says = says
        self._fits = fits
        self._hint = hint
        self._may_be_empty = may_be_empty

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        text = node.value
        if type(text) is not str:
            hint = "put it in quotes" if type(text) in (int, float, bool) else ""
            return reading.refuse(node, key, f"{shown(text)} is not text", hint)
        if not text and not self._may_be_empty:
            return reading.refuse(node, key, "is empty", f"it is {self.says}")
        if len(text) > _LONGEST_TEXT or not _can_be_written(text):
            return reading.refuse(node, key, f"{shown(text)} is no text that could be shown")
        if self._fits is not None and not self._fits(text):
            return reading.refuse(node, key, f"{shown(text)} is not {self.says}", self._hint)
        return text


class Flag:
    """True or false."""

    says = "true or false"

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        if type(node.value) is bool:
            return node.value
        word = str(node.value).lower() if type(node.value) in (str, int) else ""
        meant = _FLAGS.get(word)
        hint = f"write {meant}" if meant else f"it is {self.says}"
        return reading.refuse(node, key, f"{shown(node.value)} is neither true nor false", hint)


class Choice:
    """One of some words, all of them in lower case."""

    def __init__(self, words: type[StrEnum]) -> None:
        self._words = {str(word): word for word in words}
        self.says = " or ".join(self._words)

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        found = self._words.get(node.value) if type(node.value) is str else None
        if found is not None:
            return found
        hint = ""
        if type(node.value) is str and not reading.is_full:
            hint = did_you_mean(node.value.lower(), self._words)
        return reading.refuse(node, key, f"{shown(node.value)} is not {self.says}", hint)


@frozen
class Whole:
    """A whole number within bounds. 1.0 is not one, and neither is true."""

    least: int = 0
    most: int = _MOST
    let_pass: int | None = None
    """A value beyond the bounds that somebody else refuses, who has more to say about it."""
    unit_bytes: int = 0
    """What one of them is worth, if it counts bytes: a size with a suffix gets a hint."""

    @property
    def says(self) -> str:
        unit = " of MiB" if self.unit_bytes else ""
        least = f" from {self.least}" if self.least > -_MOST else ""
        return f"a whole number{unit}{least}" + (f" to {self.most}" if self.most < _MOST else "")

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        value = node.value
        if type(value) is int and (self.least <= value <= self.most or value == self.let_pass):
            return value
        if type(value) is int:
            bound = f"less than {self.least}" if value < self.least else f"more than {self.most}"
            return reading.refuse(node, key, f"{shown(value)} is {bound}", f"it is {self.says}")
        hint = _whole_hint(value, self.unit_bytes) or f"it is {self.says}"
        return reading.refuse(node, key, f"{shown(value)} is not a whole number", hint)


@frozen
class Number:
    """A finite number, whole or not."""

    most: float = 1e12
    unit_bytes: int = 0
    least: float = 0.0

    @property
    def says(self) -> str:
        return f"a number{' of GiB' if self.unit_bytes else ''} from {self.least:g}"

    def read(self, node: Located, key: str, reading: Reading) -> Any:
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

    kind: Kind
    is_set: bool = False
    """Whether saying an item twice is a fault."""

    @property
    def says(self) -> str:
        return f"a list, each item {self.kind.says}"

    def read(self, node: Located, key: str, reading: Reading) -> Any:
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
                    reading.refuse(item, inside, f"{shown(value)} stands in the list twice")
                seen.add(value)
            items.append(value)
        return tuple(items)


@frozen_by_position
class MapOf:
    """A map with keys of the user's own, all values of one kind."""

    kind: Kind
    names: Kind

    @property
    def says(self) -> str:
        return f"a map; each key {self.names.says}, each value {self.kind.says}"

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        if type(node.value) is not dict:
            return reading.refuse(node, key, f"{shown(node.value)} is not a map", f"it is {self.says}")
        values = {}
        for name, item in node.value.items():
            at_key = Located(name, item.key_line, item.key_column, item.key_line, item.key_column)
            inside = below(key, name)
            is_named = self.names.read(at_key, inside, reading) is not WRONG
            value = self.kind.read(item, inside, reading) if type(item.value) in PLAIN else WRONG
            if is_named and value is not WRONG:
                values[name] = value
        return values


@frozen_by_position
class Anything:
    """Any value of these types, as it stands in the file: without places, maps and lists as they are."""

    types: tuple[type, ...]
    says: str

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        if type(node.value) not in self.types:
            return reading.refuse(node, key, f"{shown(node.value)} is not {self.says}")
        return node.plain()


def _can_be_written(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _whole_hint(value: object, unit_bytes: int) -> str:
    if type(value) is float:
        return f"write {int(value)}" if value.is_integer() and abs(value) < _EXACT else ""
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
