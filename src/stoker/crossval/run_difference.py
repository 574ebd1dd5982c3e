"""Two finished jobs beside each other: the first thing in which they differ, and whether their numbers agree.

    code → data → config → environment → device → numbers

A difference above is an explanation; only the numbers decide. They agree if every metric that both have, and every
tensor of files that both results have, are equal within the tolerance. Metrics of time, speed and memory are left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.core.errors import BadInput, Damaged
from stoker.core.frozen import fresh, frozen
from stoker.core.text import counted, some_of
from stoker.crossval.ladder import Outcome
from stoker.crossval.measures import sort_of
from stoker.crossval.model_files import open_model
from stoker.crossval.tensor_files import compare_models
from stoker.engine.metrics.metric_names import words_of
from stoker.jobs.comparison import COSTS
from stoker.jobs.job_diff import Fact

LAYERS = ("code", "data", "config", "environment", "device", "numbers")
_SHOWN = 3
_COST_UNITS = frozenset({"s", "ms", "seconds", "time", "duration", "bytes", "mb", "gb", "mib", "gib"})
"""Last words of such names: `step_time`, `cost_s`, `peak_bytes`."""


@frozen
class DifferenceLayer:
    """One layer of two jobs."""

    name: str
    outcome: Outcome
    """Failed: they differ there. Skipped: not known for both."""
    text: str
    names: tuple[str, ...] = ()
    """What differs, the first one first."""

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.name, "outcome": str(self.outcome), "text": self.text, "names": list(self.names)}


@frozen
class RunDifference:
    """All layers of two jobs, and the verdict about their numbers."""

    layers: tuple[DifferenceLayer, ...]

    @property
    def first(self) -> DifferenceLayer | None:
        return next((one for one in self.layers if one.outcome is Outcome.FAILED), None)

    @property
    def outcome(self) -> Outcome:
        numbers = self.layers[-1].outcome
        return Outcome.UNDECIDED if numbers is Outcome.SKIPPED else numbers

    def to_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "outcome": str(self.outcome),
            "first_difference": None if first is None else first.name,
            "layers": [one.to_json() for one in self.layers],
        }


@frozen
class WeightFiles:
    """The files with weights in the result of a job."""

    paths: Mapping[str, str] = fresh(factory=dict)
    """Where each is, by its path in the result."""
    missing: str = ""
    """Why the result can't be read; empty: it was read."""


def weight_files(folders: Iterable[tuple[str, str]]) -> WeightFiles:
    """Return the files with weights below folders; the first of each pair is the folder's path in the result."""
    return WeightFiles(
        paths={
            os.path.join(below, path): os.path.join(folder, path)
            for below, folder in folders
            for path in _weights_below(folder)
        }
    )


def run_difference(
    facts: Sequence[Fact],
    devices: Sequence[Mapping[str, Any]],
    results: Sequence[WeightFiles],
    *,
    tolerance: float = 0.0,
) -> RunDifference:
    """Compare two jobs: all their facts, their devices and the weights in their results."""
    layers = [_layer_of(name, [fact for fact in facts if fact.section == name]) for name in LAYERS[:4]]
    return RunDifference(layers=(*layers, _device_layer(devices), _numbers(facts, results, tolerance)))


def _layer_of(name: str, facts: Sequence[Fact]) -> DifferenceLayer:
    known = [fact for fact in facts if None not in fact.values]
    different = tuple(fact.name for fact in facts if not fact.is_same)
    if different:
        text = f"{counted(len(different), 'difference')}: {some_of(list(different), _SHOWN)}"
        return DifferenceLayer(name=name, outcome=Outcome.FAILED, text=text, names=different)
    if not known:
        return DifferenceLayer(name=name, outcome=Outcome.SKIPPED, text="not known")
    return DifferenceLayer(name=name, outcome=Outcome.PASSED, text=f"the same ({counted(len(known), 'fact')})")


def _device_layer(devices: Sequence[Mapping[str, Any]]) -> DifferenceLayer:
    if len(devices) != 2 or not all(devices):
        return DifferenceLayer(
            name="device", outcome=Outcome.SKIPPED, text="a job has no receipt that names its machine"
        )
    first, second = devices
    different = tuple(name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name))
    if not different:
        return DifferenceLayer(name="device", outcome=Outcome.PASSED, text="the same")
    pairs = [f"{name} {first.get(name)} and {second.get(name)}" for name in different]
    return DifferenceLayer(name="device", outcome=Outcome.FAILED, text=some_of(pairs, _SHOWN), names=different)


def _numbers(facts: Sequence[Fact], results: Sequence[WeightFiles], tolerance: float) -> DifferenceLayer:
    metrics = [one for one in facts if one.section == "metrics" and not _is_cost(one.name) and None not in one.values]
    different = [fact for fact in metrics if not all(_agree(fact.values[0], value, tolerance) for value in fact.values)]
    found = [f"{fact.name} {fact.values[0]!r} and {fact.values[1]!r}" for fact in different]
    names = [fact.name for fact in different]
    count = 0
    for name, is_same, text in _tensors(results, tolerance):
        count += 1
        if not is_same:
            found.append(text)
            names.append(name)
    left_out = _left_out(results)
    if found:
        text = f"{some_of(found, _SHOWN)}{left_out}"
        return DifferenceLayer(name="numbers", outcome=Outcome.FAILED, text=text, names=tuple(names))
    if not metrics and not count:
        text = f"they have no metric in common, and no weights to compare{left_out}"
        return DifferenceLayer(name="numbers", outcome=Outcome.SKIPPED, text=text)
    text = f"the same ({counted(len(metrics), 'metric')}, {counted(count, 'tensor')}){left_out}"
    return DifferenceLayer(name="numbers", outcome=Outcome.PASSED, text=text)


def _is_cost(name: str) -> bool:
    """Return True for a metric of time, speed or memory, which differs between any two runs."""
    return (
        name in COSTS
        or sort_of(name) in ("latency", "throughput", "p95")
        or not _COST_UNITS.isdisjoint(words_of(name)[-1:])
    )


def _left_out(results: Sequence[WeightFiles]) -> str:
    """Return which weights were not compared, as the end of a sentence; empty: none."""
    missing = [one.missing for one in results if one.missing]
    if not missing:
        first, second = (one.paths.keys() for one in results)
        missing = [f"only one of them has {path}" for path in sorted(first ^ second)]
    return f"; weights not compared: {some_of(missing, _SHOWN)}" if missing else ""


def _agree(one: object, other: object, tolerance: float) -> bool:
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return one == other
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= tolerance * max(abs(one), abs(other))


def _tensors(results: Sequence[WeightFiles], tolerance: float) -> Iterator[tuple[str, bool, str]]:
    """Yield name, agreement and text of each tensor in files that both results have."""
    first, second = (one.paths for one in results)
    for path in sorted(first.keys() & second.keys()):
        try:
            pair = open_model(Path(first[path])), open_model(Path(second[path]))
        except (BadInput, Damaged) as error:
            yield path, False, str(error)
            continue
        for one in compare_models(*pair):
            agrees = one.is_same or (one.outcome == "different" and one.nmse <= tolerance**2)
            name = one.name or one.reference_name
            change = f"{counted(one.different, 'value differs', 'values differ')}, the largest by {one.max_abs:.1e}"
            yield f"{path}: {name}", agrees, f"{path}: {name}: {change if one.different else one.text}"


def _weights_below(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith((".safetensors", ".gguf")):
                yield os.path.relpath(os.path.join(parent, name), folder)
