"""The content of a configuration file, every value and key with its place: the same for YAML and TOML.

A tree is never changed after it is read, and parts of it may be shared (an anchor and its aliases). Limits keep a
small file from becoming a large tree; exceeding them is a fault, never a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen

# The origin of a value: a layer and a place in it that a person can find again.
#
# These are made for every leaf of every layer, so they are named tuples, which are made three times faster than frozen
# objects.


class ConfigLayer(StrEnum):
    """The layers of a configuration; a later one wins."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    OVERRIDE = "override"
    SWEEP = "sweep"


class ValueOrigin(NamedTuple):
    """A place in a layer. Lines and columns count from 1; 0 means that there is none."""

    layer: ConfigLayer
    where: str
    """A file's path as typed, a variable's name, `argument 3`, or the owner of a default."""
    line: int = 0
    column: int = 0
    text: str = ""
    """The text there, in one line: of a file the line itself, of a command the whole argument."""

    def __str__(self) -> str:
        if self.line:
            return f"{self.where}:{self.line}:{self.column}"
        if self.text and self.layer in (ConfigLayer.OVERRIDE, ConfigLayer.SWEEP):
            return f"{self.where} ({self.text})"
        return self.where


class LayerValue(NamedTuple):
    """The value of one layer for a leaf."""

    origin: ValueOrigin
    value: Any
    """As read there; `NOTHING` if the layer deletes the leaf."""
    part_of: Callable[[Sequence[str]], ValueOrigin] | None = None
    """Returns the place of a part of a list or a map in a file, by the steps to it."""

    def place(self, steps: Sequence[str]) -> ValueOrigin:
        """Return the place of the value, or of a part of it."""
        return self.part_of(steps) if self.part_of is not None and steps else self.origin


_WIDEST = 100
_BEFORE = 60


def caret_lines(line: str, column: int, width: int = 1) -> str:
    """Return the line and, under `width` characters from `column` (counted from 1), carets.

    Shown beneath a fault. Control characters become visible, tabs become one space, and a long line is cut around the
    caret, so that the output is always one line over one line.
    """
    start = min(max(column, 1), len(line) + 1) - 1
    end = min(start + max(width, 1), max(len(line), start + 1))
    first = max(0, start - _BEFORE) if len(line) > _WIDEST else 0
    last = min(len(line), first + _WIDEST)
    before = ("…" if first else "") + "".join(map(_visible, line[first:start]))
    marked = "".join(map(_visible, line[start : min(end, last)]))
    after = "".join(map(_visible, line[min(end, last) : last])) + ("…" if last < len(line) else "")
    return f"{before}{marked}{after}\n{' ' * _columns(before)}{'^' * max(_columns(marked), 1)}"


def fault_at(
    origin: ValueOrigin, message: str, *, hint: str = "", key: str = "", column: int = 0, width: int = 1
) -> Diagnostic:
    """Make the fault of a place, with the line there and carets under it if the place has one.

    `column` is for a part of the line other than the one where the place begins.
    """
    where = origin.where if not origin.line else str(origin)
    shown = caret_lines(origin.text, column or origin.column, width) if origin.text else ""
    return Diagnostic(f"{where}: {key}" if key else where, message, hint, shown)


def _visible(character: str) -> str:
    if character == "\t":
        return " "
    return character if character.isprintable() else "�"


def _columns(text: str) -> int:
    """Return the number of terminal columns."""
    if text.isascii():
        return len(text)
    from stoker.core.display_width import text_width  # noqa: PLC0415 - only a fault in text that is not ASCII pays

    return text_width(text)


DEEPEST: Final = 50
"""Levels of maps and lists; a fingerprint takes no more than a few beyond it."""
MOST_VALUES: Final = 200_000
"""Maximum number of values in one file, each alias counted with its content."""
LARGEST_BYTES: Final = 8 * 1024 * 1024
MOST_FAULTS: Final = 1000
"""After so many the rest of a file is not read: it is probably another type of file."""

_FILE = ConfigLayer.FILE


class LocatedValue(NamedTuple):
    """One value: a scalar, `dict[str, LocatedValue]` or `list[LocatedValue]`, with its place and that of its key.

    There is one for every value of every file, and a named tuple is made three times faster than a frozen object.
    """

    value: Any
    line: int
    column: int
    key_line: int
    key_column: int

    @property
    def is_map(self) -> bool:
        return type(self.value) is dict

    def plain(self) -> Any:
        """Return the value without places."""
        value = self.value
        if type(value) is dict:
            return {key: item.plain() for key, item in value.items()}
        if type(value) is list:
            return [item.plain() for item in value]
        return value

    def at(self, steps: Sequence[str]) -> LocatedValue:
        """Return the value at a path below, or the last one on the way."""
        node = self
        for step in steps:
            inner = node.value
            if type(inner) is dict and step in inner:
                node = inner[step]
            elif type(inner) is list and step.isdecimal() and int(step) < len(inner):
                node = inner[int(step)]
            else:
                break
        return node

    def under(self, key_line: int, key_column: int) -> LocatedValue:
        """Return the same value under another key."""
        return LocatedValue(self.value, self.line, self.column, key_line, key_column)


class StopReading(Exception):
    """The rest of a file can't be read."""

    def __init__(self, fault: Diagnostic) -> None:
        super().__init__(fault.message)
        self.fault = fault


def note(faults: list[Diagnostic], fault: Diagnostic) -> None:
    """Add a fault to those of a file; `StopReading` when there are too many to read."""
    if len(faults) >= MOST_FAULTS:
        message = f"there are more than {MOST_FAULTS} errors; the rest is not read"
        raise StopReading(Diagnostic(fault.where, message, shown=fault.shown))
    faults.append(fault)


@frozen
class SourceFile:
    """A file that was read: its name, its path, and its lines for messages."""

    name: str
    """Its path as it was typed."""
    path: str
    """Its absolute path."""
    text: str
    lines: tuple[str, ...]
    most_values: int = MOST_VALUES

    def at(self, line: int, column: int) -> ValueOrigin:
        """Return the place of a line and a column, both from 1."""
        shown = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return ValueOrigin(_FILE, self.name, line, column, shown)

    def at_index(self, index: int) -> ValueOrigin:
        """Return the place of a character of the text."""
        line = self.text.count("\n", 0, index) + 1
        return self.at(line, index - (self.text.rfind("\n", 0, index) + 1) + 1)

    def part_of(self, node: LocatedValue, steps: Sequence[str]) -> ValueOrigin:
        """Return the place of a part of a value, by the steps to it."""
        return self.value_of(node.at(steps))

    def key_of(self, node: LocatedValue) -> ValueOrigin:
        return self.at(node.key_line, node.key_column)

    def value_of(self, node: LocatedValue) -> ValueOrigin:
        return self.at(node.line, node.column)

    def too_deep(self, line: int, column: int) -> StopReading:
        return StopReading(fault_at(self.at(line, column), f"is nested deeper than {DEEPEST} levels"))

    def too_many(self, line: int, column: int) -> StopReading:
        message = f"there are more than {self.most_values} values, aliases included"
        return StopReading(fault_at(self.at(line, column), message))


@frozen
class FileLayer:
    """One file in its turn: its content, and the dotted path where that is put."""

    source: SourceFile
    tree: LocatedValue
    package: str
