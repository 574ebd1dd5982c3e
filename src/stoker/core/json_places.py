"""Where things stand in a JSON text: the line of every key and of every item of a list, and keys given twice.

For messages only, about text that is known to be JSON: the values themselves are read elsewhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from stoker.core.frozen import frozen_by_position

Place = tuple[str | int, ...]
"""Keys and positions from the outside in: `("nodes", "load", "args")`, `("edges", 3)`."""

# Strings are taken whole, so that a brace inside one is no brace; numbers and words matter only by where they stand.
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')


@frozen_by_position
class JsonPlaces:
    """Lines by place, the first one counting from 1."""

    lines: dict[Place, int]
    repeated: list[tuple[Place, int]]
    """Keys that their object already had, with the line where they stand again."""

    def line_of(self, place: Place) -> int | None:
        """Return the line of a place, or of what is around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def has_repeated_keys(text: str) -> bool:
    """Return whether any object of a JSON text has a key twice; reading would keep only the last one."""
    found = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    try:
        json.JSONDecoder(object_pairs_hook=look).decode(text)
    except RecursionError:
        # Nested so deeply that it could only just be read; the scan does not recurse, and will know.
        return True
    return found


@dataclass(slots=True)
class _Open:
    """An object or a list that the scan is inside of."""

    is_object: bool
    key: str = ""
    position: int = 0
    awaits_key: bool = True
    keys: set[str] = field(default_factory=set)

    @property
    def step(self) -> str | int:
        return self.key if self.is_object else self.position


def find_places(text: str) -> JsonPlaces:
    """Scan a JSON text."""
    places = JsonPlaces({}, [])
    stack: list[_Open] = []
    line = 1
    for match in _WORD.finditer(text):
        word = match[0]
        if word == "\n":
            line += 1
        elif word in "}]":
            stack.pop()
        elif word == ",":
            stack[-1].position += 1
            stack[-1].awaits_key = True
        elif word != ":":
            if stack:
                _note(places, stack, word, line)
            if word in "{[":
                stack.append(_Open(word == "{"))
    return places


def _note(places: JsonPlaces, stack: list[_Open], word: str, line: int) -> None:
    """Note where a key, or an item of a list, begins; the value of a key stands where its key does."""
    top = stack[-1]
    if top.is_object:
        if not top.awaits_key:
            return
        top.awaits_key = False
        top.key = json.loads(word)
    place = tuple(opened.step for opened in stack)
    if top.is_object and top.key in top.keys:
        places.repeated.append((place, line))
    top.keys.add(top.key)
    places.lines.setdefault(place, line)
