"""What a program says, line by line: the trainer contract, metric lines, and plain output. Pure.

A program that speaks the contract prints one JSON object per line, `{"kind": "step", "step": 12, …}`. A line that
begins with `stoker-metric:` holds `name=number` pairs and nothing else. In any other line such pairs are read as they
come (`stdout_pairs`). Time is linear in the line whatever stands in it; what is too long or is not text is no fault.
Whether a line is right where it stands (the last word, said once) is decided in `trainer_talk`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.frozen import fresh, frozen
from stoker.plan.metrics.file import clean_name
from stoker.plan.speech.stdout_pairs import NO_PAIRS, is_number, pairs_in, take_step

VERSION = 1
"""Of the contract. A higher one is refused as a whole: its lines may mean something else."""
METRIC_PREFIX = b"stoker-metric:"
_RANK, _FIRST_RANK = b"[rank ", b"[rank 0] "
LINE_BYTES = 64 * 1024
"""A longer line is plain output, and only its beginning is looked at."""
_TEXT_LIMIT = 4096
_SHOWN = 200
_INDENT = 64
_WHOLE_LIMIT = 1 << 63
_TAGGED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@frozen
class Contract:
    """The program says which version of the contract it speaks."""

    version: int


@frozen
class Step:
    """Progress, with what was measured there."""

    step: int
    of: int | None = None
    metrics: Mapping[str, float] = fresh(factory=dict)
    lost: int = 0
    """Rows of metrics that had to be dropped so far, because the disk did not keep up."""


@frozen
class Eval:
    """What an evaluation found."""

    step: int | None = None
    metrics: Mapping[str, float] = fresh(factory=dict)


@frozen
class Saved:
    """A checkpoint is whole and durable."""

    path: str
    step: int | None = None


@frozen
class Done:
    """The last word: it did what it was to do."""

    metrics: Mapping[str, float] = fresh(factory=dict)


@frozen
class GaveUp:
    """The last word (`failed`): it could not."""

    message: str


@frozen
class Heartbeat:
    """It lives."""

    quiet_s: float | None = None
    """How long its own code has said nothing, where something else beats for it."""


@frozen
class Metrics:
    """A metric line: numbers without any meaning for the run."""

    step: int | None
    values: Mapping[str, float]


@frozen
class Plain:
    """Ordinary output, and the `name=number` pairs that were found in it."""

    step: int | None = None
    of: int | None = None
    is_epoch: bool = False
    """The step is the number of an epoch: the line has no other."""
    values: Mapping[str, float] = fresh(factory=dict)


@frozen
class Malformed:
    """A line that looks as if it was meant for us and can't be read."""

    why: str
    shown: str
    """The beginning of the line."""
    is_metric_line: bool = False
    """It had our prefix, so it was meant for us for certain; JSON may be anybody's."""


@frozen
class Unknown:
    """A JSON line of a kind that the contract does not have."""

    kind: str


Control = Contract | Step | Eval | Saved | Done | GaveUp | Heartbeat
Said = Control | Metrics | Plain | Malformed | Unknown

PLAIN = Plain()


def parse_line(line: bytes) -> Said:
    """Read a line of a program's standard output, with or without its line end. Of a gang's ranks, the first speaks."""
    if line.startswith(_RANK):
        if not line.startswith(_FIRST_RANK):
            return PLAIN
        line = line[len(_FIRST_RANK) :]
    if len(line) > LINE_BYTES:
        return _plain(line[:LINE_BYTES].rpartition(b" ")[0])
    if b"{" in line[:_INDENT]:
        text = line.strip()
        if text.startswith(b"{") and b'"kind"' in text:
            return _parse_json(text)
    elif b":" in line and (text := line.strip()).startswith(METRIC_PREFIX):
        return _parse_metric_line(text)
    return _plain(line)


def parse_control(line: bytes) -> Said:
    """Read a line of the control file: every one is meant for us."""
    text = line.strip()
    if len(text) > LINE_BYTES:
        return _malformed(f"longer than {LINE_BYTES} bytes", text)
    return _parse_json(text)


def _plain(line: bytes) -> Said:
    pairs = pairs_in(line)
    if pairs is NO_PAIRS:
        return PLAIN
    return Plain(step=pairs.step, of=pairs.of, is_epoch=pairs.is_epoch, values=pairs.values)


def _parse_metric_line(text: bytes) -> Said:
    numbers: dict[str, bytes] = {}
    for word in text[len(METRIC_PREFIX) :].replace(b",", b" ").split():
        name, _, number = word.partition(b"=")
        if not name or not is_number(number):
            return Malformed(why=f"{_show(word)!r} is not name=number", shown=_show(text), is_metric_line=True)
        numbers[name.decode("utf-8", "replace")] = number
    if not numbers:
        return Malformed(why="a metric line without a metric", shown=_show(text), is_metric_line=True)
    _, step = take_step(numbers)
    return Metrics(step=step, values={clean_name(name): float(number) for name, number in numbers.items()})


def _parse_json(text: bytes) -> Said:
    try:
        raw = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return _malformed("not JSON", text)
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        return _malformed("not a JSON object with a kind", text)
    read = _KINDS.get(kind)
    if read is None:
        return Unknown(kind=kind[:_SHOWN])
    try:
        return read(raw)
    except _Wrong as wrong:
        return _malformed(f"{kind}: {wrong}", text)


class _Wrong(ValueError):
    """What is wrong with a line's field."""


def _contract(raw: dict[str, Any]) -> Contract:
    return Contract(version=_required(raw, "version"))


def _step(raw: dict[str, Any]) -> Step:
    of = _whole(raw, "of")
    return Step(step=_required(raw, "step"), of=of, metrics=_numbers(raw), lost=max(0, _whole(raw, "lost") or 0))


def _eval(raw: dict[str, Any]) -> Eval:
    return Eval(step=_whole(raw, "step"), metrics=_numbers(raw))


def _saved(raw: dict[str, Any]) -> Saved:
    path = raw.get("path")
    if not isinstance(path, str) or not path or "\0" in path or len(path) > _TEXT_LIMIT:
        raise _Wrong("path is a file's name")
    return Saved(path=path, step=_whole(raw, "step"))


def _done(raw: dict[str, Any]) -> Done:
    return Done(metrics=_numbers(raw))


def _failed(raw: dict[str, Any]) -> GaveUp:
    message = raw.get("message", "")
    if not isinstance(message, str):
        raise _Wrong("message is text")
    return GaveUp(message=message[:_TEXT_LIMIT])


def _heartbeat(raw: dict[str, Any]) -> Heartbeat:
    quiet_s = raw.get("quiet_s")
    return Heartbeat(quiet_s=None if quiet_s is None else _number(quiet_s, "quiet_s"))


_KINDS: dict[str, Callable[[dict[str, Any]], Control]] = {
    "contract": _contract,
    "step": _step,
    "eval": _eval,
    "saved": _saved,
    "done": _done,
    "failed": _failed,
    "heartbeat": _heartbeat,
}


def _required(raw: dict[str, Any], name: str) -> int:
    value = _whole(raw, name)
    if value is None:
        raise _Wrong(f"{name} is missing")
    return value


def _whole(raw: dict[str, Any], name: str) -> int | None:
    value = raw.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _WHOLE_LIMIT):
        raise _Wrong(f"{name} is a whole number")
    return value


def _numbers(raw: dict[str, Any]) -> dict[str, float]:
    metrics = raw.get("metrics")
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise _Wrong("metrics is an object of numbers by name")
    return {clean_name(name): _number(value, f"metrics.{name[:_SHOWN]}") for name, value in metrics.items()}


def _number(value: Any, name: str) -> float:
    """Read a number. JSON has no NaN: Python's own encoder writes it bare, ours as `{"$float": "nan"}`; both count."""
    if isinstance(value, dict) and value.keys() == {"$float"} and value["$float"] in _TAGGED:
        return _TAGGED[value["$float"]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(f"{name} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _malformed(why: str, text: bytes) -> Malformed:
    return Malformed(why=why, shown=_show(text))


def _show(text: bytes) -> str:
    return text[:_SHOWN].decode("utf-8", "replace")
