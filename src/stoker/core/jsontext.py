"""JSON as every file and stream of ours writes it: strict, compact, non-finite numbers tagged.

Plain JSON has no NaN and no infinities. Here they are `{"$float": "nan" | "inf" | "-inf"}`; a key of a real map
that begins with `$` is written with one more `$`, so reading gives back exactly what was written.
This is for people and programs to read; identity never depends on it (see `encoding`).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_TAGS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NESTED = (dict, list, tuple)
_SURROGATE = re.compile("[\ud800-\udfff]")


def dumps(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Write a value as JSON text without spaces (unless indented); never emits NaN or Infinity literals."""
    try:
        # The plain encoder is several times faster, and nearly everything is finite and untagged.
        text = _write(value, indent, sort_keys=sort_keys)
    except ValueError:
        text = ""
    if text and '"$' not in text:
        return text
    return _write(_tag(value), indent, sort_keys=sort_keys)


def loads(text: str | bytes) -> Any:
    """Read what `dumps` wrote. Raises `ValueError` on anything else, NaN literals included."""
    if isinstance(text, bytes):
        text = text.decode()
    try:
        return (_TAGGED if '"$' in text else _PLAIN).decode(text)
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None


def _write(value: object, indent: int | None, *, sort_keys: bool) -> str:
    if indent is None and not sort_keys:
        text = _COMPACT.encode(value)
    elif indent is not None and not sort_keys and _is_flat(value):
        text = _write_flat(value, indent)
    else:
        separators = (",", ":") if indent is None else (",", ": ")
        text = json.dumps(
            value, allow_nan=False, ensure_ascii=False, separators=separators, indent=indent, sort_keys=sort_keys
        )
    # A file name that is not UTF-8 reaches us with lone surrogates, and those have no bytes to be written as.
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def _is_flat(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and not any(isinstance(item, _NESTED) for item in value.values())


def _write_flat(value: object, indent: int) -> str:
    """Write a map of plain values as `json.dumps` indents it. That has no quick way to indent; without, it has one."""
    line = "\n" + " " * indent
    body = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(f",{line}", ": ")).encode(value)
    return f"{{{line}{body[1:-1]}\n}}"


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _tag(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, dict):
        return {_tag_key(key): _tag(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tag(item) for item in value]
    return value


def _tag_key(key: object) -> object:
    return f"${key}" if isinstance(key, str) and key.startswith("$") else key


def _untag(value: dict[str, Any]) -> Any:
    if len(value) == 1 and "$float" in value:
        return _untag_float(value["$float"])
    return {_untag_key(key): item for key, item in value.items()}


def _untag_float(name: object) -> float:
    if not isinstance(name, str) or name not in _TAGS:
        message = f"$float is nan, inf or -inf, not {name!r}"
        raise ValueError(message)
    return _TAGS[name]


def _untag_key(key: str) -> str:
    if not key.startswith("$"):
        return key
    if not key.startswith("$$"):
        message = f"{key!r} is not a tag"
        raise ValueError(message)
    return key[1:]


def _refuse_constant(name: str) -> Any:
    message = f"{name} is not JSON"
    raise ValueError(message)


# Built once: the module's functions make a new coder for every call that is not the default one.
# Not looking for circles saves a third of the time; a value with one ends in `RecursionError` either way.
_COMPACT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":"))
_PLAIN = json.JSONDecoder(parse_constant=_refuse_constant)
_TAGGED = json.JSONDecoder(parse_constant=_refuse_constant, object_hook=_untag)
