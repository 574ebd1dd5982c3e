"""What numbers of a run mean: which are perplexities, latencies or throughputs, and how much worse each may be.

    tokens_per_second=812.4 latency_ms=3.1      in a line of a program's output
    {"latency_ms": [3.1, 3.0, 3.4]}             the same as a line of JSON; a list is many measurements of one run

Only names that mean one of these, or that a limit names, are read. Of several values of one name the last counts. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal

from stoker.core.errors import Usage
from stoker.core.frozen import frozen
from stoker.core.jsontext import as_float, loads
from stoker.core.text import lazy_pattern
from stoker.crossval.gate_rule import GateLimit, quantile_of, time_limit
from stoker.engine.metrics.metric_names import Direction, known_direction, words_of

MeasureSort = Literal["perplexity", "latency", "throughput", "p95", ""]

WALL = "seconds"
"""The time from start to end of a program."""
CPU = "cpu_seconds"
"""The processor time of a program and its children, which busy neighbours change less. Only on request."""
P95 = "p95"
DEFAULTS: Mapping[str, float] = {"perplexity": 0.02, "latency": 0.05, "throughput": 0.05}
"""How much worse a metric of each sort may be; `p95` only on request."""
FINEST_TIME = 0.02
"""Two copies of one program differ by up to a percent: smaller limits of times find copies, not changes."""
_SORTS = ("perplexity", "latency", "throughput", P95)
_TIMES = frozenset({"ms", "seconds", "time"})
_LINE_BYTES = 1 << 20
_MOST_VALUES = 100_000
_MOST_LEVELS = 8

_PAIR = lazy_pattern(
    r"(?:^|(?<=[\s,;{(\[|]))[\"']?([A-Za-z_][\w./@-]{0,99})[\"']?\s{0,4}[=:]\s{0,8}"
    r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf|NaN|Infinity))(?=$|[\s,;)\]}|]|%)"
)
_PERCENT = lazy_pattern(r"([-+−]?)(\d+(?:\.\d*)?|\.\d+)(\s?%?)")

Value = float | tuple[float, ...]


def sort_of(name: str) -> MeasureSort:
    """Return what a metric's name says it is; "" if it is none of a gate's."""
    words = words_of(name)
    if "p95" in words:
        return "p95"
    if "perplexity" in words or "ppl" in words:
        return "perplexity"
    is_rate = "per" in words and not {"time", "ms", "latency"} & set(words)
    if "throughput" in words or "fps" in words or is_rate:
        return "throughput"
    return "latency" if "latency" in words or name == WALL else ""


def read_measures(output: str, names: Iterable[str] = ()) -> dict[str, Value]:
    """Read the measures that a program printed: those whose names mean something, and those of `names`."""
    wanted = frozenset(names)
    return {
        name: value
        for line in output.splitlines()
        for name, value in _of_line(line[:_LINE_BYTES])
        if name in wanted or sort_of(name)
    }


def numbers_in(body: Mapping[str, object], *, below: str = "") -> dict[str, Value]:
    """Return the numbers and lists of numbers of a JSON object; of objects in it, with a `.` between the names."""
    found: dict[str, Value] = {}
    for name, raw in body.items():
        whole = f"{below}{name}"
        if isinstance(raw, dict) and below.count(".") < _MOST_LEVELS:
            found |= numbers_in(raw, below=f"{whole}.")
        elif (value := _value(raw)) is not None:
            found[whole] = value
    return found


def _of_line(line: str) -> Iterable[tuple[str, Value]]:
    text = line.strip()
    if text.startswith("{"):
        try:
            body = loads(text)
        except ValueError:
            body = None
        if isinstance(body, dict):
            return [(str(name), value) for name, raw in body.items() if (value := _value(raw)) is not None]
    return [(match[1], float(match[2])) for match in _PAIR.finditer(text)]


def _value(raw: object) -> Value | None:
    if type(raw) in (int, float):
        return as_float(raw)  # type: ignore[arg-type]  # one of the two
    if isinstance(raw, list) and raw and all(type(one) in (int, float) for one in raw):
        return tuple(as_float(one) for one in raw[:_MOST_VALUES])
    return None


def in_one_number(measures: Mapping[str, Value]) -> dict[str, float]:
    """Return one number for each measure; a list becomes its median, and its 95th percentile under its name and p95."""
    found: dict[str, float] = {}
    for name, value in measures.items():
        if isinstance(value, tuple):
            found[name] = quantile_of(value, 0.5)
            found[f"{name}_{P95}"] = quantile_of(value, 0.95)
        else:
            found[name] = value
    return found


# Limits: what a user asked for, over the defaults.


@frozen
class LimitRequest:
    """One `--limit`: of a sort of metrics, or of one metric by its name."""

    name: str
    change: float
    """0: no limit."""
    direction: Direction | None = None


def parse_limit(text: str) -> LimitRequest:
    """Parse `latency=5%`, `throughput=-5%`, `accuracy=-1%` or `latency=off`. Raises `ValueError`."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name:
        message = f"{text!r} is not NAME=CHANGE, such as latency=5%"
        raise ValueError(message)
    if value == "off":
        return LimitRequest(name=name, change=0.0)
    match = _PERCENT.fullmatch(value)
    if match is None:
        message = f"{value!r} is not a change, such as 5% or -5%"
        raise ValueError(message)
    change = float(match[2]) / (100.0 if match[3] else 1.0)
    if not 0.0 < change < 1.0:
        meant = f": {value}% is written with its sign" if 1.0 <= change < 100.0 and not match[3] else ""
        message = f"{value!r} is not between 0 and 100%{meant}"
        raise ValueError(message)
    direction = {"+": Direction.SMALLER, "": None}.get(match[1], Direction.LARGER)
    if name in _SORTS and direction is not None and direction is not _direction_of_sort(name):
        message = f"{value!r}: {name} is better when it is {_direction_of_sort(name)}"
        raise ValueError(message)
    return LimitRequest(name=name, change=change, direction=direction)


def limits_for(
    measured: Sequence[str], requests: Sequence[LimitRequest], others: Container[str] = ()
) -> list[GateLimit]:
    """Return the limit of each metric that is to be decided, in the order in which they were measured.

    A program's own latencies and throughputs stand for its speed; the time of the whole program is decided only if it
    prints none of them. `others` have their limits already. Raises `Usage` for a request that no metric fulfils.
    """
    by_name = {one.name: one for one in requests}
    has_speed = any(sort_of(name) in ("latency", "throughput") for name in measured if name != WALL)
    found = []
    used: set[str] = set()
    for name in measured:
        sort = sort_of(name)
        request = by_name.get(name) or by_name.get(sort)
        if request is None and (sort not in DEFAULTS or (name == WALL and has_speed)):
            continue
        if request is not None and request.name != name and name == WALL and has_speed:
            continue
        if request is not None:
            used.add(request.name)
        change = DEFAULTS.get(sort, 0.0) if request is None else request.change
        if change:
            found.append(_limit(name, sort, change, request.direction if request is not None else None))
    request = by_name.get(P95)
    if request is not None and request.change and P95 not in used:
        used.add(P95)
        found += [
            time_limit(f"{P95} of {one.metric}", request.change, Direction.SMALLER, 0.95)
            for one in found
            if sort_of(one.metric) == "latency"
        ]
    # A sort of metrics may be off although none is measured; a single metric that is off has to be one.
    unused = [
        name
        for name, one in by_name.items()
        if name not in used and name not in others and (one.change or name not in _SORTS)
    ]
    if unused:
        hint = f"measured: {', '.join(measured)}"
        raise Usage(f"--limit {unused[0]}: no such metric was measured on both sides", hint=hint)
    return found


def lost_measure(baseline: Sequence[str], candidate: Container[str], requests: Sequence[LimitRequest]) -> str:
    """Return the first measure of a baseline that has a limit and that the candidate does not report; else "".

    The time of a whole program is none: no program reports it, and a result that was known has none.
    """
    lost = [name for name in baseline if name not in candidate and name != WALL]
    # A request that nothing fulfils is refused elsewhere.
    asked = {one.name for one in requests}
    limited = {source_of(one) for one in limits_for(baseline, requests, asked)} if lost else set()
    return next((name for name in lost if name in limited), "")


def _limit(name: str, sort: str, change: float, direction: Direction | None) -> GateLimit:
    if sort in ("latency", "throughput", P95) or _TIMES & set(words_of(name)):
        return time_limit(name, change, direction or _direction_of_sort(sort))
    known = direction or (Direction.SMALLER if sort == "perplexity" else known_direction(name))
    if known is None:
        raise Usage(
            f"--limit {name}: its name does not say whether more is better",
            hint=f"--limit {name}=+{change * 100:g}% if more is worse, {name}=-{change * 100:g}% if less is worse",
        )
    return GateLimit(metric=name, change=change, direction=known)


def _direction_of_sort(sort: str) -> Direction:
    return Direction.LARGER if sort == "throughput" else Direction.SMALLER


def source_of(limit: GateLimit) -> str:
    """Return the name of the measure that a limit is about."""
    return limit.metric.removeprefix(f"{P95} of ") if limit.quantile is not None else limit.metric


def notes_on(limits: Sequence[GateLimit]) -> tuple[str, ...]:
    """Return what a reader of the verdicts should know about their limits."""
    fine = [one.metric for one in limits if one.share < 1.0 and one.change < FINEST_TIME]
    if not fine:
        return ()
    return (f"limit of {', '.join(fine)} below {FINEST_TIME:.0%}: two copies of one program differ by up to a percent",)
