"""TOML files into located trees: read by `tomllib`, located by a scan of our own, bounded as YAML is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

from stoker.config.positions import DEEPEST, LocatedValue, SourceFile, StopReading, ValueOrigin, fault_at, note
from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen_by_position

Path = tuple[str | int, ...]
"""Keys and positions from the outside in."""

_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|"{1,2}+(?!")|[^"\\]++)*+"{3,5}'
    r"|'''(?:'{1,2}+(?!')|[^']++)*+'{3,5}"
    r'|"(?:\\.|[^"\\])*+"'
    r"|'[^']*+'",
    re.DOTALL,
)
_WORD = re.compile(r"[^,\]}#\n]*")
_STEP = r"""(?:[A-Za-z0-9_-]++|"(?:\\.|[^"\\\n])*+"|'[^'\n]*+')"""
_ONE_STEP = re.compile(_STEP)
# The parts of a text that matter here. An opening quote without an end is the end of what can be read.
_PIECE = re.compile(
    r'"""(?:\\.|"{1,2}+(?!")|[^"\\]++)*+"{3,5}'
    r"|'''(?:'{1,2}+(?!')|[^']++)*+'{3,5}"
    rf"|(?P<open>'''|\"\"\")|(?P<keys>{_STEP}(?:[ \t]*+\.[ \t]*+{_STEP})*+)|#[^\n]*+|(?P<torn>[\"'])",
    re.DOTALL,
)
_PIECE_OR_MARK = re.compile(rf"{_PIECE.pattern}|[=,]", re.DOTALL)
_PLAIN_KEYS = re.compile(r"([A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)*+)[ \t]*+[=\]]")
_IS_KEY = re.compile(r"[ \t]*=")
_WHOLE = re.compile(r"[0-9][0-9_]*+")


@frozen_by_position
class Spot:
    """The places of a key (or of a list's item) and of its value."""

    key: tuple[int, int]
    value: tuple[int, int]


def find_places(source: SourceFile) -> dict[Path, Spot]:
    """Return the places of every key and value in a text that `tomllib` has read.

    `tomllib` reads the values and drops their places. This walks over the same text, which is known to be valid, and
    notes places only. Keys written more than once (a table and its sub-table) keep their first place.
    """
    # It saw line ends without carriage returns, and so do our columns.
    scan = _Scan(source)
    scan.run()
    return scan.places


def refuse_deep_keys(source: SourceFile) -> None:
    """Stop at a dotted key of too many steps, before `tomllib` spends the square of them on it."""
    # A key is on one line. Ten thousand numbers have as many dots, each on a line of its own.
    if source.text.count(".") < DEEPEST or all(line.count(".") < DEEPEST for line in source.lines):
        return
    for start, keys in _key_like(source.text):
        if len(keys) > 2 * DEEPEST and len(_ONE_STEP.findall(keys)) > DEEPEST:
            place = source.at_index(start)
            raise source.too_deep(place.line, place.column)


def refuse_many_values(source: SourceFile) -> None:
    """Stop at a text that must have too many values, before `tomllib` spends a minute on it."""
    text, most = source.text, source.most_values
    for mark in "=,":
        if text.count(mark) <= most:
            continue
        # There are at least as many values as equal signs, and at least as many as commas, outside of text.
        marks = (found for found in _PIECE_OR_MARK.finditer(text) if found[0] == mark)
        if last := next(islice(marks, most, None), None):
            place = source.at_index(last.start())
            raise source.too_many(place.line, place.column)


def find_long_number(source: SourceFile, most_digits: int) -> tuple[ValueOrigin, int] | None:
    """Find the first whole number with more digits than that: its place and how many it has."""
    for start, word in _key_like(source.text):
        if len(word) > most_digits and _WHOLE.fullmatch(word.lstrip("-")):
            count = sum(map(str.isdigit, word))
            if count > most_digits and not _IS_KEY.match(source.text, start + len(word)):
                return source.at_index(start), count
    return None


def _key_like(text: str) -> Iterator[tuple[int, str]]:
    """Return what looks like a key, dotted or not, outside of comments and of texts of several lines."""
    for found in _PIECE.finditer(text):
        if found["open"] or found["torn"]:
            return
        if found["keys"]:
            yield found.start(), found["keys"]


class _Scan:
    def __init__(self, source: SourceFile) -> None:
        self.places: dict[Path, Spot] = {}
        self._source = source
        self._text = source.text
        self._at = 0
        self._line = 1
        self._line_start = 0
        self._counts: dict[Path, int] = {}
        self._table: Path = ()

    def run(self) -> None:
        self._skip(_GAP)
        while self._at < len(self._text):
            if self._text.startswith("[[", self._at):
                self._array_of_tables()
            elif self._text[self._at] == "[":
                self._advance(1)
                self._table = self._indexed(self._keys())
                self._advance(1)
            else:
                self._pair(self._table)
            self._skip(_GAP)

    def _array_of_tables(self) -> None:
        self._advance(2)
        keys = self._keys()
        outer = self._indexed(keys[:-1])
        name, place = keys[-1]
        path = (*outer, name)
        self._note(path, place, place)
        self._counts[path] = self._counts.get(path, -1) + 1
        self._table = (*path, self._counts[path])
        self._note(self._table, place, place)
        self._advance(2)

    def _indexed(self, keys: list[tuple[str, tuple[int, int]]]) -> Path:
        """Follow keys through the tables above, into the newest item of each array of tables."""
        path: Path = ()
        for name, place in keys:
            path = (*path, name)
            self._note(path, place, place)
            if path in self._counts:
                path = (*path, self._counts[path])
        return path

    def _pair(self, outer: Path) -> None:
        path = outer
        keys = self._keys()
        for name, place in keys[:-1]:
            path = (*path, name)
            self._note(path, place, place)
        name, place = keys[-1]
        self._advance(1)
        self._skip(_BLANK)
        self._value((*path, name), place)

    def _keys(self) -> list[tuple[str, tuple[int, int]]]:
        """Read a dotted key and stop at what comes after it."""
        plain = _PLAIN_KEYS.match(self._text, self._at)
        if plain is not None:
            return self._plain_keys(plain[1])
        keys = []
        while True:
            self._skip(_BLANK)
            place = self._place()
            string = _STRING.match(self._text, self._at)
            found = string or _BARE.match(self._text, self._at)
            assert found is not None, "tomllib has read this text"  # noqa: S101 - else the scan would never end
            keys.append((_unquoted(found[0]) if string else found[0], place))
            self._advance(len(found[0]))
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return keys
            self._advance(1)

    def _plain_keys(self, dotted: str) -> list[tuple[str, tuple[int, int]]]:
        """Split a key of bare steps in one go: there may be a million of them."""
        line, column = self._place()
        keys = []
        for name in dotted.split("."):
            keys.append((name, (line, column)))
            column += len(name) + 1
        self._advance(len(dotted))
        self._skip(_BLANK)
        return keys

    def _value(self, path: Path, key: tuple[int, int]) -> None:
        place = self._place()
        self._note(path, key, place)
        if len(path) > DEEPEST:
            raise self._source.too_deep(*place)
        opening = self._text[self._at]
        if opening == "[":
            self._items(path)
        elif opening == "{":
            self._inline_table(path)
        elif opening in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_WORD)

    def _items(self, path: Path) -> None:
        self._advance(1)
        self._skip(_GAP)
        index = 0
        while self._text[self._at] != "]":
            self._value((*path, index), self._place())
            index += 1
            self._skip(_GAP)
            if self._text[self._at] == ",":
                self._advance(1)
                self._skip(_GAP)
        self._advance(1)

    def _inline_table(self, path: Path) -> None:
        self._advance(1)
        self._skip(_GAP)
        while self._text[self._at] != "}":
            self._pair(path)
            self._skip(_GAP)
            if self._text[self._at] == ",":
                self._advance(1)
                self._skip(_GAP)
        self._advance(1)

    def _note(self, path: Path, key: tuple[int, int], value: tuple[int, int]) -> None:
        if path in self.places:
            return
        self.places[path] = Spot(key, value)
        if len(self.places) > self._source.most_values:
            raise self._source.too_many(*key)

    def _place(self) -> tuple[int, int]:
        return self._line, self._at - self._line_start + 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        if found:
            self._advance(len(found[0]))

    def _advance(self, count: int) -> None:
        breaks = self._text.count("\n", self._at, self._at + count)
        self._at += count
        if breaks:
            self._line += breaks
            self._line_start = self._text.rfind("\n", 0, self._at) + 1


def _unquoted(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if "\\" not in key:
        return key[1:-1]
    import tomllib  # noqa: PLC0415 - only a key with an escape in it needs its reader

    read: Any = next(iter(tomllib.loads(f"{key} = 0")))
    return str(read)


_MESSAGE = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_PLAIN = (bool, int, float, str)
# Values of these types are never refused.
_SMALL = frozenset({bool, float, str})
_MOST_BITS = 8192
_LARGE = 32 * 1024


def read_toml(source: SourceFile, faults: list[Diagnostic], *, is_placed: bool = True) -> LocatedValue | None:
    """Read a file; nothing if it could not be read to its end. Without places, it takes half the time."""
    import tomllib  # noqa: PLC0415 - milliseconds that only a TOML file should cost

    try:
        refuse_deep_keys(source)
        refuse_many_values(source)
        # A small file is read before the patterns of the fast path are compiled.
        raw = read_plain(source.lines) if len(source.text) >= _LARGE else None
        if raw is None:
            raw = tomllib.loads(source.text)
        if not is_placed and (tree := _unplaced(raw, source.most_values)) is not None:
            return tree
        places = find_places(source) if is_placed else {}
        return _Locating(source, faults, places).locate(raw, (), Spot((1, 1), (1, 1)))
    except tomllib.TOMLDecodeError as error:
        faults.append(_syntax_fault(source, str(error)))
    except RecursionError:
        faults.append(Diagnostic(source.name, f"is nested deeper than {DEEPEST} levels"))
    except ValueError as error:
        faults.append(_number_fault(source) or Diagnostic(source.name, f"is not TOML: {error}"))
    except StopReading as stop:
        faults.append(stop.fault)
    return None


def _number_fault(source: SourceFile) -> Diagnostic | None:
    """Return the fault of a number with too many digits: Python limits them, and tomllib reports no place."""
    found = find_long_number(source, sys.get_int_max_str_digits())
    if found is None:
        return None
    origin, count = found
    return fault_at(origin, f"a whole number of {count} digits is too large", hint="put it in quotes if it is text")


def _syntax_fault(source: SourceFile, message: str) -> Diagnostic:
    found = _MESSAGE.fullmatch(message)
    if found is None:
        return Diagnostic(source.name, f"is not TOML: {message}")
    what = found["what"][:1].lower() + found["what"][1:]
    if found["line"]:
        origin = source.at(int(found["line"]), int(found["column"]))
    else:
        line = max(len(source.lines), 1)
        origin = source.at(line, len(source.lines[line - 1]) + 1 if source.lines else 1)
    hint = "put text in quotes" if what.startswith("invalid value") else ""
    return fault_at(origin, f"is not TOML: {what}", hint=hint)


def _unplaced(raw: dict[str, Any], most_values: int) -> LocatedValue | None:
    """Return values without their places; nothing if any of them would have to be refused."""
    count = 0
    # The named tuple's own way goes through Python, and there may be half a million of them.
    make = tuple.__new__

    def bare(value: Any, depth: int) -> LocatedValue:
        nonlocal count
        count += 1
        if depth > DEEPEST:
            raise _Odd
        kind = type(value)
        if kind in _SMALL:
            return make(LocatedValue, (value, 1, 1, 1, 1))
        inner = depth + 1
        if kind is dict:
            made: Any = {}
            for key, item in value.items():
                if type(item) in _SMALL and depth < DEEPEST:
                    count += 1
                    made[key] = make(LocatedValue, (item, 1, 1, 1, 1))
                else:
                    made[key] = bare(item, inner)
        elif kind is list:
            made = [bare(item, inner) for item in value]
        elif kind is int and value.bit_length() <= _MOST_BITS:
            made = value
        else:
            raise _Odd
        return make(LocatedValue, (made, 1, 1, 1, 1))

    try:
        tree = bare(raw, 0)
    except _Odd:
        return None
    return tree if count <= most_values else None


class _Odd(Exception):
    """A value that is refused at its place."""


class _Locating:
    """Joins values with their places."""

    def __init__(self, source: SourceFile, faults: list[Diagnostic], places: dict[Path, Spot]) -> None:
        self._source = source
        self._faults = faults
        self._places = places
        self._count = 0

    def locate(self, raw: Any, path: Path, around: Spot) -> LocatedValue:
        spot = self._places.get(path, around)
        self._count += 1
        if self._count > self._source.most_values:
            raise self._source.too_many(*spot.key)
        if len(path) > DEEPEST:
            raise self._source.too_deep(*spot.value)
        value = raw
        if type(raw) is dict:
            value = {key: self.locate(item, (*path, key), spot) for key, item in raw.items()}
        elif type(raw) is list:
            value = [self.locate(item, (*path, index), spot) for index, item in enumerate(raw)]
        else:
            self._refuse(raw, path, spot)
        return LocatedValue(value, *spot.value, *spot.key)

    def _refuse(self, raw: Any, path: Path, spot: Spot) -> None:
        message = hint = ""
        if type(raw) not in _PLAIN:
            message, hint = f"{raw} is a date or a time, which is not supported", "put it in quotes"
        elif type(raw) is int and raw.bit_length() > _MOST_BITS:
            message = f"a whole number of {raw.bit_length()} bits is too large"
        if message:
            key = "".join(f"[{step}]" if type(step) is int else f".{step}" for step in path).removeprefix(".")
            note(self._faults, fault_at(self._source.at(*spot.value), message, hint=hint, key=key))


# Possessive throughout: a mismatch fails at once.
_PLAIN_BLANK = r"[ \t]*+"
_PLAIN_KEY = r"[A-Za-z0-9_-]++"
_PLAIN_CONTROL = r"\x00-\x08\x0a-\x1f\x7f"
_PLAIN_QUOTED = rf'[^"\\{_PLAIN_CONTROL}]*+'
_PLAIN_SCALAR = (
    r"(?:(?P<float>[+-]?(?:0|[1-9][0-9]*+)(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++))"
    r"|(?P<int>[+-]?(?:0|[1-9][0-9]{0,17}+))"
    rf'|"(?P<text>{_PLAIN_QUOTED})"'
    r"|(?P<flag>true|false))"
)
_PLAIN_INSIDE = rf'(?:[^"\'\\#\[\]{{}}{_PLAIN_CONTROL}]++|"{_PLAIN_QUOTED}")*+'
_PLAIN_LINE = (
    rf"{_PLAIN_BLANK}(?:"
    rf"(?P<key>{_PLAIN_KEY}){_PLAIN_BLANK}={_PLAIN_BLANK}(?:{_PLAIN_SCALAR}|\{{(?P<inline>{_PLAIN_INSIDE})\}}|\[(?P<items>{_PLAIN_INSIDE})\])"
    rf"|\[\[{_PLAIN_BLANK}(?P<array>{_PLAIN_KEY}){_PLAIN_BLANK}\]\]"
    rf"|\[{_PLAIN_BLANK}(?P<outer>{_PLAIN_KEY}){_PLAIN_BLANK}\.{_PLAIN_BLANK}(?P<inner>{_PLAIN_KEY}){_PLAIN_BLANK}\]"
    rf")?{_PLAIN_BLANK}(?:#[^{_PLAIN_CONTROL}]*+)?"
)
_PLAIN_PAIR = rf"{_PLAIN_BLANK}(?P<key>{_PLAIN_KEY}){_PLAIN_BLANK}={_PLAIN_BLANK}{_PLAIN_SCALAR}{_PLAIN_BLANK}(?:,|\Z)"
_PLAIN_ITEM = rf"{_PLAIN_BLANK}{_PLAIN_SCALAR}{_PLAIN_BLANK}(?:,|\Z)"
# Each is compiled when a large file is read for the first time: that takes as long as a small file.
_plain_pattern = cache(re.compile)

# Immutable values may be in several tables.
_LASTING = frozenset({"text", "float", "int", "flag"})
_MOST_LINES = 1000


class _NotPlain(Exception):
    """Something that is not read here."""


def read_plain(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the content of a text, if it is plain, four times faster than `tomllib`; otherwise nothing.

    Plain is: `[[name]]`, `[name.inner]` below the newest of them, and lines of a bare key and one value, which is text
    without escapes, a number, true or false, or a one-line list or inline table of such. Everything else, and every
    fault, is left to `tomllib`; a test compares the two.
    """
    tables = _Tables()
    table = tables.root
    match = _plain_pattern(_PLAIN_LINE).fullmatch
    # Ten thousand jobs repeat many lines.
    pairs: dict[str, tuple[str, Any]] = {}
    try:
        for line in lines:
            pair = pairs.get(line)
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
                pair = (found["key"], _plain_value(found, kind))
                if kind in _LASTING and len(pairs) < _MOST_LINES:
                    pairs[line] = pair
            key, value = pair
            if key in table:
                return None
            table[key] = value
    except _NotPlain:
        return None
    return tables.root


class _Tables:
    """The tables of a text by their headers."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self._lists: dict[str, list[dict[str, Any]]] = {}

    def begun(self, found: re.Match[str]) -> dict[str, Any]:
        """Return the table that a header begins."""
        table: dict[str, Any] = {}
        name, inner = found["array"], found["inner"]
        if inner is not None:
            # Of a list of tables a header refers to the newest.
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


def _plain_value(found: re.Match[str], kind: str | None) -> Any:
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
    pair = _plain_pattern(_PLAIN_PAIR).match
    at, end = 0, len(text.rstrip(" \t"))
    while at < end:
        found = pair(text, at, end)
        if found is None or found["key"] in made:
            raise _NotPlain
        made[found["key"]] = _plain_value(found, found.lastgroup)
        at = found.end()
    if text.endswith(",", 0, end):
        raise _NotPlain
    return made


def _items(text: str) -> list[Any]:
    made = []
    item = _plain_pattern(_PLAIN_ITEM).match
    at, end = 0, len(text.rstrip(" \t"))
    while at < end:
        found = item(text, at, end)
        if found is None:
            raise _NotPlain
        made.append(_plain_value(found, found.lastgroup))
        at = found.end()
    return made
