"""YAML files into located trees: by the 1.2 core schema, bounded, all faults of a file together.

Anchors, aliases and merge keys (`<<`) are honoured; tags beyond the core, keys that are not text, keys given twice and
several documents are refused. PyYAML produces events with places (its C parser if it has one); their meaning is decided
here, one event after the other and without recursion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from stoker.config.positions import DEEPEST, LocatedValue, SourceFile, StopReading, fault_at, note
from stoker.core.errors import Diagnostic

PREFIX = "tag:yaml.org,2002:"

_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_FINITE_NOT: dict[str, float] = {
    sign + word: value if sign != "-" else -value
    for sign in ("", "+", "-")
    for word, value in ((".inf", math.inf), (".Inf", math.inf), (".INF", math.inf))
} | {".nan": math.nan, ".NaN": math.nan, ".NAN": math.nan}
_MOST_DIGITS = 2400
_STARTS = frozenset("+-.0123456789")
_OTHER_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
# A group matches if there is a point or an exponent.
_NUMBER = re.compile(r"[-+]?(?:(\.[0-9]+)|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def read_plain(text: str) -> Any:
    """Return the value of a plain scalar, by YAML 1.2's core schema; `ValueError` if it is a number that can't be held.

    `on`, `off`, `yes` and `no` are text, and so are dates, `1_000` and `12:30`; `0o17` is octal, `017` is seventeen and
    `1e-5` is a number. Whatever is in quotes is text.
    """
    if text[:1] in _STARTS and text:
        number = _NUMBER.fullmatch(text)
        if number is not None:
            return _whole(text, 10) if number.lastindex is None else _finite(text)
        if text in _FINITE_NOT:
            return _FINITE_NOT[text]
        if _OTHER_INT.fullmatch(text):
            return _whole(text[2:], 8 if text[1] == "o" else 16)
        return text
    return _WORDS.get(text, text)


def read_tagged(tag: str, text: str) -> Any:
    """Return the value of a scalar with a core tag; `ValueError` if it does not fit it, or there is no such tag."""
    kind = tag.removeprefix(PREFIX)
    if kind in ("str", "!"):
        return text
    if kind not in _KINDS or not tag.startswith(PREFIX):
        message = f"the tag {_spell(tag)} is not allowed"
        raise ValueError(message)
    value = read_plain(text)
    if kind == "float" and type(value) is int:
        return float(value)
    if type(value) is not _KINDS[kind]:
        message = f"{text!r} does not match its tag {_spell(tag)}"
        raise ValueError(message)
    return value


def refuse_tag(tag: str, kind: str) -> None:
    """Raise `ValueError` if a map or a list has a tag other than its own."""
    if tag not in ("!", PREFIX + kind):
        message = f"the tag {_spell(tag)} is not allowed"
        raise ValueError(message)


def _whole(digits: str, base: int) -> int:
    # Python refuses to print much larger numbers, and so does all that we write.
    if len(digits) > _MOST_DIGITS:
        message = f"a whole number of {len(digits)} digits is too large"
        raise ValueError(message)
    return int(digits, base)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        message = f"{text} is more than a number can hold; write .inf if that is meant"
        raise ValueError(message)
    return value


def _spell(tag: str) -> str:
    return "!!" + tag.removeprefix(PREFIX) if tag.startswith(PREFIX) else tag


_KINDS: dict[str, type] = {"null": type(None), "bool": bool, "int": int, "float": float}


# Characters that YAML does not allow. Checked first, so that its parser never meets them.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HINTS = (
    ("mapping values are not allowed", "put a text with ': ' in it in quotes; keys of one map stand below each other"),
    ("cannot start any token", "put the value in quotes"),
    ("did not find expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("did not find expected key", "keys of one map begin in the same column"),
    ("could not find expected ':'", "a key is followed by a colon and a space"),
)


def read_yaml(source: SourceFile, faults: list[Diagnostic]) -> LocatedValue | None:
    """Read a file's one document; an empty file is an empty map. Nothing if it could not be read to its end."""
    bad = _CONTROL.search(source.text) if source.text.isascii() else _not_text().search(source.text)
    if bad:
        origin = source.at_index(bad.start())
        faults.append(fault_at(origin, f"the character U+{ord(bad[0]):04X} is not allowed in YAML"))
        return None
    try:
        return _compose(source, faults)
    except StopReading as stop:
        faults.append(stop.fault)
        return None


def _compose(source: SourceFile, faults: list[Diagnostic]) -> LocatedValue | None:
    import yaml  # noqa: PLC0415 - tens of milliseconds that only a YAML file should cost

    parser = _parser(source.text)
    composer = _Composer(source, faults)
    scalar, read_next, is_scalar, is_last = composer.scalar, parser.get_event, yaml.ScalarEvent, yaml.StreamEndEvent
    try:
        while True:
            event = read_next()
            if type(event) is is_scalar:
                scalar(event)
            elif type(event) is is_last:
                break
            else:
                composer.take(event)
    except yaml.MarkedYAMLError as error:
        raise StopReading(_syntax_fault(source, error)) from None
    finally:
        parser.dispose()
    return composer.root or LocatedValue({}, 1, 1, 1, 1)


@cache
def _not_text() -> re.Pattern[str]:
    # The same for all of Unicode; it takes milliseconds to compile, for text beyond ASCII only.
    return re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _parser(text: str) -> Any:
    """Return PyYAML's parser: the one written in C, if it was built with it."""
    try:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]  # noqa: PLC0415 - as above; stubs leave it out
    except ImportError:
        from yaml import SafeLoader  # noqa: PLC0415 - as above

        return SafeLoader(text)
    return CParser(text)


def _syntax_fault(source: SourceFile, error: Any) -> Diagnostic:
    # A missing end is noticed only at the end of the file; its start is more useful.
    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark is not None]
    places = [source.at(mark.line + 1, mark.column + 1) for mark in marks]
    origin = next((place for place in places if place.text.strip()), source.at(1, 1))
    problem = error.problem or error.context or "it can't be read"
    shown, column = origin.text, origin.column
    if "\t" in shown[: len(shown) - len(shown.lstrip())] or shown[column - 1 : column] == "\t":
        hint = "indent with spaces, never with tabs"
    else:
        hint = next((hint for words, hint in _HINTS if words in problem), "")
    return fault_at(origin, f"is not YAML: {problem}", hint=hint)


class _Frame:
    """A map or a list that is being read."""

    __slots__ = (
        "anchor",
        "column",
        "deepest",
        "entries",
        "items",
        "key",
        "key_column",
        "key_line",
        "line",
        "merges",
        "weight",
    )

    def __init__(self, line: int, column: int, anchor: str | None, *, is_map: bool) -> None:
        self.line = line
        self.column = column
        self.anchor = anchor
        self.entries: dict[str, LocatedValue] = {}
        self.items: list[LocatedValue] | None = None if is_map else []
        self.merges: list[LocatedValue] | None = None
        # The key whose value comes next: a text, `_AWAITED`, `_MERGE` or, after a fault, `_DROPPED`.
        self.key: Any = _AWAITED
        self.key_line = line
        self.key_column = column
        self.weight = 1
        self.deepest = 0


class _Composer:
    """Builds one document from events."""

    def __init__(self, source: SourceFile, faults: list[Diagnostic]) -> None:
        self.root: LocatedValue | None = None
        self._source = source
        self._faults = faults
        self._stack: list[_Frame] = []
        self._top: _Frame | None = None
        self._anchors: dict[str, tuple[LocatedValue, int, int]] = {}
        self._open: set[str] = set()
        self._total = 0
        self._most = source.most_values

    def take(self, event: Any) -> None:
        """Handle an event other than a scalar."""
        step = _STEPS.get(type(event).__name__)
        if step is not None:
            step(self, event)

    def document(self, event: Any) -> None:
        if self.root is not None:
            line, column = _place(event)
            raise StopReading(fault_at(self._source.at(line, column), "a configuration is one document, not several"))

    def scalar(self, event: Any) -> None:
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        value: Any = event.value
        if event.tag is not None:
            value = self._read(event, line, column)
        elif event.implicit[0]:
            try:
                value = read_plain(value)
            except ValueError as error:
                self._fault(line, column, str(error))
        frame = self._top
        if frame is None or frame.items is not None or event.anchor is not None:
            self._put(LocatedValue(value, line, column, line, column), 1, 0, event.anchor)
            return
        # Most events are a key or its value: these two take the fast path.
        self._total += 1
        frame.weight += 1
        key = frame.key
        if type(key) is str:
            # Bypasses the named tuple's own constructor: this line runs for every leaf of every file.
            frame.entries[key] = _new(LocatedValue, (value, line, column, frame.key_line, frame.key_column))
            frame.key = _AWAITED
        elif key is not _AWAITED:
            self._take_value(frame, LocatedValue(value, line, column, line, column))
        elif value == "<<" and event.implicit[0]:
            frame.key = _MERGE
        else:
            self._take_key(frame, value, line, column)

    def alias(self, event: Any) -> None:
        line, column = _place(event)
        known = self._anchors.get(event.anchor)
        if event.anchor in self._open:
            raise StopReading(fault_at(self._source.at(line, column), f"*{event.anchor} contains itself"))
        if known is None:
            self._fault(line, column, f"there is no anchor &{event.anchor} above")
            known = (LocatedValue(None, line, column, line, column), 1, 0)
        node, weight, deepest = known
        if len(self._stack) + deepest > DEEPEST:
            raise self._source.too_deep(line, column)
        self._put(node, weight, deepest, None)

    def start_map(self, event: Any) -> None:
        self._start(event, "map", is_map=True)

    def start_list(self, event: Any) -> None:
        self._start(event, "seq", is_map=False)

    def end(self, _event: Any) -> None:
        frame = self._stack.pop()
        self._top = self._stack[-1] if self._stack else None
        if frame.merges is not None:
            # Keys of merged maps that the map itself does not have; the first of several wins.
            for merged in frame.merges:
                for key, node in merged.value.items():
                    frame.entries.setdefault(key, node)
        if frame.anchor is not None:
            self._open.discard(frame.anchor)
        value = frame.entries if frame.items is None else frame.items
        self._total -= frame.weight - 1
        node = LocatedValue(value, frame.line, frame.column, frame.line, frame.column)
        self._put(node, frame.weight, frame.deepest + 1, frame.anchor)

    def _start(self, event: Any, kind: str, *, is_map: bool) -> None:
        line, column = _place(event)
        if len(self._stack) >= DEEPEST:
            raise self._source.too_deep(line, column)
        if event.tag:
            try:
                refuse_tag(event.tag, kind)
            except ValueError as error:
                self._fault(line, column, str(error))
        if event.anchor is not None:
            self._open.add(event.anchor)
        self._top = _Frame(line, column, event.anchor, is_map=is_map)
        self._stack.append(self._top)

    def _read(self, event: Any, line: int, column: int) -> Any:
        """Return the value of a scalar with a tag; for one that does not fit it, note the fault and return the text."""
        try:
            return read_tagged(event.tag, event.value)
        except ValueError as error:
            self._fault(line, column, str(error))
            return event.value

    def _count(self, weight: int, line: int, column: int) -> None:
        self._total += weight
        if self._total > self._most:
            raise self._source.too_many(line, column)

    def _put(self, node: LocatedValue, weight: int, deepest: int, anchor: str | None) -> None:
        """Put a finished node where it belongs: into a list, as a key, as the value of one, or as the document."""
        if anchor is not None:
            self._anchors[anchor] = (node, weight, deepest)
        self._count(weight, node.line, node.column)
        frame = self._top
        if frame is None:
            self.root = node
            return
        frame.weight += weight
        frame.deepest = max(frame.deepest, deepest)
        if frame.items is not None:
            frame.items.append(node)
        elif frame.key is _AWAITED:
            self._take_key(frame, node.value, node.line, node.column)
        else:
            self._take_value(frame, node)

    def _take_key(self, frame: _Frame, value: Any, line: int, column: int) -> None:
        if self._total > self._most:
            self._count(0, line, column)
        frame.key_line, frame.key_column = line, column
        frame.key = value
        if type(value) is not str:
            frame.key = _DROPPED
            what = "a map or a list" if type(value) in (dict, list) else f"{value!r}"
            self._fault(line, column, f"a key is text, not {what}", "put it in quotes")
        elif value in frame.entries:
            frame.key = _DROPPED
            first = frame.entries[value].key_line
            self._fault(line, column, f"{value!r} is given twice", f"first on line {first}")

    def _take_value(self, frame: _Frame, node: LocatedValue) -> None:
        key, frame.key = frame.key, _AWAITED
        if key is _MERGE:
            frame.merges = [*(frame.merges or ()), *self._maps_in(node)]
        elif key is not _DROPPED:
            frame.entries[key] = node.under(frame.key_line, frame.key_column)

    def _maps_in(self, node: LocatedValue) -> list[LocatedValue]:
        nodes = node.value if type(node.value) is list else [node]
        for one in nodes:
            if not one.is_map:
                self._fault(one.line, one.column, "<< takes a map or a list of maps", "write <<: *NAME")
        return [one for one in nodes if one.is_map]

    def _fault(self, line: int, column: int, message: str, hint: str = "") -> None:
        note(self._faults, fault_at(self._source.at(line, column), message, hint=hint))


def _place(event: Any) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


_AWAITED, _MERGE, _DROPPED = object(), object(), object()
_new = tuple.__new__

_STEPS: dict[str, Callable[[_Composer, Any], None]] = {
    "AliasEvent": _Composer.alias,
    "MappingStartEvent": _Composer.start_map,
    "SequenceStartEvent": _Composer.start_list,
    "MappingEndEvent": _Composer.end,
    "SequenceEndEvent": _Composer.end,
    "DocumentStartEvent": _Composer.document,
}
