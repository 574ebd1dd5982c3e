"""TOML files into located trees: read by `tomllib`, located by `toml_places`, bounded as YAML is."""

from __future__ import annotations

import re
import sys
from typing import Any

from stoker.config.caret import fault_at
from stoker.config.located import DEEPEST, Located, Source, StopReading, note
from stoker.config.toml_places import Path, Spot, find_long_number, find_places, refuse_deep_keys, refuse_many_values
from stoker.model.faults import Fault

_SAID = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_PLAIN = (bool, int, float, str)
# Whatever is of these is never refused.
_SMALL = frozenset({bool, float, str})
_MOST_BITS = 8192
_LARGE = 32 * 1024


def read_toml(source: Source, faults: list[Fault], *, is_placed: bool = True) -> Located | None:
    """Read a file; nothing if it could not be read to its end. Without places, it takes half the time."""
    import tomllib  # noqa: PLC0415 - milliseconds that only a TOML file should cost

    try:
        refuse_deep_keys(source)
        refuse_many_values(source)
        raw = _plain(source)
        if raw is None:
            raw = tomllib.loads(source.text)
        if not is_placed and (tree := _unplaced(raw, source.most_values)) is not None:
            return tree
        places = find_places(source) if is_placed else {}
        return _Locating(source, faults, places).locate(raw, (), Spot((1, 1), (1, 1)))
    except tomllib.TOMLDecodeError as error:
        faults.append(_syntax_fault(source, str(error)))
    except RecursionError:
        faults.append(Fault(source.name, f"is nested deeper than {DEEPEST} levels"))
    except ValueError as error:
        faults.append(_number_fault(source) or Fault(source.name, f"is not TOML: {error}"))
    except StopReading as stop:
        faults.append(stop.fault)
    return None


def _plain(source: Source) -> dict[str, Any] | None:
    """Give what a large file says, if that can be read quickly. A small one is read before the quick way is ready."""
    if len(source.text) < _LARGE:
        return None
    from stoker.config.toml_plain import read_plain  # noqa: PLC0415 - its patterns cost as much as a small file

    return read_plain(source.lines)


def _number_fault(source: Source) -> Fault | None:
    """Python limits the digits that it reads, and tomllib passes that on without a place: find the place."""
    found = find_long_number(source, sys.get_int_max_str_digits())
    if found is None:
        return None
    origin, count = found
    return fault_at(origin, f"a whole number of {count} digits is too large", hint="put it in quotes if it is text")


def _syntax_fault(source: Source, said: str) -> Fault:
    found = _SAID.fullmatch(said)
    if found is None:
        return Fault(source.name, f"is not TOML: {said}")
    what = found["what"][:1].lower() + found["what"][1:]
    if found["line"]:
        origin = source.at(int(found["line"]), int(found["column"]))
    else:
        line = max(len(source.lines), 1)
        origin = source.at(line, len(source.lines[line - 1]) + 1 if source.lines else 1)
    hint = "put text in quotes" if what.startswith("invalid value") else ""
    return fault_at(origin, f"is not TOML: {what}", hint=hint)


def _unplaced(raw: dict[str, Any], most_values: int) -> Located | None:
    """Give values without their places; nothing if there is anything among them that would have to be refused."""
    count = 0
    # The named tuple's own way goes through Python, and there may be half a million of them.
    make = tuple.__new__

    def bare(value: Any, depth: int) -> Located:
        nonlocal count
        count += 1
        if depth > DEEPEST:
            raise _Odd
        kind = type(value)
        if kind in _SMALL:
            return make(Located, (value, 1, 1, 1, 1))
        inner = depth + 1
        if kind is dict:
            made: Any = {}
            for key, item in value.items():
                if type(item) in _SMALL and depth < DEEPEST:
                    count += 1
                    made[key] = make(Located, (item, 1, 1, 1, 1))
                else:
                    made[key] = bare(item, inner)
        elif kind is list:
            made = [bare(item, inner) for item in value]
        elif kind is int and value.bit_length() <= _MOST_BITS:
            made = value
        else:
            raise _Odd
        return make(Located, (made, 1, 1, 1, 1))

    try:
        tree = bare(raw, 0)
    except _Odd:
        return None
    return tree if count <= most_values else None


class _Odd(Exception):
    """A value that is refused at its place."""


class _Locating:
    """Joins values with their places."""

    def __init__(self, source: Source, faults: list[Fault], places: dict[Path, Spot]) -> None:
        self._source = source
        self._faults = faults
        self._places = places
        self._count = 0

    def locate(self, raw: Any, path: Path, around: Spot) -> Located:
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
        return Located(value, *spot.value, *spot.key)

    def _refuse(self, raw: Any, path: Path, spot: Spot) -> None:
        message = hint = ""
        if type(raw) not in _PLAIN:
            message, hint = f"{raw} is a date or a time, which is no value here", "put it in quotes"
        elif type(raw) is int and raw.bit_length() > _MOST_BITS:
            message = f"a whole number of {raw.bit_length()} bits is too large"
        if message:
            key = "".join(f"[{step}]" if type(step) is int else f".{step}" for step in path).removeprefix(".")
            note(self._faults, fault_at(self._source.at(*spot.value), message, hint=hint, key=key))
