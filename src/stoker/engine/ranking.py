"""Which trial is best: by which metric, in which direction, and why that one. Pure; says what it guessed.

Names decide where nothing else does: `val_loss` is better smaller, `accuracy` larger. A metric of rows that were
held out goes before one of the rows that were trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from stoker.core.errors import NotFound
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean
from stoker.engine.metrics.metric_names import (
    Direction,
    known_direction,
    preference,
    without_split,
    words_of,
)


@frozen
class Measure:
    """What trials are ranked by."""

    metric: str
    direction: Direction
    why: str
    """How it was chosen, for people; empty if both metric and direction were given."""

    def sort_key(self, value: float) -> float:
        """Return a number that is smaller for a better value."""
        return value if self.direction is Direction.SMALLER else -value


class RankableTrial(Protocol):
    """What can be ranked."""

    @property
    def n(self) -> int:
        """Its number, which decides among equals."""

    @property
    def is_done(self) -> bool:
        """True if it completed."""

    @property
    def is_failed(self) -> bool: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


T = TypeVar("T", bound=RankableTrial)

_NAMING = ("rank_by", "monitor", "metric", "objective")
"""Parameters by which recipes and programs name the metric that they watch themselves."""
_NOT_GUESSED = frozenset({
    "epoch", "epochs", "step", "steps", "iter", "iters", "iteration", "iterations", "lr", "learning_rate", "gnorm",
    "grad_norm", "gradient_norm",
})  # fmt: skip
"""Words of metrics that say where a trial is or how it is trained, not how good it is."""
_SPEED = preference("throughput")[0]
"""The first kind of metric that does not measure quality."""


def measure_for(
    trials: Sequence[RankableTrial],
    params: Mapping[str, Any],
    *,
    by: str = "",
    direction: Direction | None = None,
) -> Measure | None:
    """Choose what to rank by: what is asked for, else what names suggest; nothing if no metric can be guessed.

    Where every measure of quality is NaN or infinite in all trials, one of these is chosen, not a metric of speed.
    `params` are the values of the configuration: a recipe that says `rank_by=f1` has named its main score.
    """
    counts = _counts(trials)
    if by:
        if by not in counts:
            listed = ", ".join(sorted(counts)[:12]) or "none"
            hint = did_you_mean(by, counts) or f"there are: {listed}"
            raise NotFound(f"no trial has a metric {by!r}", hint=hint)
        known = known_direction(by)
        if direction is not None:
            return Measure(metric=by, direction=direction, why="")
        why = "by its name" if known is not None else "its name does not tell"
        return Measure(metric=by, direction=known or Direction.SMALLER, why=why)
    guess = _named_by(params, counts) or _guess(counts, trials)
    if guess is None:
        return None
    metric, why = guess
    return Measure(metric=metric, direction=direction or known_direction(metric) or Direction.SMALLER, why=why)


def best_first(trials: Iterable[T], measure: Measure | None) -> list[T]:
    """Order trials: best first, then values that are not finite, then none, then unfinished ones, failed ones last."""
    return sorted(trials, key=lambda trial: _place(trial, measure))


def _counts(trials: Sequence[RankableTrial]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in trials:
        for name, value in trial.metrics.items():
            counts[name] = counts.get(name, 0) + math.isfinite(value)
    return counts


def _named_by(params: Mapping[str, Any], counts: Mapping[str, int]) -> tuple[str, str] | None:
    for naming in _NAMING:
        wanted = params.get(naming)
        named = [
            name for name in _usual(counts) if isinstance(wanted, str) and without_split(name) == without_split(wanted)
        ]
        if named:
            return min(named, key=preference), f"it is what {naming} names"
    return None


def _guess(counts: Mapping[str, int], trials: Sequence[RankableTrial]) -> tuple[str, str] | None:
    known = {name: count for name, count in counts.items() if not _is_setting(name)}
    measures = {name: count for name, count in known.items() if preference(name)[0] < _SPEED}
    names = _usual(known if any(measures.values()) else measures or known)
    # A metric that is the same in all trials ranks nothing, and may be a setting that they print.
    of_quality = [name for name in names if name in measures] or names
    differing = [name for name in of_quality if len({one.metrics[name] for one in trials if name in one.metrics}) > 1]
    metric = min(differing or names, key=preference, default="")
    if not metric:
        return None
    return metric, "guessed by its name" if known_direction(metric) is not None else "the first of them"


def _usual(counts: Mapping[str, int]) -> list[str]:
    """Return the metrics that many trials have: others would leave most of them unranked."""
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if 2 * count >= most]


def _is_setting(name: str) -> bool:
    """Return True if a metric is a counter of training or a setting of it."""
    words = words_of(name)
    pairs = map("_".join, pairwise(words))
    return known_direction(name) is None and not _NOT_GUESSED.isdisjoint([*words, *pairs])


def _place(trial: RankableTrial, measure: Measure | None) -> tuple[int, float, int]:
    if trial.is_failed:
        return 4, 0.0, trial.n
    value = trial.metrics.get(measure.metric) if measure else None
    group = 0 if trial.is_done else 3
    if value is None or measure is None:
        return max(group, 2), 0.0, trial.n
    if not math.isfinite(value):
        return max(group, 1), 0.0, trial.n
    return group, measure.sort_key(value), trial.n
