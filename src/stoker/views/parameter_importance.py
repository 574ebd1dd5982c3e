"""Which parameters of a sweep its metric depends on: by a random forest where scikit-learn is installed, else by ranks.

Each is the same for the same trials. To import scikit-learn takes seconds: the first call starts that in a thread, and
ranks are used until it is done.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec

from stoker.core.frozen import frozen

FOREST = "random forest"
RANKS = "rank correlation"
FEWEST_TRIALS = 8
"""Fewer say nothing."""
_MOST_TRIALS = 256
"""Used for a forest: more change little, and take long."""
_TREES = 24
_REPEATS = 3
_REMEMBERED = 32


@frozen
class ParameterColumn:
    """The values of one parameter, a number per trial; of a category its place among the categories, NaN if unset."""

    values: tuple[float, ...]
    is_number: bool


@frozen
class Importance:
    """The part of each parameter, and by which method; no method: too few trials."""

    parts: tuple[float, ...] = ()
    method: str = ""


def importance_of(columns: Sequence[ParameterColumn], metric: Sequence[float]) -> Importance:
    """Return how much of the metric each parameter explains; all together 1, or 0 if none explains anything.

    Trials whose metric is not finite do not count.
    """
    used = [at for at, value in enumerate(metric) if math.isfinite(value)]
    if len(used) < FEWEST_TRIALS or not columns:
        return Importance()
    kept = tuple(
        ParameterColumn(values=tuple(column.values[at] for at in used), is_number=column.is_number)
        for column in columns
    )
    return _importance(kept, tuple(metric[at] for at in used), by_forest=_has_forest())


@cache
def load_forest() -> threading.Thread:
    """Start to import scikit-learn, if it is installed; return the thread that does it."""
    thread = threading.Thread(target=_load, name="import scikit-learn", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    # Broken installations raise anything: then there is none.
    with suppress(Exception):
        if find_spec("sklearn") is not None:
            for name in _FOREST_MODULES:
                import_module(name)


def _has_forest() -> bool:
    """Return True if the forest can be used without delay."""
    return not load_forest().is_alive() and all(sys.modules.get(name) is not None for name in _FOREST_MODULES)


_FOREST_MODULES = ("sklearn.ensemble", "sklearn.inspection")


@lru_cache(_REMEMBERED)
def _importance(columns: tuple[ParameterColumn, ...], metric: tuple[float, ...], *, by_forest: bool) -> Importance:
    if not by_forest:
        return Importance(parts=_normalised([_by_rank(column, metric) for column in columns]), method=RANKS)
    return Importance(parts=_normalised(_by_forest(columns, metric)), method=FOREST)


def _by_forest(columns: Sequence[ParameterColumn], metric: Sequence[float]) -> list[float]:
    """Return how much worse a forest predicts the ranks of trials if one parameter is shuffled."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    # Evenly spread, if there are many. Ranks: one value that exploded must not decide alone.
    every = max(1.0, len(metric) / _MOST_TRIALS)
    chosen = [int(at * every) for at in range(min(len(metric), _MOST_TRIALS))]
    ranks = _ranks(metric)
    # A tree needs no scale, but no NaN: what is unset is a value of its own, below all others.
    table = np.array([[_plain(column.values[at]) for column in columns] for at in chosen])
    target = np.array([ranks[at] for at in chosen])
    forest = RandomForestRegressor(_TREES, min_samples_leaf=2, random_state=0, n_jobs=1).fit(table, target)
    found = permutation_importance(forest, table, target, n_repeats=_REPEATS, random_state=0, n_jobs=1)
    return [float(part) for part in found.importances_mean]


def _plain(value: float) -> float:
    return -1e30 if math.isnan(value) else max(-1e30, min(1e30, value))


def _by_rank(column: ParameterColumn, metric: Sequence[float]) -> float:
    """Return |rank correlation|; of a category the part of the ranks' spread that lies between its groups."""
    ranks = _ranks(metric)
    if column.is_number:
        both = [(value, rank) for value, rank in zip(column.values, ranks, strict=True) if not math.isnan(value)]
        return abs(_correlation(_ranks([value for value, _ in both]), [rank for _, rank in both]))
    groups: dict[float, list[float]] = {}
    for value, rank in zip(column.values, ranks, strict=True):
        groups.setdefault(_plain(value), []).append(rank)
    mean = sum(ranks) / len(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
    # As many groups as trials would explain everything.
    free = max(0, len(ranks) - len(groups)) / max(1, len(ranks) - 1)
    return math.sqrt(between / whole) * free if whole else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[begin]]:
            for at in order[begin:end]:
                found[at] = (begin + end - 1) / 2
            begin = end
    return found


def _correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    count = len(ones)
    if count < FEWEST_TRIALS:
        return 0.0
    mean, other_mean = sum(ones) / count, sum(others) / count
    spread = sum((one - mean) ** 2 for one in ones) * sum((other - other_mean) ** 2 for other in others)
    both = sum((one - mean) * (other - other_mean) for one, other in zip(ones, others, strict=True))
    return both / math.sqrt(spread) if spread else 0.0


def _normalised(parts: Sequence[float]) -> tuple[float, ...]:
    positive = [max(0.0, part) for part in parts]
    total = sum(positive)
    return tuple(round(part / total, 4) if total else 0.0 for part in positive)
