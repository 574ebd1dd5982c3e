"""Typed fields of a file's tree: a form says which keys a map may have, and of what kind each value is.

    GPU = Form("GPU", (Field("uuid", Text(), "its identity", is_required=True), Field("vram_mb", Whole(), "in MiB")))

Reading goes on past every fault. Each one points at the value that is wrong, at the key that nobody knows, or at the
map that lacks something; it says the key's whole path, what stands there, and what would be right. What was read
without a fault is given; defaults are the business of whatever is made of it. What fields mean together is not known
here, and the kinds of values are `field_kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from stoker.config.caret import fault_at
from stoker.config.located import Located, Source
from stoker.model.errors import Faults
from stoker.model.faults import Fault
from stoker.model.frozen import frozen_by_position
from stoker.model.suggest import did_you_mean

MOST_SHOWN: Final = 100
WRONG: Final = object()
"""In place of a value that was refused; the fault is noted."""
PLAIN: Final = (str, int, float, bool, dict, list, type(None))
"""What values are. Anything else, such as a date of TOML, was refused when the file was read."""

# Of these, what is equal is the same. Not so floats: 0.0 equals -0.0.
_EXACT = frozenset({str, int, bool})
# What nobody can change may be given twice.
_LASTING = frozenset({str, int, bool, float, tuple})
_LONGEST_SHOWN = 60
_LINE = re.compile(r":(\d+):\d+(?:: |$)")
_MOST_BITS = 128


class Reading:
    """One file on its way into nouns: where it was read from, and its faults. The first are kept, all are counted."""

    def __init__(self, source: Source, faults: Iterable[Fault] = ()) -> None:
        self.source = source
        self.faults = list(faults)
        self.count = len(self.faults)

    @property
    def is_full(self) -> bool:
        """Whether a further fault would only be counted; nobody need think of a hint for it."""
        return len(self.faults) >= MOST_SHOWN

    def refuse(self, node: Located, key: str, message: str, hint: str = "", *, at_key: bool = False) -> Any:
        """Note a fault at a value, or at its key; give `WRONG`."""
        self.count += 1
        if not self.is_full:
            origin = self.source.key_of(node) if at_key else self.source.value_of(node)
            self.faults.append(fault_at(origin, message, hint=hint, key=key))
        return WRONG

    def add(self, faults: Iterable[Fault]) -> None:
        """Note faults that somebody else found."""
        for fault in faults:
            self.count += 1
            if not self.is_full:
                self.faults.append(fault)

    def sort(self) -> None:
        """Put the faults in the order in which they stand in the file."""
        self.faults.sort(key=_line_of)

    def raise_any(self, kind: type[Faults]) -> None:
        """Raise an error with the faults, if there are any. Of a single one it is the message itself."""
        if not self.count:
            return
        message = str(self.faults[0]) if self.count == 1 else f"{self.source.name} has {self.count:,} faults"
        shown = tuple(self.faults[:MOST_SHOWN])
        more = self.count - len(shown)
        hint = f"and {more:,} more; mend these and check again" if more else ""
        raise kind(message, faults=shown, hint=hint, file=self.source.name, count=self.count)


def _line_of(fault: Fault) -> int:
    found = _LINE.search(fault.where)
    return int(found[1]) if found else 0


class Kind(Protocol):
    """What a value has to be."""

    @property
    def says(self) -> str:
        """What is right, in words: `a whole number from 1`."""

    def read(self, node: Located, key: str, reading: Reading) -> Any:
        """Give the value that is meant, or `WRONG` after noting why not."""


@frozen_by_position
class Field:
    """One key of a map."""

    name: str
    kind: Kind
    help: str
    is_required: bool = False
    may_be_null: bool = False
    """Whether `null` says the same as leaving it out. Only for what has no value by default."""


class Given:
    """A map that was read: the right values by key, and where it and each of them stand."""

    __slots__ = ("key", "node", "values")

    def __init__(self, node: Located, key: str, values: dict[str, Any]) -> None:
        self.node = node
        self.key = key
        self.values = values

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def at(self, name: str) -> Located:
        """Give the place of a value; that of the map if it has none."""
        found: Located | None = self.node.value.get(name)
        return self.node if found is None else found

    def says(self, name: str) -> bool:
        """Say whether the map has this key, rightly or wrongly."""
        return name in self.node.value


class Form:
    """A map with known keys; read, it is `Given`. `meant` maps words that people use elsewhere to the right keys."""

    def __init__(self, noun: str, fields: tuple[Field, ...], *, meant: Mapping[str, str] | None = None) -> None:
        self.noun = noun
        self.meant = meant or {}
        self.fields = fields
        self._by_name = {field.name: field for field in fields}
        self._required = [field for field in fields if field.is_required]
        self._read_last: dict[str, tuple[type, Any, Any]] = {}
        """By name, a right value that nobody can change, and what was read of it: ten thousand maps say the same."""

    @property
    def says(self) -> str:
        return f"a {self.noun}: a map of keys and values"

    def read(self, node: Located, key: str, reading: Reading) -> Any:
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
        return Given(node, key, values)

    def _read_field(self, field: Field, item: Located, key: str, reading: Reading) -> Any:
        if type(item.value) not in PLAIN:
            return WRONG
        value = field.kind.read(item, key, reading)
        if type(item.value) in _EXACT and type(value) in _LASTING:
            self._read_last[field.name] = (type(item.value), item.value, value)
        return value

    def _refuse_unknown(self, item: Located, name: str, key: str, reading: Reading) -> None:
        hint = ""
        if not reading.is_full:
            right = self.meant.get(name)
            hint = f"did you mean {right!r}? {right}: {self._by_name[right].help}" if right else ""
            hint = hint or did_you_mean(name, self._by_name) or f"known: {', '.join(self._by_name)}"
        reading.refuse(item, below(key, name), f"a {self.noun} has no key {shown(name)}", hint, at_key=True)


def below(key: str, name: str) -> str:
    """Give the path of a key that somebody else chose, below another."""
    step = name if name.isprintable() and len(name) <= _LONGEST_SHOWN else shown(name)
    return f"{key}.{step}" if key else step


def shown(value: object) -> str:
    """Give a value as a message shows it: short, in one line, as the file would spell it."""
    if type(value) is dict or type(value) is list:
        return f"{'an empty' if not value else 'a'} {'map' if type(value) is dict else 'list'}"
    if value is None or type(value) is bool:
        return str(value).lower().replace("none", "null")
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value[: 2 * _LONGEST_SHOWN]) if type(value) is str else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
