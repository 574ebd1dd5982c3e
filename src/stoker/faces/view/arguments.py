"""A recipe's arguments as people read them, from the JSON Schema that the index keeps; and a line to start from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

_WORDS = {"boolean": "bool", "integer": "int", "number": "float", "string": "text", "null": "null"}
_LONGEST_TYPE = 32
_LIMITS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def argument_rows(schema: Mapping[str, Any]) -> list[list[str]]:
    """Give name, type, default, limits and help of each argument."""
    required = set(schema.get("required", ()))
    rows = []
    for name, body in schema.get("properties", {}).items():
        kind, told = type_text(body), [body.get("description", "")]
        if len(kind) > _LONGEST_TYPE:
            kind, told = "choice", [*told, f"({kind.replace('|', ', ')})"]
        if body.get("x-runtime"):
            told.append("(does not change the result)")
        default = "required" if name in required else value_text(body.get("default"))
        rows.append([name, kind, default, limits_text(body), " ".join(text for text in told if text)])
    return rows


def type_text(body: Mapping[str, Any]) -> str:
    """Name a type."""
    if "enum" in body:
        return "|".join(map(str, body["enum"]))
    if "anyOf" in body:
        return " or ".join(type_text(one) for one in body["anyOf"])
    if body.get("type") == "array":
        return f"list of {type_text(body.get('items', {}))}"
    if body.get("type") == "object":
        return "map"
    if body.get("format") == "path":
        return "path"
    return _WORDS.get(str(body.get("type")), str(body.get("type", "any")))


def limits_text(body: Mapping[str, Any]) -> str:
    """Name the limits of a number, also of one that may be missing or stands in a list."""
    inner = [*body.get("anyOf", ()), *([body["items"]] if isinstance(body.get("items"), dict) else ())]
    own = [f"{sign}{_plain(body[name])}" for name, sign in _LIMITS if name in body]
    return " ".join([*own, *(text for one in inner if (text := limits_text(one)))])


def value_text(value: Any) -> str:
    """Write a value as it would be typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(value_text, value))}]"
    return str(value)


def example_line(name: str, schema: Mapping[str, Any], prefill: Mapping[str, Any]) -> str:
    """Give a line that pastes into a shell: what is required, and what the cookbook proposes."""
    words = [f"stoker run {name}"]
    required = set(schema.get("required", ()))
    for argument, body in schema.get("properties", {}).items():
        value = prefill.get(argument)
        if argument in required and value == f"<{type_text(body)}>":
            value = type_text(body).upper().replace(" ", "_")
        elif argument not in required and value == body.get("default") and argument != _first(schema):
            continue
        if isinstance(value, dict) or value is None:
            continue
        words.append(shlex.quote(f"{argument}={value_text(value)}"))
    return " ".join(words)


def _plain(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else f"{limit:g}"


def _first(schema: Mapping[str, Any]) -> str:
    return next(iter(schema.get("properties", {})), "")
