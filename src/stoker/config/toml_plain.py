"""The plain part of TOML, read four times faster than by `tomllib`: a file of ten thousand jobs is nothing else.

Plain is: `[[name]]`, `[name.inner]` below the newest of them, and lines of a bare key and one value, which is text
without escapes, a number, true or false, or a one-line list or inline table of such. Whatever else stands in a text,
and whatever may be wrong with it, is left to `tomllib`; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Possessive throughout: what does not match is given up at once.
_BLANK = r"[ \t]*+"
_KEY = r"[A-Za-z0-9_-]++"
_CONTROL = r"\x00-\x08\x0a-\x1f\x7f"
_QUOTED = rf'[^"\\{_CONTROL}]*+'
_SCALAR = (
    r"(?:(?P<float>[+-]?(?:0|[1-9][0-9]*+)(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++))"
    r"|(?P<int>[+-]?(?:0|[1-9][0-9]{0,17}+))"
    rf'|"(?P<text>{_QUOTED})"'
    r"|(?P<flag>true|false))"
)
_INSIDE = rf'(?:[^"\'\\#\[\]{{}}{_CONTROL}]++|"{_QUOTED}")*+'
_LINE = re.compile(
    rf"{_BLANK}(?:"
    rf"(?P<key>{_KEY}){_BLANK}={_BLANK}(?:{_SCALAR}|\{{(?P<inline>{_INSIDE})\}}|\[(?P<items>{_INSIDE})\])"
    rf"|\[\[{_BLANK}(?P<array>{_KEY}){_BLANK}\]\]"
    rf"|\[{_BLANK}(?P<outer>{_KEY}){_BLANK}\.{_BLANK}(?P<inner>{_KEY}){_BLANK}\]"
    rf")?{_BLANK}(?:#[^{_CONTROL}]*+)?"
)
_PAIR = re.compile(rf"{_BLANK}(?P<key>{_KEY}){_BLANK}={_BLANK}{_SCALAR}{_BLANK}(?:,|\Z)")
_ITEM = re.compile(rf"{_BLANK}{_SCALAR}{_BLANK}(?:,|\Z)")


# Values that nobody can change may stand in several tables.
_LASTING = frozenset({"text", "float", "int", "flag"})
_MOST_SAID = 1000


class _NotPlain(Exception):
    """Something that is not read here."""


def read_plain(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return what a text says, if it is plain; else nothing."""
    tables = _Tables()
    table = tables.root
    match = _LINE.fullmatch
    # Ten thousand jobs say many things in the same words.
    said: dict[str, tuple[str, Any]] = {}
    try:
        for line in lines:
            pair = said.get(line)
            if pair is None:
                found = match(line)
                if found is None:
                    return None
                kind = found.lastgroup
                if kind is None:
                    continue
                if found["key"] is None:
                    table = tables.begun(found)
                    continue
                pair = (found["key"], _value(found, kind))
                if kind in _LASTING and len(said) < _MOST_SAID:
                    said[line] = pair
            key, value = pair
            if key in table:
                return None
            table[key] = value
    except _NotPlain:
        return None
    return tables.root


class _Tables:
    """The tables of a text as its headers name them."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self._lists: dict[str, list[dict[str, Any]]] = {}

    def begun(self, found: re.Match[str]) -> dict[str, Any]:
        """Return the table that a header begins."""
        table: dict[str, Any] = {}
        name, inner = found["array"], found["inner"]
        if inner is not None:
            # Of a list of tables it is the newest that a header speaks of.
            tables = self._lists.get(found["outer"])
            if tables is None or inner in tables[-1]:
                raise _NotPlain
            tables[-1][inner] = table
        elif name in self._lists:
            self._lists[name].append(table)
        elif name in self.root:
            raise _NotPlain
        else:
            self.root[name] = self._lists[name] = [table]
        return table


def _value(found: re.Match[str], kind: str | None) -> Any:
    if kind == "text":
        return found["text"]
    if kind == "float":
        return float(found["float"])
    if kind == "int":
        return int(found["int"])
    if kind == "flag":
        return found["flag"] == "true"
    return _inline(found["inline"]) if kind == "inline" else _items(found["items"])


def _inline(text: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    at, end = 0, len(text.rstrip(" \t"))
    while at < end:
        found = _PAIR.match(text, at, end)
        if found is None or found["key"] in made:
            raise _NotPlain
        made[found["key"]] = _value(found, found.lastgroup)
        at = found.end()
    if text.endswith(",", 0, end):
        raise _NotPlain
    return made


def _items(text: str) -> list[Any]:
    made = []
    at, end = 0, len(text.rstrip(" \t"))
    while at < end:
        found = _ITEM.match(text, at, end)
        if found is None:
            raise _NotPlain
        made.append(_value(found, found.lastgroup))
        at = found.end()
    return made
