"""The sweep of a configuration, where it stands: what a file's `sweep` says, and the last word on each path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stoker.config.axis import Axis, Choice
from stoker.config.groups import key_of
from stoker.config.located import Located, Source
from stoker.config.origin import Origin
from stoker.config.override import Kind, Override
from stoker.config.sweep import Sweep
from stoker.config.sweep_file import Place, read_sweep
from stoker.model.faults import Fault


def sweep_in(source: Source, node: Located, key: str = "sweep") -> tuple[Sweep | None, list[Fault]]:
    """Read what stands under `sweep` in a file, or under another key; nothing if there are faults."""

    def origin_of(place: Place) -> Origin:
        at = node
        for step in place:
            inner: Any = at.value
            is_there = step in inner if type(inner) is dict else type(inner) is list and step in range(len(inner))
            if not is_there:
                break
            at = inner[step]
        return source.value_of(at)

    return read_sweep(node.plain(), origin_of, key=key)


def words_of(overrides: Iterable[Override]) -> dict[str, Axis | Choice | None]:
    """Give the last word of a command line on each path that it sets or deletes."""
    words: dict[str, Axis | Choice | None] = {}
    for override in overrides:
        if override.kind not in (Kind.APPEND, Kind.REMOVE):
            words.pop(key_of(override), None)
            words[key_of(override)] = None if override.kind is Kind.DELETE else override.value
    return words
