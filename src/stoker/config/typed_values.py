"""Values by their declared types: the type of a leaf decides how text is read.

    plain text      the type reads it: 007 is text for a text field and 7 for a whole number
    text in quotes  text if the field can hold text, otherwise read as if the quotes weren't there
    a file's value  only checked: a file has types of its own

Text that refers to another value (`${…}`) is left alone; it has no value yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from stoker.config.positions import fault_at
from stoker.config.sweep import (
    Axis,
    AxisValue,
    AxisValues,
    Concat,
    Condition,
    Exclude,
    ListedAxisValues,
    Sweep,
    SweepProduct,
    SweepSample,
    ValueForm,
    Zip,
)
from stoker.config.values import DeclaredLeaf, Schema, found, same
from stoker.core.errors import Diagnostic, InvalidConfig
from stoker.core.frozen import changed, frozen
from stoker.core.text import did_you_mean_path

# Of a computed axis so many points are tried before anything runs; a later one that does not fit stops the walk.
_TRIED = 1000


def read_choice(choice: AxisValue, declared: DeclaredLeaf) -> Any:
    """Return the value of a leaf; `ValueError` names what would be right."""
    if choice.form is ValueForm.VALUE:
        return declared.check(choice.value)
    if choice.form is ValueForm.QUOTED:
        try:
            return declared.check(choice.text)
        except ValueError:
            pass
    return declared.read(choice.text)


def typed(sweep: Sweep, schema: Schema) -> tuple[Sweep, list[Diagnostic]]:
    """Return the sweep with every choice of a declared leaf read by its type, and all faults."""
    faults: list[Diagnostic] = []
    return _typed(sweep, schema.leaves, faults), faults


def _typed(sweep: Sweep, leaves: Mapping[str, DeclaredLeaf], faults: list[Diagnostic]) -> Sweep:
    match sweep:
        case Axis():
            return _typed_axis(sweep, leaves, faults)
        case Zip():
            return Zip(tuple(_typed_axis(axis, leaves, faults) for axis in sweep.parts))
        case SweepProduct():
            return SweepProduct(tuple(_typed(part, leaves, faults) for part in sweep.parts))
        case Concat():
            return Concat(tuple(_typed(part, leaves, faults) for part in sweep.parts))
        case Exclude():
            conditions = tuple(_typed_condition(condition, leaves) for condition in sweep.conditions)
            return Exclude(of=_typed(sweep.of, leaves, faults), conditions=conditions)
        case SweepSample():
            return SweepSample(of=_typed(sweep.of, leaves, faults), count=sweep.count, seed=sweep.seed)


def _typed_axis(axis: Axis, leaves: Mapping[str, DeclaredLeaf], faults: list[Diagnostic]) -> Axis:
    declared = leaves.get(axis.path)
    if declared is None:
        return axis
    read = _Read(choices=axis.choices, declared=declared, axis=axis)
    items: list[AxisValue] = []
    refused: list[Diagnostic] = []
    for choice in islice(axis.choices, axis.count if isinstance(axis.choices, ListedAxisValues) else _TRIED):
        try:
            items.append(_valued(choice, declared))
        except ValueError as error:
            refused.append(_fault(axis, choice, declared, error))
    faults += refused
    if refused:
        return axis
    return changed(axis, choices=ListedAxisValues(tuple(items)) if len(items) == axis.count else read)


def _typed_condition(condition: Condition, leaves: Mapping[str, DeclaredLeaf]) -> Condition:
    """Return a condition in the normal form of its leaves; a value that does not fit matches no point anyway."""
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

    choices: AxisValues
    declared: DeclaredLeaf
    axis: Axis

    @property
    def count(self) -> int:
        return self.choices.count

    def at(self, index: int) -> AxisValue:
        return self.read(self.choices.at(index))

    def __iter__(self) -> Iterator[AxisValue]:
        return map(self.read, self.choices)

    def indexes_of(self, value: Any) -> Sequence[int]:
        return [index for index in self.choices.indexes_of(value) if same(self.at(index).value, value)]

    def read(self, choice: AxisValue) -> AxisValue:
        try:
            return _valued(choice, self.declared)
        except ValueError as error:
            fault = _fault(self.axis, choice, self.declared, error)
            raise InvalidConfig(str(fault), faults=(fault,)) from None


def _valued(choice: AxisValue, declared: DeclaredLeaf) -> AxisValue:
    return choice if choice.refers else AxisValue(choice.text, read_choice(choice, declared), choice.form)


def _fault(axis: Axis, choice: AxisValue, declared: DeclaredLeaf, error: ValueError) -> Diagnostic:
    message = f"{choice.text}: {error}" if choice.text not in str(error) else str(error)
    if axis.origin is None:
        return Diagnostic(axis.path, message, f"{axis.path} is {declared.says}")
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
    """Return the column of a choice in the line of its axis; 0 if it is not there as it is."""
    if axis.origin is None or not text:
        return 0
    return axis.origin.text.find(text, max(axis.origin.column - 1, 0)) + 1


_MOST_BITS = 8192
_MOST_SUGGESTED = 50


class Vocabulary:
    """The leaves of a schema, with lookups for the layers.

    A leaf that is not declared takes what the fixed rules read (`values`), if that has a canonical form.
    """

    def __init__(self, schema: Schema) -> None:
        self.leaves: Mapping[str, DeclaredLeaf] = schema.leaves
        self.is_open = schema.is_open
        self._suggested = 0
        self.branches: set[str] = set()
        for path in schema.leaves:
            while "." in path:
                path = path.rpartition(".")[0]  # noqa: PLW2901 - outwards, step by step
                if path in self.branches:
                    break
                self.branches.add(path)

    def knows(self, path: str) -> bool:
        return path in self.leaves or path in self.branches

    def suggestion(self, path: str, also: list[str]) -> str:
        """Return the nearest known path to an unknown one, as a hint; `also` are undeclared paths."""
        # Each takes milliseconds among many names, and the hundredth is of no use.
        self._suggested += 1
        if self._suggested > _MOST_SUGGESTED:
            return ""
        aliases = {name: leaf.aliases for name, leaf in self.leaves.items()}
        return did_you_mean_path(path, [*self.leaves, *self.branches, *also], aliases)

    def of_another(self, path: str, text: str) -> str:
        """Return the one other leaf that accepts a word which this one, a choice of words, does not, as a hint."""
        declared = self.leaves.get(path)
        if declared is None or "|" not in declared.says:
            return ""
        others = [name for name, one in self.leaves.items() if name != path and text in one.says.split("|")]
        return f"did you mean {others[0]}={text}?" if len(others) == 1 else ""

    def inside(self, branch: str) -> str:
        """List the keys of a branch."""
        names = [path.removeprefix(f"{branch}.") for path in self.leaves if path.startswith(f"{branch}.")]
        return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def owner_of(path: str, root: dict[str, Any], leaves: Mapping[str, DeclaredLeaf]) -> str:
    """Return the leaf of a path: a declared one or a list on the way, otherwise the path itself."""
    steps = path.split(".")
    for count in range(1, len(steps)):
        outer = ".".join(steps[:count])
        if outer in leaves or type(found(root, steps[:count])) in (list, tuple):
            return outer
    return path


def value_of(choice: AxisValue, declared: DeclaredLeaf | None) -> Any:
    """Return the value of a choice for a leaf, declared or not; `ValueError` names what would be right."""
    return check_untyped(choice.value) if declared is None else read_choice(choice, declared)


def check_value(value: Any, declared: DeclaredLeaf | None) -> Any:
    """Return the normal form of a value from a file; `ValueError` if it is invalid."""
    return check_untyped(value) if declared is None else declared.check(value)


def check_resolved(value: Any, declared: DeclaredLeaf | None) -> Any:
    """Return the normal form of a resolved value: text for a field that is not text is read as if typed."""
    if declared is None:
        return check_untyped(value)
    try:
        return declared.check(value)
    except ValueError:
        if type(value) is not str:
            raise
        return declared.read(value)


def quoting_hint(value: Any, declared: DeclaredLeaf | None) -> str:
    """Return the hint for a number or a word in a file that should be text."""
    if declared is None or type(value) not in (bool, int, float):
        return ""
    try:
        declared.check("text")
    except ValueError:
        return ""
    return "put it in quotes: it should be text"


def check_untyped(value: Any) -> Any:
    """Return a value unless it has no canonical form: text that is not Unicode, a number that is too large."""
    if type(value) is str:
        if not value.isascii() and not _is_unicode(value):
            message = f"{value!r} is not valid Unicode text"
            raise ValueError(message)
    elif type(value) is int:
        if value.bit_length() > _MOST_BITS:
            message = f"a whole number of {value.bit_length()} bits is too large"
            raise ValueError(message)
    elif type(value) is dict:
        for key, item in value.items():
            check_untyped(key)
            check_untyped(item)
    elif type(value) in (list, tuple):
        for item in value:
            check_untyped(item)
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
