"""What a configuration file says, every value and key with its place: the same for YAML and TOML.

A tree is never changed after it is read, and parts of it may be shared (an anchor and its aliases). Bounds keep a
small file from becoming a large tree; what goes past them is a fault, never a crash.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from stoker.config.caret import fault_at
from stoker.config.origin import Layer, Origin
from stoker.model.faults import Fault
from stoker.model.frozen import frozen

DEEPEST: Final = 50
"""Levels of maps and lists; a fingerprint takes no more than a few beyond it."""
MOST_VALUES: Final = 200_000
"""Values in one file, each alias counted with all that it stands for."""
LARGEST_BYTES: Final = 8 * 1024 * 1024
MOST_FAULTS: Final = 1000
"""After so many the rest of a file is not read: it is something else than it was taken for."""

_FILE = Layer.FILE


class Located(NamedTuple):
    """One value: a scalar, `dict[str, Located]` or `list[Located]`, with its place and that of its key.

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
        """Give the value without places."""
        value = self.value
        if type(value) is dict:
            return {key: item.plain() for key, item in value.items()}
        if type(value) is list:
            return [item.plain() for item in value]
        return value

    def under(self, key_line: int, key_column: int) -> Located:
        """Give the same value under another key."""
        return Located(self.value, self.line, self.column, key_line, key_column)


class StopReading(Exception):
    """The rest of a file can't be read."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def note(faults: list[Fault], fault: Fault) -> None:
    """Add a fault to those of a file; `StopReading` when there are more than anybody will read."""
    if len(faults) >= MOST_FAULTS:
        message = f"there are more than {MOST_FAULTS} faults; the rest is not read"
        raise StopReading(Fault(fault.where, message, shown=fault.shown))
    faults.append(fault)


@frozen
class Source:
    """A file that was read: what to call it, where it lies, and its lines for people to see."""

    name: str
    """Its path as it was typed."""
    path: str
    """Its absolute path."""
    text: str
    lines: tuple[str, ...]
    most_values: int = MOST_VALUES

    def at(self, line: int, column: int) -> Origin:
        """Give the place of a line and a column, both from 1."""
        shown = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Origin(_FILE, self.name, line, column, shown)

    def at_index(self, index: int) -> Origin:
        """Give the place of a character of the text."""
        line = self.text.count("\n", 0, index) + 1
        return self.at(line, index - (self.text.rfind("\n", 0, index) + 1) + 1)

    def key_of(self, node: Located) -> Origin:
        return self.at(node.key_line, node.key_column)

    def value_of(self, node: Located) -> Origin:
        return self.at(node.line, node.column)

    def too_deep(self, line: int, column: int) -> StopReading:
        return StopReading(fault_at(self.at(line, column), f"is nested deeper than {DEEPEST} levels"))

    def too_many(self, line: int, column: int) -> StopReading:
        message = f"there are more than {self.most_values} values, aliases included"
        return StopReading(fault_at(self.at(line, column), message))


@frozen
class FileLayer:
    """One file in its turn: what it says, and under which dotted path that is put."""

    source: Source
    tree: Located
    package: str
