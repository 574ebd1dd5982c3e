"""One thing that a sweep varies: a path and the values that it takes, in order.

Values are listed, or computed one at a time (`spacing`), so an axis of a billion values costs as much as one of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Protocol

from stoker.config.origin import Origin
from stoker.config.values import same
from stoker.model.frozen import frozen, frozen_by_position


class Form(Enum):
    """How a value was given, which decides how a declared type reads it."""

    PLAIN = "plain"
    """Text without quotes: the declared type reads it."""
    QUOTED = "quoted"
    """Text in quotes: text wherever the field can hold text."""
    VALUE = "value"
    """A value already, from a file: the declared type only checks it."""


@frozen_by_position
class Choice:
    """One value as it was given: the text that it stands for, and what it means."""

    text: str
    """Without quotes and escapes if it is a single value, as typed if it is a list or a map."""
    value: Any
    """Read by the rules for fields without a declared type (`values`), or by the declared type once that is known."""
    form: Form = Form.PLAIN

    @property
    def refers(self) -> bool:
        """There is a `${…}` in it, so its value is known only when references are resolved."""
        return "${" in self.text


class Choices(Protocol):
    """The values of an axis, in order; never none."""

    @property
    def count(self) -> int: ...

    def at(self, index: int) -> Choice:
        """Give the choice of an index from 0."""

    def __iter__(self) -> Iterator[Choice]: ...

    def indexes_of(self, value: Any) -> Sequence[int]:
        """Say at which indexes this value stands."""


@frozen_by_position
class Listed:
    """Values that somebody wrote down."""

    items: tuple[Choice, ...]

    @property
    def count(self) -> int:
        return len(self.items)

    def at(self, index: int) -> Choice:
        return self.items[index]

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.items)

    def indexes_of(self, value: Any) -> Sequence[int]:
        return [index for index, choice in enumerate(self.items) if same(choice.value, value)]


@frozen
class Axis:
    """A path and the values that it takes."""

    path: str
    """Dotted; or the name of a group, whose options are swept."""
    choices: Choices
    origin: Origin | None = None

    @property
    def count(self) -> int:
        return self.choices.count
