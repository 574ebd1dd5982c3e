"""What results were made from, as their records tell: code, data, versions of libraries.

A record holds everything that decided its result. `compare` puts these side by side, a job's receipt states them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.engine.code_identity import OWN
from stoker.store.records import Record

# The argument in which a program's own files stand.
_PROGRAM = "code."


def made_from_records(records: Iterable[Record]) -> ResultOrigins:
    """Return what results were made from, as their records tell."""
    found = ResultOrigins()
    for record in records:
        found.take(_mapping(record.body.get("action")))
    return found


class ResultOrigins:
    """What results were made from, as their records tell: code, data, versions; several values side by side."""

    def __init__(self) -> None:
        self.code: dict[str, set[str]] = {}
        self.data: dict[str, set[str]] = {}
        self.environment: dict[str, set[str]] = {}

    def take(self, action: Mapping[str, Any]) -> None:
        """Add what one action used."""
        stage = str(action.get("stage", ""))
        for module, digest in _mapping(action.get("code")).items():
            name = stage if module == OWN else f"{stage} {module}" if module.startswith("(") else module
            self.code.setdefault(name, set()).add(str(digest))
        self.code.setdefault(f"{stage} (version)", set()).add(str(action.get("version", "")))
        for argument, digest in _contents(action.get("args"), ""):
            if argument.startswith(_PROGRAM):
                self.code.setdefault(argument.removeprefix(_PROGRAM), set()).add(digest)
            else:
                self.data.setdefault(f"{stage}: {argument}", set()).add(digest)
        for name, version in _mapping(action.get("env")).items():
            self.environment.setdefault(str(name), set()).add(str(version))


def _contents(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Return the digest of every file among arguments, each with its place."""
    if isinstance(value, dict):
        if set(value) == {"content"} and isinstance(value["content"], str):
            yield path, value["content"]
            return
        for name, inner in value.items():
            yield from _contents(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _contents(inner, f"{path}[{place}]")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
