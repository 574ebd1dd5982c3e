"""The speed of a device for placement: a benchmark of it beside the same benchmark on a device of known speed.

Placement divides durations by speeds relative to an RTX 4090 (`scheduler.score`), which it knows by the names of
devices. A measured one is declared in the cluster file, as `speed` of the device. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.core.errors import Usage
from stoker.core.frozen import frozen
from stoker.crossval.bench import BenchResult
from stoker.crossval.gate_rule import quantile_of
from stoker.crossval.measures import WALL, sort_of
from stoker.scheduler.score import UNKNOWN_SPEED, speed_of

# Training computes many tokens at once, as the prompt of a model does.
_FIRST = ("prompt_tokens_per_second",)
_SAME = ("kind", "digest", "choice", "prompt_tokens", "decoded_tokens", "argv", "files")


@frozen
class MeasuredSpeed:
    """How fast a device is, and by what."""

    device: str
    speed: float
    """Relative to an RTX 4090."""
    base: str
    base_speed: float
    measure: str
    ratio: float


def measured_speed(result: BenchResult, base: BenchResult, *, shown: str) -> MeasuredSpeed:
    """Return the speed of a result's device by the result of another one. Raises `Usage` with what forbids it."""
    device, other = _device_of(result, "this benchmark"), _device_of(base, shown)
    known = speed_of(other)
    if known == UNKNOWN_SPEED:
        raise Usage(f"the speed of {other} is not known", hint="compare with a device that the scheduling guide lists")
    if odd := [name for name in _SAME if result.subject.get(name) != base.subject.get(name)]:
        raise Usage(f"{shown} measured something else: its {odd[0]} differs", hint="run the same benchmark on both")
    measure, ours, theirs = _measure(result.values(), base.values(), shown)
    ratio = theirs / ours if measure == WALL else ours / theirs
    return MeasuredSpeed(device=device, speed=known * ratio, base=other, base_speed=known, measure=measure, ratio=ratio)


def _device_of(result: BenchResult, shown: str) -> str:
    listed = result.machine.get("devices")
    names = {str(one.get("name", "")) for one in (listed if isinstance(listed, list) else ())} - {""}
    if len(names) != 1 or str(result.subject.get("device", "")).startswith("cpu"):
        ran = "on the CPU" if len(names) == 1 else f"on a machine with {len(names)} sorts of devices"
        raise Usage(f"{shown} ran {ran}", hint="speeds are of devices; a machine needs one sort of them")
    return names.pop()


def _measure(
    ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]], shown: str
) -> tuple[str, float, float]:
    common = [name for name in ours if name in theirs]
    rates = [name for name in _FIRST if name in common] or [name for name in common if sort_of(name) == "throughput"]
    for name in [*rates, *([WALL] if WALL in common else [])]:
        pair = quantile_of(ours[name], 0.5), quantile_of(theirs[name], 0.5)
        if min(pair) > 0.0:
            return name, *pair
    raise Usage(f"{shown} has no throughput or time in common with this benchmark", hint="run the same on both")
