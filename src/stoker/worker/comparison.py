"""The trials of a job beside each other: what varies, what came out, best first. Plain data, for any face to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.config.label import label_of
from stoker.model.frozen import fresh, frozen
from stoker.model.json_text import dumps
from stoker.plan.metrics.curves import Point, curves
from stoker.plan.ranking import Direction, Measure, best_first, measure_for, preference
from stoker.worker.gathering import Gathered
from stoker.worker.grounds import Ground, on_grounds
from stoker.worker.masking import masked
from stoker.worker.program_order import RECIPE
from stoker.worker.settings import is_same_value, own_values
from stoker.worker.trials import Trial

CURVES_DRAWN = 24
"""How many trials' curves are read for a picture: more of them is a hedge, not a picture."""
_CURVE_POINTS = 600
_CURVE_METRICS = 3
_FAILED = frozenset({"failed", "cancelled"})


COSTS = ("seconds", "peak_bytes", "peak_gpu_bytes")
"""What is measured of every trial, whatever it reports."""


@frozen
class TrialRow:
    """One trial as it stands in a comparison."""

    n: int
    label: str
    state: str
    is_kept: bool
    params: Mapping[str, Any]
    """The varying parameters, each with its value here."""
    metrics: Mapping[str, float]
    seconds: float | None
    peak_bytes: int | None
    peak_gpu_bytes: int | None
    """On the fullest device."""
    message: str
    curve_files: tuple[str, ...] = ()
    is_named: bool = False
    """Whether somebody gave it its label, which then says more than what varies."""
    measured_on: Mapping[str, Any] = fresh(factory=dict)
    """The arguments that decided what its metrics were taken from."""

    @property
    def costs(self) -> dict[str, float | None]:
        """What it took, by the names of `COSTS`."""
        return {"seconds": self.seconds, "peak_bytes": self.peak_bytes, "peak_gpu_bytes": self.peak_gpu_bytes}

    @property
    def is_done(self) -> bool:
        return self.state == "completed"

    @property
    def is_failed(self) -> bool:
        return self.state in _FAILED

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.n,
            "label": self.label,
            "state": self.state,
            "is_kept": self.is_kept,
            "params": dict(self.params),
            "metrics": dict(self.metrics),
            **self.costs,
            "message": self.message,
            "measured_on": dict(self.measured_on),
        }


@frozen
class Comparison:
    """All trials of a job, by what they are ranked by."""

    job: str
    attempt: str
    recipe: str
    rows: tuple[TrialRow, ...]
    varying: tuple[str, ...]
    """Parameters with more than one value, in the order of the sweep."""
    fixed: Mapping[str, Any]
    """Parameters that are the same in every trial."""
    metrics: tuple[str, ...]
    """Every metric that some trial has: what is ranked by first, then by how much it is likely to matter."""
    measure: Measure | None

    @property
    def grounds(self) -> list[Ground[TrialRow]]:
        """Those that may be compared with each other, best first."""
        return on_grounds(self.rows, [row for row in self.rows if self.is_ranked(row)])

    @property
    def places(self) -> dict[int, int]:
        """By a trial's number its place, from 1, best first, among those that it may be compared with."""
        return {row.n: place for ground in self.grounds for place, row in enumerate(ground.trials, 1)}

    @property
    def best(self) -> TrialRow | None:
        """The first one, if it has a value to be best by and all that have one were measured on the same."""
        grounds = self.grounds
        return self.best_on(grounds[0]) if len(grounds) == 1 else None

    @property
    def speaker(self) -> TrialRow | None:
        """The one that stands for all: the best, or that of the lowest number if nobody is the best of all."""
        return self.best or min(self.rows, key=lambda row: row.n, default=None)

    def best_on(self, ground: Ground[TrialRow]) -> TrialRow | None:
        """Give the first of those that may be compared with each other, if it has a value to be best by."""
        first = ground.trials[0]
        return first if self.is_ranked(first) else None

    def is_ranked(self, row: TrialRow) -> bool:
        """Say whether a trial did not fail and has a value of what is ranked by."""
        return self.measure is not None and self.measure.metric in row.metrics and not row.is_failed


@frozen
class Curves:
    """Curves of one metric over each other, best trial first."""

    metric: str
    lines: tuple[tuple[TrialRow, tuple[Point, ...]], ...]


def compare_trials(  # noqa: PLR0913 - whose trials they are, and what was asked of them
    trials: Sequence[Gathered],
    *,
    job: str,
    attempt: str,
    recipe: str,
    values: Mapping[str, Any],
    by: str = "",
    direction: Direction | None = None,
) -> Comparison:
    """Put trials beside each other. `values` are the job's parameters by dotted name, as they stand without a sweep."""
    points = [one.end.trial.point for one in trials]
    swept = list(dict.fromkeys(name for point in points for name in point))
    varying = tuple(name for name in swept if len({_spelt(point.get(name, values.get(name))) for point in points}) > 1)
    rows = [_row(one, varying, values) for one in trials]
    measure = measure_for(rows, values, by=by, direction=direction)
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    first = [measure.metric] if measure is not None else []
    settled = {name: points[0].get(name, values.get(name)) for name in swept if name not in varying}
    fixed = {**_the_same(recipe, [one.end.trial for one in trials], values), **settled}
    return Comparison(
        job=job,
        attempt=attempt,
        recipe=recipe,
        rows=tuple(best_first(rows, measure)),
        varying=varying,
        fixed={name: masked(recipe, name, value) for name, value in fixed.items() if name not in varying},
        metrics=tuple(dict.fromkeys([*first, *sorted(names, key=preference)])),
        measure=measure,
    )


def read_curves(comparison: Comparison) -> list[Curves]:
    """Read the curves worth a picture: of what is ranked by, then of losses, for the best trials that have any."""
    rows = [row for row in comparison.rows if row.curve_files][:CURVES_DRAWN]
    names = _curve_names(comparison, rows)
    found: dict[str, list[tuple[TrialRow, tuple[Point, ...]]]] = {name: [] for name in names}
    for row in rows if names else ():
        for name, points in curves(row.curve_files, points=_CURVE_POINTS, names=names).items():
            if len(points) > 1:
                found[name].append((row, tuple(points)))
    return [Curves(metric=name, lines=tuple(lines)) for name, lines in found.items() if lines]


def _curve_names(comparison: Comparison, rows: Sequence[TrialRow]) -> list[str]:
    """Choose by the first trials that have curves at all; a trial that died at once has none."""
    names: list[str] = []
    for row in rows:
        names = [name for name, points in curves(row.curve_files, points=4).items() if len(points) > 1]
        if names:
            break
    first = comparison.measure.metric if comparison.measure is not None else ""
    names.sort(key=lambda name: (name != first, "loss" not in name.lower(), preference(name)))
    return names[:_CURVE_METRICS]


def _the_same(recipe: str, trials: Sequence[Trial], values: Mapping[str, Any]) -> dict[str, Any]:
    """Give what every trial has with one value. What a group's option brings may be in some of them only."""
    owns = [own_values(recipe, trial) for trial in trials]
    found = {}
    for name in dict.fromkeys([*values, *(owns[0] if recipe == RECIPE and owns else ())]):
        held = [own[name] for own in owns if name in own]
        if not held and name in values:
            # What only the job says, such as a program's words, is the same for all.
            found[name] = values[name]
        elif len(held) == len(owns) and all(is_same_value(held[0], value) for value in held):
            found[name] = held[0]
    return found


def _spelt(value: Any) -> str:
    # 1, 1.0 and true are three values, which they are not to a set.
    return f"{type(value).__name__} {dumps(value)}"


def _row(one: Gathered, varying: Sequence[str], values: Mapping[str, Any]) -> TrialRow:
    end, trial = one.end, one.end.trial
    return TrialRow(
        n=trial.number,
        label=trial.label,
        state=end.state,
        is_kept=end.is_kept,
        params={name: trial.point.get(name, values.get(name)) for name in varying},
        metrics=end.metrics,
        seconds=end.seconds,
        peak_bytes=end.peak_bytes,
        peak_gpu_bytes=end.peak_gpu_bytes,
        message=end.message,
        curve_files=one.curve_files,
        is_named=trial.label != label_of(trial.point.items()),
        measured_on=trial.measured_on,
    )
