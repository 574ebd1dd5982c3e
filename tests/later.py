"""Import torch, scikit-learn and their like when a test needs them, not when it is collected.

Each test process collects all tests and runs a part of them, and such libraries take seconds to import.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

_collecting = False


class _Later:
    """Stands in a module for what it imports later: the module `path`, or the name `attribute` of it."""

    def __init__(self, path: str, attribute: str = "") -> None:
        self._path = path
        self._attribute = attribute

    def find(self) -> Any:
        module = import_module(self._path)
        try:
            return getattr(module, self._attribute) if self._attribute else module
        except AttributeError:
            return import_module(f"{self._path}.{self._attribute}")


class _LaterModule(_Later):
    """What an `import` inside of `imported_later` gets."""

    def __getattr__(self, name: str) -> _Later:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(self._path, name)


@contextmanager
def imported_later(*libraries: str) -> Iterator[None]:
    """Put off the imports of this block until a test of the module runs; skip the module if it lacks a library.

    Only while pytest collects: another process that imports the module gets what it imports at once.
    """
    for library in libraries:
        if find_spec(library) is None:
            pytest.skip(f"could not import {library!r}", allow_module_level=True)
    if not _collecting:
        yield
        return
    scope = sys._getframe(2).f_globals
    import_now = builtins.__import__

    def import_later(name: str, *where: Any) -> Any:
        return _LaterModule(name) if where and where[0] is scope else import_now(name, *where)

    builtins.__import__ = import_later  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.__import__ = import_now


def put_off(*, on: bool) -> None:
    """Begin or end to put off imports."""
    global _collecting  # noqa: PLW0603
    _collecting = on


def import_for(module: ModuleType) -> None:
    """Import what a test module put off."""
    names = vars(module)
    for name, value in list(names.items()):
        if isinstance(value, _Later):
            names[name] = value.find()
            if value._path.startswith("tests."):
                # What it puts off itself, it may need now.
                import_for(import_module(value._path))
