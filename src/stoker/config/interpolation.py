"""References resolved, once, after all layers.

A value that is one reference takes the other's value, type and all; within text, values are written as text. What a
variable of the environment holds is text and is not looked into again. Circles, references to nothing and expansions
without end are faults that name every step; a leaf that could not be resolved brings no second fault with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from stoker.config.caret import fault_at
from stoker.config.located import DEEPEST, MOST_VALUES
from stoker.config.origin import Layer, Origin
from stoker.config.template import Call, Reference, Template, parse
from stoker.config.trees import ABSENT, extent, found, leaf_paths, step_into, with_value
from stoker.config.values import fill_text
from stoker.model.digests import Digest, digest_value
from stoker.model.faults import Fault
from stoker.model.suggest import did_you_mean_path

MOST_CHARACTERS = 1_000_000
"""In all that references make of one configuration."""
LONGEST_CHAIN = 64

Typed = Callable[[str, Any], Any]
"""Gives the normal form of a leaf's value; `ValueError` says what is wrong with it."""


class _Failed(Exception):
    pass


class Resolution:
    """Resolves the references in one tree of values."""

    def __init__(
        self,
        root: dict[str, Any],
        referring: Mapping[str, Origin],
        *,
        environment: Mapping[str, str],
        folder: str,
        typed: Typed,
    ) -> None:
        self.faults: list[Fault] = []
        self.read: dict[str, Digest] = {}
        """The variables that were asked for, each with a digest of what it held; the value is never kept here."""
        self.touched: set[str] = set()
        """The leaves that a variable went into."""
        self._root = root
        self._referring = referring
        self._environment = environment
        self._folder = folder
        self._typed = typed
        self._done: dict[str, Any] = {}
        self._failed: set[str] = set()
        self._chain: list[str] = []
        self._characters = 0
        self._values = 0

    def resolve_all(self) -> dict[str, Any]:
        """Give every leaf with a reference in it by its path, resolved; those that failed are not among them."""
        for path in self._referring:
            try:
                self._leaf(path)
            except _Failed:
                continue
        return self._done

    def _leaf(self, path: str) -> Any:
        if path in self._done:
            if path in self.touched:
                self.touched.update(self._chain)
            return self._done[path]
        if path in self._failed:
            raise _Failed
        if path in self._chain:
            chain = [*self._chain[self._chain.index(path) :], path]
            raise self._fault(f"references go in a circle: {' → '.join(chain)}", at=path, failing=chain)
        if len(self._chain) >= LONGEST_CHAIN:
            raise self._fault(f"more than {LONGEST_CHAIN} references stand behind each other")
        self._chain.append(path)
        try:
            value = self._expand(found(self._root, path.split(".")))
            self._done[path] = self._checked(path, value)
        except _Failed:
            self._failed.add(path)
            raise
        finally:
            self._chain.pop()
        return self._done[path]

    def _checked(self, path: str, value: Any) -> Any:
        try:
            return self._typed(path, value)
        except ValueError as error:
            raise self._fault(f"{error}, from {found(self._root, path.split('.'))}") from None

    def _expand(self, value: Any) -> Any:
        if type(value) is str:
            return self._text(value) if "${" in value else value
        if type(value) is dict:
            return {key: self._expand(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return [self._expand(item) for item in value]
        return value

    def _text(self, text: str) -> Any:
        try:
            parts = parse(text)
        except ValueError as error:
            raise self._fault(str(error)) from None
        if len(parts) == 1:
            return self._part(parts[0])
        return self._joined(parts)

    def _joined(self, parts: Template) -> str:
        made = []
        for part in parts:
            value = self._part(part)
            if type(value) in (dict, list, tuple):
                what = "a group of values" if type(value) is dict else "a list"
                raise self._fault(f"${{{_spell(part)}}} is {what} and can't be put into text")
            made.append(fill_text(value))
            self._characters += len(made[-1])
            if self._characters > MOST_CHARACTERS:
                raise self._fault(f"references make more than {MOST_CHARACTERS} characters of text")
        return "".join(made)

    def _part(self, part: str | Reference | Call) -> Any:
        if type(part) is Reference:
            return self._referenced(part)
        if type(part) is Call:
            return self._from_environment(part) if part.name == "env" else self._path(part)
        return part

    def _referenced(self, reference: Reference) -> Any:
        value: Any = self._root
        for index, step in enumerate(reference.steps):
            value = step_into(value, step)
            path = ".".join(reference.steps[: index + 1])
            if value is ABSENT:
                known = leaf_paths(self._root)
                raise self._fault(f"there is no {reference.path} to refer to", did_you_mean_path(reference.path, known))
            if path in self._referring:
                value = self._leaf(path)
        if type(value) in (dict, list):
            value = self._branch(reference.path, value)
        return value

    def _branch(self, path: str, value: Any) -> Any:
        """Give a whole map or list, what refers in it resolved."""
        inside = [other for other in self._referring if other.startswith(f"{path}.")]
        for other in inside:
            value = with_value(value, other[len(path) + 1 :].split("."), self._leaf(other))
        weight, depth = extent(value)
        self._values += weight
        if self._values > MOST_VALUES:
            raise self._fault(f"references make more than {MOST_VALUES} values")
        if depth + len(self._chain[-1].split(".")) > DEEPEST:
            raise self._fault(f"references make something nested deeper than {DEEPEST} levels")
        return value

    def _from_environment(self, call: Call) -> str:
        name, default = self._split(call.argument)
        self.touched.update(self._chain)
        value = self._environment.get(name)
        if value is None:
            if default is None:
                hint = f"set it, or write ${{env:{name},DEFAULT}}"
                raise self._fault(f"the environment has no {name}", hint)
            return self._joined(default)
        self.read[name] = digest_value("environment", value.encode("utf-8", "surrogateescape"))
        return value

    def _split(self, argument: Template) -> tuple[str, Template | None]:
        """Take `NAME` or `NAME,default` apart; the name is never itself a reference."""
        first = argument[0] if argument else ""
        if type(first) is not str or (len(argument) > 1 and "," not in first):
            raise self._fault("the name of a variable is not a reference")
        name, comma, rest = first.partition(",")
        if not name.strip():
            raise self._fault("which variable? write ${env:NAME}")
        return name.strip(), (rest, *argument[1:]) if comma else None

    def _path(self, call: Call) -> str:
        text = self._joined(call.argument)
        if text.startswith("~"):
            raise self._fault("~ stands for nothing here", "write ${env:HOME}/…")
        origin = self._referring[self._chain[-1]]
        folder = self._folder
        if origin.layer is Layer.FILE:
            folder = os.path.dirname(os.path.join(folder, origin.where))
        return os.path.normpath(os.path.join(folder, text))

    def _fault(self, message: str, hint: str = "", *, at: str = "", failing: list[str] | None = None) -> _Failed:
        """Note a fault of the leaf that is being resolved, or of another one."""
        path = at or self._chain[-1]
        self.faults.append(fault_at(self._referring[path], message, hint=hint, key=path))
        self._failed.update(failing or (), [path])
        return _Failed()


def _spell(part: str | Reference | Call) -> str:
    if isinstance(part, Reference):
        return part.path
    return f"{part.name}:…" if isinstance(part, Call) else part
