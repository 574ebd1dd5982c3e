"""The words of a schema, and how values fit them: which leaf a key means, and what a value is for it.

A leaf that nobody declared takes what the fixed rules read (`values`), as long as that has a canonical form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.config.axis import Choice
from stoker.config.schema import Declared, Schema
from stoker.config.trees import found
from stoker.config.typed import read_choice
from stoker.model.suggest import did_you_mean_path

_MOST_BITS = 8192
_MOST_SUGGESTED = 50


class Vocabulary:
    """The words of a schema, as the layers ask for them."""

    def __init__(self, schema: Schema) -> None:
        self.leaves: Mapping[str, Declared] = schema.leaves
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
        """Give the nearest known path to an unknown one, as a hint; `also` are paths that nobody declared."""
        # Each takes milliseconds among many names, and nobody reads the hundredth.
        self._suggested += 1
        if self._suggested > _MOST_SUGGESTED:
            return ""
        return did_you_mean_path(path, [*self.leaves, *self.branches, *also])

    def of_another(self, path: str, text: str) -> str:
        """Give the one other leaf that takes a word which this one, a choice of words, does not, as a hint."""
        declared = self.leaves.get(path)
        if declared is None or "|" not in declared.says:
            return ""
        others = [name for name, one in self.leaves.items() if name != path and text in one.says.split("|")]
        return f"did you mean {others[0]}={text}?" if len(others) == 1 else ""

    def inside(self, branch: str) -> str:
        """Name what a branch holds."""
        names = [path.removeprefix(f"{branch}.") for path in self.leaves if path.startswith(f"{branch}.")]
        return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def owner_of(path: str, root: dict[str, Any], leaves: Mapping[str, Declared]) -> str:
    """Give the leaf that a path leads into: a declared one or a list on the way, else the path itself."""
    steps = path.split(".")
    for count in range(1, len(steps)):
        outer = ".".join(steps[:count])
        if outer in leaves or type(found(root, steps[:count])) in (list, tuple):
            return outer
    return path


def value_of(choice: Choice, declared: Declared | None) -> Any:
    """Give the value of a choice for a leaf, declared or not; `ValueError` says what would be right."""
    return check_untyped(choice.value) if declared is None else read_choice(choice, declared)


def check_value(value: Any, declared: Declared | None) -> Any:
    """Give the normal form of a value from a file; `ValueError` says what is wrong with it."""
    return check_untyped(value) if declared is None else declared.check(value)


def check_resolved(value: Any, declared: Declared | None) -> Any:
    """Give the normal form of what references made: text that is not text for its field is read as if typed."""
    if declared is None:
        return check_untyped(value)
    try:
        return declared.check(value)
    except ValueError:
        if type(value) is not str:
            raise
        return declared.read(value)


def quoting_hint(value: Any, declared: Declared | None) -> str:
    """Give the hint for a number or a word in a file that was meant as text."""
    if declared is None or type(value) not in (bool, int, float):
        return ""
    try:
        declared.check("text")
    except ValueError:
        return ""
    return "put it in quotes: it is meant as text"


def check_untyped(value: Any) -> Any:
    """Give a value back unless it has no canonical form: text that is not Unicode, a number beyond all use."""
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
