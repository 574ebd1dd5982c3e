"""A sweep, and jobs side by side, as screens get them. Pure.

Of a sweep: its trials ranked by a metric, what varies in them, and what the metric depends on.

The coordinator makes `SweepTrialFacts` from its rows, `api` from a job's folder; from here on both are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.errors import BadInput
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.jsontext import dumps
from stoker.core.text import counted, one_line, point_name
from stoker.engine.metrics.metric_names import Direction, preference
from stoker.engine.ranking import Measure, measure_for
from stoker.jobs.job_diff import ComparisonSide, Fact, compare_sides
from stoker.jobs.trial_bests import BestStep, TrialBests
from stoker.jobs.trial_settings import masked
from stoker.jobs.trials import on_grounds
from stoker.protocol.screen_messages import (
    ComparedBest,
    ComparedValue,
    ComparisonView,
    SweepParameter,
    SweepTrial,
    SweepView,
)
from stoker.protocol.view_messages import JobView
from stoker.views.charts import can_be_drawn, is_geometric
from stoker.views.comparison_lines import fact_text
from stoker.views.parameter_importance import Importance, ParameterColumn, importance_of
from stoker.views.text_tables import value_text

MOST_TRIALS = 1000
_METRICS = 24
"""Of one trial."""
_NAMES = 200
"""Metrics by which a sweep can be ranked, and categories of a parameter."""
_PARAMETERS = 40
_LONGEST_VALUE = 200
_FAILED = frozenset({"failed", "cancelled"})
_LEFT = {"not run": "pending", "stopped": "cancelled"}
"""States of trials that their job has left, as states of jobs."""


@frozen
class SweepTrialFacts:
    """What is known of one trial."""

    n: int
    state: str
    label: str = ""
    point: Mapping[str, Any] = fresh(factory=dict)
    metrics: Mapping[str, float] = fresh(factory=dict)
    """The last value of each."""
    curve_files: tuple[str, ...] = ()
    measured_on: Mapping[str, Any] = fresh(factory=dict)
    """The arguments that decide what its metrics are taken from."""
    step: int | None = None
    of: int | None = None
    seconds: float | None = None
    best_step: int | None = None
    """Where its metrics are from; None: they are the last ones."""

    @property
    def is_done(self) -> bool:
        return self.state == "completed"

    @property
    def is_failed(self) -> bool:
        return self.state in _FAILED


@frozen
class SweepFacts:
    """What is known of a sweep."""

    name: str
    recipe: str
    trials: Sequence[SweepTrialFacts]
    values: Mapping[str, Any] = fresh(factory=dict)
    """The parameters of the job: a recipe may name the metric that it watches."""
    counts: Mapping[str, int] = fresh(factory=dict)
    """Of all trials by state, if there are more than `trials`."""

    @property
    def total(self) -> int:
        return sum(self.counts.values()) or len(self.trials)


def measure_of(sweep: SweepFacts, metric: str = "", better: str = "") -> Measure | None:
    """Return what a sweep is ranked by. Raises `NotFound` if no trial has the metric."""
    return measure_for(sweep.trials, sweep.values, by=metric, direction=direction_of(better))


def direction_of(better: str) -> Direction | None:
    """Return which values were asked for as the better ones: `smaller`, `larger`, or as the metric's name says."""
    if better not in ("", *Direction):
        raise BadInput(f"better: {better[:40]!r} is neither 'smaller' nor 'larger'")
    return Direction(better) if better else None


def best_trials(sweep: SweepFacts, measure: Measure | None) -> list[SweepTrialFacts]:
    """Return the trials whose curves are worth reading: the best by their last values, then the others."""
    return sorted(sweep.trials, key=lambda trial: _place(trial, measure))[:MOST_TRIALS]


def sweep_view(
    sweep: SweepFacts,
    measure: Measure | None,
    shown: Sequence[SweepTrialFacts],
    bests: Mapping[int, BestStep],
    unread: int = 0,
) -> SweepView:
    """Return a sweep with the trials of `best_trials`, each at the step where it is best (`bests`, by number)."""
    trials = sorted((_at_best(trial, bests.get(trial.n)) for trial in shown), key=lambda trial: _place(trial, measure))
    names = sorted({name for one in (*sweep.trials, *trials) for name in one.metrics}, key=preference)
    first = [measure.metric] if measure is not None else []
    order = {name: place for place, name in enumerate(dict.fromkeys([*first, *names]))}
    varying = _varying(sorted(shown, key=lambda trial: trial.n))
    parameters, importance = _parameters(sweep, trials, varying, measure)
    places = _places(trials, measure)
    return SweepView(
        name=sweep.name,
        metric=measure.metric if measure is not None else "",
        is_lower_better=measure is None or measure.direction is Direction.SMALLER,
        metrics=tuple(names[:_NAMES]),
        jobs=dict(sweep.counts) or trial_counts(sweep.trials),
        parameters=parameters,
        trials=tuple(_trial(sweep, trial, varying, order, places.get(trial.n)) for trial in trials),
        total=sweep.total,
        importance_by=importance.method,
        note=_note(sweep, measure, len(trials), unread),
    )


def _at_best(trial: SweepTrialFacts, best: BestStep | None) -> SweepTrialFacts:
    if best is None:
        return trial
    return changed(trial, metrics={**trial.metrics, **best.metrics}, best_step=best.step)


def _place(trial: SweepTrialFacts, measure: Measure | None) -> tuple[int, float, int]:
    """Order trials: by value whether they run or have ended, then without one; those that failed last."""
    value = trial.metrics.get(measure.metric) if measure is not None else None
    if trial.is_failed:
        return 4, 0.0, trial.n
    if value is None or measure is None:
        return 3 if trial.state == "pending" else 2, 0.0, trial.n
    return (0, measure.sort_key(value), trial.n) if math.isfinite(value) else (1, 0.0, trial.n)


def _places(trials: Sequence[SweepTrialFacts], measure: Measure | None) -> dict[int, int]:
    """Return the place of each ranked trial, by number, among those that were measured on the same data."""
    ranked = [trial for trial in trials if _place(trial, measure)[0] == 0]
    grounds = on_grounds(ranked, ranked)
    return {trial.n: place for ground in grounds for place, trial in enumerate(ground.trials, 1)}


def _varying(trials: Sequence[SweepTrialFacts]) -> tuple[str, ...]:
    """Return the parameters with more than one value, or all if none has."""
    names = dict.fromkeys(name for trial in trials for name in trial.point)
    found = [name for name in names if len({_spelt(trial.point.get(name)) for trial in trials}) > 1]
    return tuple((found or list(names))[:_PARAMETERS])


def _spelt(value: Any) -> str:
    return f"{type(value).__name__} {dumps(value)}"


def _parameters(
    sweep: SweepFacts, trials: Sequence[SweepTrialFacts], varying: Sequence[str], measure: Measure | None
) -> tuple[tuple[SweepParameter, ...], Importance]:
    # In the order of the sweep, so that the same trials give the same importance.
    ordered = sorted(trials, key=lambda trial: trial.n)
    found, columns = [], []
    for name in varying:
        values = [masked(sweep.recipe, name, trial.point.get(name)) for trial in ordered]
        parameter, column = _parameter(name, values)
        found.append(parameter)
        columns.append(column)
    metric = [
        math.nan if trial.is_failed or measure is None else trial.metrics.get(measure.metric, math.nan)
        for trial in ordered
    ]
    importance = importance_of(columns, metric)
    if importance.method:
        found = [
            parameter.model_copy(update={"importance": part})
            for parameter, part in zip(found, importance.parts, strict=True)
        ]
    return tuple(found), importance


def _parameter(name: str, values: Sequence[Any]) -> tuple[SweepParameter, ParameterColumn]:
    given = [value for value in values if value is not None]
    if given and all(_is_number(value) for value in given):
        drawn = [float(value) for value in given]
        numbers = tuple(math.nan if value is None else float(value) for value in values)
        return (
            SweepParameter(name=name, is_number=True, is_log=is_geometric(drawn), low=min(drawn), high=max(drawn)),
            ParameterColumn(values=numbers, is_number=True),
        )
    categories = {text: place for place, text in enumerate(dict.fromkeys(_text(value) for value in values))}
    return (
        SweepParameter(name=name, is_number=False, values=tuple(categories)[:_NAMES]),
        ParameterColumn(values=tuple(float(categories[_text(value)]) for value in values), is_number=False),
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and can_be_drawn(value)


def _text(value: Any) -> str:
    return one_line(value_text(value), _LONGEST_VALUE)


def _trial(
    sweep: SweepFacts, trial: SweepTrialFacts, varying: Sequence[str], order: Mapping[str, int], place: int | None
) -> SweepTrial:
    names = sorted(trial.metrics, key=order.__getitem__)[:_METRICS]
    return SweepTrial(
        job=point_name(sweep.name, trial.n),
        number=trial.n,
        label=trial.label,
        state=trial_state(trial),
        parameters={name: _shown(masked(sweep.recipe, name, trial.point.get(name))) for name in varying},
        metrics={name: trial.metrics[name] for name in names},
        best_step=trial.best_step,
        step=trial.step,
        of=trial.of,
        seconds=trial.seconds,
        place=place,
    )


def _shown(value: Any) -> Any:
    """Return a value as it is if it is a number or nothing, else as text."""
    return value if value is None or isinstance(value, bool) or _is_number(value) else _text(value)


def trial_state(trial: SweepTrialFacts) -> str:
    """Return the state of a trial as that of a job."""
    return _LEFT.get(trial.state, trial.state)


def trial_counts(trials: Sequence[SweepTrialFacts]) -> dict[str, int]:
    """Return the number of trials by state."""
    found: dict[str, int] = {}
    for trial in trials:
        state = trial_state(trial)
        found[state] = found.get(state, 0) + 1
    return found


def _note(sweep: SweepFacts, measure: Measure | None, shown: int, unread: int) -> str:
    notes = []
    if sweep.total > shown:
        which = "the best by their last values" if measure is not None else "the first"
        notes.append(f"{shown:,} of {counted(sweep.total, 'trial')}: {which}")
    if unread:
        notes.append(f"last values instead of the best for {counted(unread, 'trial')}: not read yet")
    if measure is not None and measure.why:
        notes.append(f"ranked by {measure.metric}: {measure.why}")
    return "; ".join(notes)


# Jobs side by side, what differs first.

MOST_SIDES = 20
_FACTS = 2000
_CURVES = 200
_LONGEST_NAME = 300
_LONGEST_FACT = 500
_LONGER = ("config",)
"""Sections whose values are shown longer than in a terminal."""


def comparison_measure(
    sides: Sequence[ComparisonSide], metric: str = "", direction: Direction | None = None
) -> Measure | None:
    """Return the metric by which a side's best step is found. Raises `NotFound` if no side has the one asked for."""
    rows = [side.row for side in sides if side.row is not None]
    values = {name: setting.value for side in sides[:1] for name, setting in side.settings.items()}
    return measure_for(rows, values, by=metric, direction=direction)


def find_bests(sides: Sequence[ComparisonSide], measure: Measure | None, bests: TrialBests) -> dict[int, BestStep]:
    """Return the best step of each side that has curves, by its place."""
    if measure is None:
        return {}
    files = {at: side.row.curve_files for at, side in enumerate(sides) if side.row is not None}
    return bests.find(files, measure.metric, measure.direction)[0]


def comparison_view(
    jobs: Sequence[JobView],
    sides: Sequence[ComparisonSide],
    measure: Measure | None = None,
    bests: Mapping[int, BestStep] | None = None,
) -> ComparisonView:
    """Return jobs side by side: all that differs, by section, then what is the same; of very many facts the first."""
    known = [fact for fact in compare_sides(sides) if any(value is not None for value in fact.values)]
    shown = sorted(((fact, not fact.is_same) for fact in known), key=lambda one: not one[1])
    return ComparisonView(
        jobs=tuple(jobs),
        facts=tuple(
            ComparedValue(
                section=fact.section,
                name=one_line(fact.name, _LONGEST_NAME),
                values=tuple(_fact_text(fact, value) for value in fact.values),
                differs=differs,
            )
            for fact, differs in shown[:_FACTS]
        ),
        metrics=_with_curves(sides),
        metric=measure.metric if measure is not None else "",
        is_lower_better=measure is None or measure.direction is Direction.SMALLER,
        bests=tuple(_best(side, (bests or {}).get(at)) for at, side in enumerate(sides)),
    )


def _best(side: ComparisonSide, best: BestStep | None) -> ComparedBest:
    metrics = dict(side.row.metrics) if side.row is not None else {}
    if best is not None:
        metrics |= best.metrics
    names = sorted(metrics, key=preference)[:_CURVES]
    return ComparedBest(step=best.step if best is not None else None, metrics={name: metrics[name] for name in names})


def _fact_text(fact: Fact, value: Any) -> str:
    if value is None:
        return ""
    return one_line(value_text(value), _LONGEST_FACT) if fact.section in _LONGER else fact_text(fact, value)


def _with_curves(sides: Sequence[ComparisonSide]) -> tuple[str, ...]:
    """Return metrics that more than one side has, with curves."""
    counts = Counter(
        name for side in sides if side.row is not None and side.row.curve_files for name in side.row.metrics
    )
    return tuple(sorted((name for name, count in counts.items() if count > 1), key=preference)[:_CURVES])
