"""Which trial is best: by which metric, in which direction, and why that one. Pure; says what it guessed.

Names decide where nothing else does: `val_loss` is better smaller, `accuracy` larger. A metric of rows that were
held out goes before one of the rows that were trained on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from stoker.core.errors import NotFound
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean


class Direction(StrEnum):
    """Which of two values is the better one."""

    SMALLER = "smaller"
    LARGER = "larger"


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

# Parameters by which recipes and programs name the metric that they watch themselves.
_NAMING = ("rank_by", "monitor", "metric", "objective")
_WORDS = re.compile(r"[a-z]+|[0-9]+")

# In the order of preference. A word may be several of a name's words: `average_precision`, `r2`.
_LARGER = (
    "balanced_accuracy", "accuracy", "acc", "top1", "f1", "auc", "auroc", "roc_auc", "average_precision", "map", "r2",
    "score", "reward", "return", "bleu", "rouge", "iou", "dice", "precision", "recall", "correct", "win_rate", "psnr",
    "ssim", "ndcg", "mrr", "kappa", "mcc", "correlation", "pearson", "spearman", "likelihood", "elbo",
)  # fmt: skip
_SMALLER = (
    "loss", "error", "err", "rmse", "mse", "mae", "mape", "nll", "cross_entropy", "perplexity", "ppl", "bpb", "bpc",
    "wer", "cer", "fid", "brier", "deviance", "divergence", "kl", "distance", "regret", "cost", "hinge", "logloss",
)  # fmt: skip
_SPEED = {
    "latency": Direction.SMALLER, "time": Direction.SMALLER, "seconds": Direction.SMALLER, "ms": Direction.SMALLER,
    "throughput": Direction.LARGER, "per": Direction.LARGER, "fps": Direction.LARGER,
}  # fmt: skip
_HELD_OUT = ("cv", "val", "valid", "validation", "dev", "eval", "evaluation", "holdout", "test")
_TRAINED_ON = ("train", "training", "tr")


def measure_for(
    trials: Sequence[RankableTrial],
    params: Mapping[str, Any],
    *,
    by: str = "",
    direction: Direction | None = None,
) -> Measure | None:
    """Choose what to rank by: what is asked for, else what names suggest; nothing if there are no metrics.

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
    if not counts:
        return None
    most = max(counts.values())
    # A metric that few trials have would leave most of them unranked.
    usual = [name for name, count in counts.items() if 2 * count >= most]
    metric, why = _guess(usual, params)
    return Measure(metric=metric, direction=direction or known_direction(metric) or Direction.SMALLER, why=why)


def best_first(trials: Iterable[T], measure: Measure | None) -> list[T]:
    """Order trials: best first, then values that are not finite, then none, then unfinished ones, failed ones last."""
    return sorted(trials, key=lambda trial: _place(trial, measure))


def known_direction(metric: str) -> Direction | None:
    """Return which direction a metric's name suggests, if any."""
    words = _words(metric)
    speed = _speed(words)
    if speed is not None:
        return speed
    larger, smaller = _found(words, _LARGER), _found(words, _SMALLER)
    # `accuracy_loss` is a loss: the last word says what it is.
    if larger is None and smaller is None:
        return None
    return Direction.LARGER if (larger or (-1,))[0] > (smaller or (-1,))[0] else Direction.SMALLER


def preference(name: str) -> tuple[int, int, int, str]:
    """Order metrics by how likely they are what matters: scores, losses, then the rest; held out before trained on."""
    words = _words(name)
    direction = known_direction(name)
    on_training_rows = any(word in _TRAINED_ON for word in words)
    held_out = next((place for place, word in enumerate(_HELD_OUT) if word in words), None)
    kind = 4
    if direction is not None and _speed(words) is not None:
        kind = 3
    elif direction is not None:
        kind = 2 if on_training_rows else 0 if direction is Direction.LARGER else 1
    of_kind = _found(words, _LARGER if direction is Direction.LARGER else _SMALLER)
    # `test` is for the end: a plain name goes before it, and every other held-out part before that.
    plain_place = len(_HELD_OUT) - 1.5
    place = plain_place if held_out is None else held_out
    return kind, int(2 * place), of_kind[1] if of_kind else 0, name


def _counts(trials: Sequence[RankableTrial]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in trials:
        for name, value in trial.metrics.items():
            counts[name] = counts.get(name, 0) + math.isfinite(value)
    return counts


def _guess(names: Sequence[str], params: Mapping[str, Any]) -> tuple[str, str]:
    for naming in _NAMING:
        wanted = params.get(naming)
        named = [name for name in names if isinstance(wanted, str) and _core(name) == _core(wanted)]
        if named:
            return min(named, key=preference), f"it is what {naming} names"
    metric = min(names, key=preference)
    return metric, "guessed by its name" if known_direction(metric) is not None else "the first of them"


def _found(words: Sequence[str], known: Sequence[str]) -> tuple[int, int] | None:
    """Return where in the words the last known one ends, and its place among the known."""
    found = None
    for place, one in enumerate(known):
        parts = one.split("_") if one not in ("r2", "f1", "top1") else [one[:-1], one[-1]]
        for start in range(len(words) - len(parts) + 1):
            if list(words[start : start + len(parts)]) == parts:
                end = start + len(parts)
                if found is None or end > found[0]:
                    found = (end, place)
    return found


def _speed(words: Sequence[str]) -> Direction | None:
    """Return whether a name is one of speed rather than of quality, and which way it is better."""
    return next((direction for word, direction in _SPEED.items() if word in words), None)


def _words(name: str) -> list[str]:
    return _WORDS.findall(re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name).lower())


def _core(name: str) -> tuple[str, ...]:
    return tuple(word for word in _words(name) if word not in _HELD_OUT)


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
