"""Values by their declared types: the type of a leaf decides how text is read.

    plain text      the type reads it: 007 is text for a text field and 7 for a whole number
    text in quotes  text where the field can hold text, else read as if the quotes weren't there
    a file's value  only checked: a file has types of its own

Text that refers to another value (`${…}`) is left alone; it has no value yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from stoker.config.axis import Axis, Choice, Choices, Form, Listed
from stoker.config.caret import fault_at
from stoker.config.schema import Declared, Schema
from stoker.config.sweep import Concat, Condition, Exclude, Product, Sample, Sweep, Zip
from stoker.config.values import same
from stoker.model.errors import ConfigFaults
from stoker.model.faults import Fault
from stoker.model.frozen import changed, frozen

# Of a computed axis so many points are tried before anything runs; a later one that does not fit stops the walk.
_TRIED = 1000


def read_choice(choice: Choice, declared: Declared) -> Any:
    """Give the value that a leaf takes; `ValueError` says what would be right."""
    if choice.form is Form.VALUE:
        return declared.check(choice.value)
    if choice.form is Form.QUOTED:
        try:
            return declared.check(choice.text)
        except ValueError:
            pass
    return declared.read(choice.text)


def typed(sweep: Sweep, schema: Schema) -> tuple[Sweep, list[Fault]]:
    """Give the sweep with every choice of a declared leaf read by its type, and all faults."""
    faults: list[Fault] = []
    return _typed(sweep, schema.leaves, faults), faults


def _typed(sweep: Sweep, leaves: Mapping[str, Declared], faults: list[Fault]) -> Sweep:
    match sweep:
        case Axis():
            return _typed_axis(sweep, leaves, faults)
        case Zip():
            return Zip(tuple(_typed_axis(axis, leaves, faults) for axis in sweep.parts))
        case Product():
            return Product(tuple(_typed(part, leaves, faults) for part in sweep.parts))
        case Concat():
            return Concat(tuple(_typed(part, leaves, faults) for part in sweep.parts))
        case Exclude():
            conditions = tuple(_typed_condition(condition, leaves) for condition in sweep.conditions)
            return Exclude(of=_typed(sweep.of, leaves, faults), conditions=conditions)
        case Sample():
            return Sample(of=_typed(sweep.of, leaves, faults), count=sweep.count, seed=sweep.seed)


def _typed_axis(axis: Axis, leaves: Mapping[str, Declared], faults: list[Fault]) -> Axis:
    declared = leaves.get(axis.path)
    if declared is None:
        return axis
    read = _Read(choices=axis.choices, declared=declared, axis=axis)
    items: list[Choice] = []
    refused: list[Fault] = []
    for choice in islice(axis.choices, axis.count if isinstance(axis.choices, Listed) else _TRIED):
        try:
            items.append(_valued(choice, declared))
        except ValueError as error:
            refused.append(_fault(axis, choice, declared, error))
    faults += refused
    if refused:
        return axis
    return changed(axis, choices=Listed(tuple(items)) if len(items) == axis.count else read)


def _typed_condition(condition: Condition, leaves: Mapping[str, Declared]) -> Condition:
    """Give a condition in the normal form of its leaves; what does not fit them agrees with no point anyway."""
    made = dict(condition)
    for path, value in condition.items():
        if path in leaves:
            try:
                made[path] = leaves[path].check(value)
            except ValueError:
                made[path] = value
    return made


@frozen
class _Read:
    """The values of a computed axis, read by a type one at a time."""

    choices: Choices
    declared: Declared
    axis: Axis

    @property
    def count(self) -> int:
        return self.choices.count

    def at(self, index: int) -> Choice:
        return self.read(self.choices.at(index))

    def __iter__(self) -> Iterator[Choice]:
        return map(self.read, self.choices)

    def indexes_of(self, value: Any) -> Sequence[int]:
        return [index for index in self.choices.indexes_of(value) if same(self.at(index).value, value)]

    def read(self, choice: Choice) -> Choice:
        try:
            return _valued(choice, self.declared)
        except ValueError as error:
            fault = _fault(self.axis, choice, self.declared, error)
            raise ConfigFaults(str(fault), faults=(fault,)) from None


def _valued(choice: Choice, declared: Declared) -> Choice:
    return choice if choice.refers else Choice(choice.text, read_choice(choice, declared), choice.form)


def _fault(axis: Axis, choice: Choice, declared: Declared, error: ValueError) -> Fault:
    message = f"{choice.text}: {error}" if choice.text not in str(error) else str(error)
    if axis.origin is None:
        return Fault(axis.path, message, f"{axis.path} is {declared.says}")
    column = _column_of(choice.text, axis)
    return fault_at(
        axis.origin,
        message,
        hint=f"{axis.path} is {declared.says}",
        key=axis.path,
        column=column,
        width=len(choice.text) if column else 1,
    )


def _column_of(text: str, axis: Axis) -> int:
    """Find a choice in the line that its axis stands in; 0 if it is not there as it is."""
    if axis.origin is None or not text:
        return 0
    return axis.origin.text.find(text, max(axis.origin.column - 1, 0)) + 1
