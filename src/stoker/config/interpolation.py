"""References resolved, once, after all layers.

A value that is one reference takes the other's value and type; within text, values are written as text. The value of an
environment variable is text and is not resolved again. Cycles, references to nothing and endless expansions are faults
that name every step; a leaf that could not be resolved causes no second fault.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from stoker.config.positions import DEEPEST, MOST_VALUES, ConfigLayer, ValueOrigin, fault_at
from stoker.config.values import ABSENT, extent, fill_text, found, leaf_paths, step_into, with_value
from stoker.core.digests import Digest, digest_value
from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen_by_position
from stoker.core.text import did_you_mean, did_you_mean_path

# Parsing of text with references.
#
# A reference may be inside another's argument: ${path:${folder}/train.csv}.

CALLS = ("env", "path")

_OPENING = re.compile(r"(\\*)\$\{")
_INSIDE = re.compile(r"(\\*)\$\{|\}")
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*):")
_STEP = re.compile(r"[^.\[\]{}$:,\s]+")
_PATH = re.compile(rf"{_STEP.pattern}(?:\.{_STEP.pattern}|\[[0-9]+\])*")
_DEEPEST = 16


@frozen_by_position
class Reference:
    """Another value, by the steps of its path."""

    steps: tuple[str, ...]

    @property
    def path(self) -> str:
        return ".".join(self.steps)


@frozen_by_position
class TemplateCall:
    """Something from outside the configuration: `env` or `path`."""

    name: str
    argument: Template


Template = tuple[str | Reference | TemplateCall, ...]


@lru_cache(maxsize=4096)
def parse(text: str) -> Template:
    """Parse text; `ValueError` for an invalid reference in it."""
    return _parse(text, 0)


def literal(value: Any) -> Any:
    """Return a plain value with each `${` escaped in its texts, so that resolving it returns the given value."""
    if type(value) is str:
        return _OPENING.sub(lambda found: f"{found[1] * 2}\\${{", value)
    if type(value) in (list, tuple):
        return [literal(item) for item in value]
    if type(value) is dict:
        return {key: literal(item) for key, item in value.items()}
    return value


def _parse(text: str, depth: int) -> Template:
    if depth > _DEEPEST:
        message = f"references are nested more than {_DEEPEST} deep"
        raise ValueError(message)
    parts: list[str | Reference | TemplateCall] = []
    at = 0
    while found := _OPENING.search(text, at):
        slashes = len(found[1])
        _literal(parts, text[at : found.start()] + "\\" * (slashes // 2))
        if slashes % 2:
            _literal(parts, "${")
            at = found.end()
            continue
        end = _closing(text, found.end())
        parts.append(_inner(text[found.end() : end], depth))
        at = end + 1
    _literal(parts, text[at:])
    return tuple(parts)


def _literal(parts: list[str | Reference | TemplateCall], text: str) -> None:
    if not text:
        return
    if parts and type(parts[-1]) is str:
        parts[-1] += text
    else:
        parts.append(text)


def _closing(text: str, start: int) -> int:
    depth = 1
    at = start
    while found := _INSIDE.search(text, at):
        at = found.end()
        if found[0] == "}":
            depth -= 1
        elif len(found[1]) % 2 == 0:
            depth += 1
        if depth == 0:
            return found.start()
    message = "a reference is not closed"
    raise ValueError(message)


def _inner(text: str, depth: int) -> Reference | TemplateCall:
    text = text.strip()
    called = _CALL.match(text)
    if called is not None:
        name = called[1]
        if name not in CALLS:
            hint = did_you_mean(name.rpartition(".")[2], CALLS) or "there are ${env:NAME} and ${path:…}"
            message = f"unknown reference ${{{name}:…}}; {hint}"
            raise ValueError(message)
        return TemplateCall(name, _parse(text[called.end() :], depth + 1))
    if text.startswith("."):
        message = f"${{{text}}} is relative; write the whole path"
        raise ValueError(message)
    if _PATH.fullmatch(text) is None:
        message = f"${{{text}}} is not a reference; write ${{a.b}}, ${{env:NAME}} or ${{path:…}}"
        raise ValueError(message)
    return Reference(tuple(_STEP.findall(text)))


MOST_CHARACTERS = 1_000_000
"""Limit for all references of one configuration."""
LONGEST_CHAIN = 64

Typed = Callable[[str, Any], Any]
"""Returns the normal form of a leaf's value; `ValueError` if it is invalid."""


class _Failed(Exception):
    pass


class Resolution:
    """Resolves the references in one tree of values."""

    def __init__(
        self,
        root: dict[str, Any],
        referring: Mapping[str, ValueOrigin],
        *,
        environment: Mapping[str, str],
        folder: str,
        typed: Typed,
    ) -> None:
        self.faults: list[Diagnostic] = []
        self.read: dict[str, Digest] = {}
        """The variables that were read, each with a digest of its value; the value is never kept here."""
        self.touched: set[str] = set()
        """The leaves that contain a variable."""
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
        """Return every leaf with a reference in it by its path, resolved; failed ones are not among them."""
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
            raise self._fault(f"references form a cycle: {' → '.join(chain)}", at=path, failing=chain)
        if len(self._chain) >= LONGEST_CHAIN:
            raise self._fault(f"a chain of more than {LONGEST_CHAIN} references")
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

    def _part(self, part: str | Reference | TemplateCall) -> Any:
        if type(part) is Reference:
            return self._referenced(part)
        if type(part) is TemplateCall:
            return self._from_environment(part) if part.name == "env" else self._path(part)
        return part

    def _referenced(self, reference: Reference) -> Any:
        value: Any = self._root
        for index, step in enumerate(reference.steps):
            value = step_into(value, step)
            path = ".".join(reference.steps[: index + 1])
            if value is ABSENT:
                known = leaf_paths(self._root)
                hint = did_you_mean_path(reference.path, known)
                raise self._fault(f"reference to {reference.path}, which does not exist", hint)
            if path in self._referring:
                value = self._leaf(path)
        if type(value) in (dict, list):
            value = self._branch(reference.path, value)
        return value

    def _branch(self, path: str, value: Any) -> Any:
        """Return a whole map or list, with its references resolved."""
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

    def _from_environment(self, call: TemplateCall) -> str:
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
        """Parse `NAME` or `NAME,default`; the name is never itself a reference."""
        first = argument[0] if argument else ""
        if type(first) is not str or (len(argument) > 1 and "," not in first):
            raise self._fault("the name of a variable is not a reference")
        name, comma, rest = first.partition(",")
        if not name.strip():
            raise self._fault("the name of the variable is missing: write ${env:NAME}")
        return name.strip(), (rest, *argument[1:]) if comma else None

    def _path(self, call: TemplateCall) -> str:
        text = self._joined(call.argument)
        if text.startswith("~"):
            raise self._fault("~ is not expanded here", "write ${env:HOME}/…")
        origin = self._referring[self._chain[-1]]
        folder = self._folder
        if origin.layer is ConfigLayer.FILE:
            folder = os.path.dirname(os.path.join(folder, origin.where))
        return os.path.normpath(os.path.join(folder, text))

    def _fault(self, message: str, hint: str = "", *, at: str = "", failing: list[str] | None = None) -> _Failed:
        """Note a fault of the leaf that is being resolved, or of another one."""
        path = at or self._chain[-1]
        self.faults.append(fault_at(self._referring[path], message, hint=hint, key=path))
        self._failed.update(failing or (), [path])
        return _Failed()


def _spell(part: str | Reference | TemplateCall) -> str:
    if isinstance(part, Reference):
        return part.path
    return f"{part.name}:…" if isinstance(part, TemplateCall) else part
