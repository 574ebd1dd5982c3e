"""Tables, times, signs, paths and arguments of recipes as text."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stoker.core.display_width import filled, text_width, wrapped
from stoker.core.frozen import frozen
from stoker.core.text import format_duration, one_line, outside

if TYPE_CHECKING:
    from stoker.jobs.trials import ComparableTrials


_GAP = "  "


def table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), columns: int = 0, indent: str = ""
) -> list[str]:
    """Return rows as lines. `columns` is the width of the terminal, 0 for no limit; only the last column wraps.

    Line breaks in cells are escaped. Wide characters count as two columns.
    """
    shown = [[outside(cell) for cell in row] for row in ((header, *rows) if header else rows)]
    if not shown:
        return []
    count = max(map(len, shown))
    widths = [max((text_width(row[place]) for row in shown if place < len(row)), default=0) for place in range(count)]
    before = len(indent) + sum(widths[:-1]) + len(_GAP) * (count - 1)
    room = columns - before if columns else 0
    lines = []
    for row in shown:
        cells = [filled(cell, widths[place]) for place, cell in enumerate(row[: count - 1])]
        last = row[count - 1] if len(row) == count else ""
        first, *more = _wrap(last, room)
        lines.append((indent + _GAP.join([*cells, first])).rstrip())
        lines += [" " * before + line for line in more]
    return lines


def _wrap(text: str, room: int) -> list[str]:
    return [text] if room < 20 or text_width(text) <= room else wrapped(text, room)


# Times and durations.


def ago(then_s: float, now_s: float) -> str:
    """Return how long ago something was."""
    passed_s = now_s - then_s
    if passed_s < 1:
        return "just now"
    for unit_s, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {word} ago"
    return f"{int(passed_s)} s ago"


def span(seconds: float | None) -> str:
    """Return a duration in a suitable unit."""
    if seconds is None:
        return ""
    if seconds < 0.00995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.2f}s" if seconds < 0.95 else format_duration(seconds)


def moment(then_s: float, now_s: float) -> str:
    """Return a local time: `now`, `14:40`, or on another day `Nov 18 14:40`."""
    if abs(then_s - now_s) < 1:
        return "now"
    then, now = datetime.fromtimestamp(then_s).astimezone(), datetime.fromtimestamp(now_s).astimezone()
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%b %d %H:%M}"


@frozen
class Signs:
    """The signs before lines, in Unicode and ASCII; the line repeats its sign in words."""

    ran: str
    hit: str
    failed: str
    left: str
    warned: str
    again: str


UNICODE = Signs(ran="✓", hit="=", failed="✗", left="-", warned="!", again="~")
ASCII = Signs(ran="+", hit="=", failed="x", left="-", warned="!", again="~")


def with_signs(text: str, signs: Signs) -> str:
    """Return a text with the signs that the terminal can show."""
    return text.replace(UNICODE.ran, signs.ran).replace(UNICODE.failed, signs.failed)


def near_path(path: str, folder: str) -> str:
    """Return a path relative to a folder if it is below it."""
    relative = os.path.relpath(path, folder)
    return path if relative.startswith("..") else relative


# A recipe's arguments as rows, from the JSON Schema of the index; and an example command.


_WORDS = {"boolean": "bool", "integer": "int", "number": "float", "string": "text", "null": "null"}
_LONGEST_TYPE = 32
_LIMITS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def argument_rows(schema: Mapping[str, Any]) -> list[list[str]]:
    """Return name, type, default, limits and help of each argument; nested ones by dotted names."""
    rows = []
    for name, body, is_required in _leaves(schema):
        kind, shown = type_text(body), [body.get("description", "")]
        if len(kind) > _LONGEST_TYPE:
            kind, shown = "choice", [*shown, f"({kind.replace('|', ', ')})"]
        if body.get("x-runtime"):
            shown.append("(does not change the result)")
        default = "required" if is_required else value_text(body.get("default"))
        rows.append([name, kind, default, limits_text(body), " ".join(text for text in shown if text)])
    return rows


def type_text(body: Mapping[str, Any]) -> str:
    """Return a type as text."""
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
    """Return the limits of a number, also of an optional one or of items of a list."""
    inner = [*body.get("anyOf", ()), *([body["items"]] if isinstance(body.get("items"), dict) else ())]
    own = [f"{sign}{_plain(body[name])}" for name, sign in _LIMITS if name in body]
    return " ".join([*own, *(text for one in inner if (text := limits_text(one)))])


def value_text(value: Any) -> str:
    """Return a value as it would be typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(value_text, value))}]"
    return str(value)


def file_schema(name: str, summary: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a file with a recipe's arguments, for `--config`.

    Nothing is required, as a command line may add it, and every value may be a reference (`${…}`).
    """
    about = {
        "defaults": {"type": "array", "description": "files that this one is built on"},
        "sweep": {
            "type": "object",
            "description": "values of each axis, by argument; and zip, repeat, exclude, sample",
        },
    }
    return {
        "title": name,
        "description": summary,
        "type": "object",
        "properties": {name: _or_reference(body) for name, body in args["properties"].items()} | about,
        "additionalProperties": False,
    }


def _or_reference(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an argument that may be a reference, too."""
    if body.get("type") == "object" and "properties" in body:
        inner = {name: _or_reference(one) for name, one in body["properties"].items()}
        return {**{key: value for key, value in body.items() if key != "required"}, "properties": inner}
    if body.get("type") == "string":
        return dict(body)
    shown = {key: body[key] for key in ("description", "default") if key in body}
    own = {key: value for key, value in body.items() if key not in {"description", "default", "x-runtime"}}
    return {"anyOf": [own, {"type": "string", "pattern": r"\$\{.+\}"}], **shown}


def example_line(name: str, schema: Mapping[str, Any], prefill: Mapping[str, Any]) -> str:
    """Return a shell command with the required arguments and those that the cookbook proposes."""
    words = [f"stoker run {name}"]
    filled = flat(prefill)
    for position, (argument, body, is_required) in enumerate(_leaves(schema)):
        value = filled.get(argument)
        if is_required and value == f"<{type_text(body)}>":
            value = type_text(body).upper().replace(" ", "_")
        elif not is_required and value == body.get("default") and position > 0:
            continue
        if isinstance(value, dict) or value is None:
            continue
        words.append(shlex.quote(f"{argument}={value_text(value)}"))
    return " ".join(words)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found.update({f"{name}.{inner}": one for inner, one in flat(value).items()})
        else:
            found[name] = value
    return found


def _leaves(schema: Mapping[str, Any], *, is_runtime: bool = False) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    required = set(schema.get("required", ()))
    for name, body in schema.get("properties", {}).items():
        below_runtime = is_runtime or bool(body.get("x-runtime"))
        if "properties" in body:
            for inner, leaf, is_required in _leaves(body, is_runtime=below_runtime):
                yield f"{name}.{inner}", leaf, is_required
        else:
            yield name, {**body, "x-runtime": below_runtime}, name in required


def _plain(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else f"{limit:g}"


# The settings by which trials are not comparable.

_LONGEST = 60


def ground_text(told_by: Mapping[str, Any], near: str) -> str:
    """Return the distinguishing settings of a group, such as `data=legal.jsonl`; paths relative to `near`."""
    return ", ".join(f"{name}={one_line(ground_value(value, near), _LONGEST)}" for name, value in told_by.items())


def ground_value(value: Any, near: str) -> str:
    """Return one distinguishing value; a path relative to `near`."""
    is_path = isinstance(value, str) and os.path.isabs(value)
    return near_path(value, near) if is_path else value_text(value)


def no_finite_text(metric: str) -> str:
    """Return why there is no best trial if all values of a metric are NaN or infinite."""
    return f"no trial has a finite {metric}"


def not_compared_text(metric: str, grounds: Sequence[ComparableTrials[Any]]) -> str:
    """Return why trials of several groups are not ranked against each other."""
    names = list(grounds[0].told_by)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{metric} on different {listed} is not compared"
