"""Learning rates over a training: by the formulas of transformers' `get_scheduler`, which people's settings mean."""

from __future__ import annotations

import math

from stoker.cookbooks.language.settings import Schedule


def rate_at(update: int, *, peak: float, schedule: Schedule, warmup: int, updates: int) -> float:
    """Give the learning rate of an update (counted from 0): up to `peak` over `warmup` updates, then by the schedule.

    The first update of a warm-up has the rate 0, as it has there.
    """
    return peak * _share(update, schedule, warmup, updates)


def _share(update: int, schedule: Schedule, warmup: int, updates: int) -> float:
    if update < warmup:
        return update / max(1, warmup)
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return max(0.0, (updates - update) / max(1, updates - warmup))
    done = (update - warmup) / max(1, updates - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))


def warmup_of(updates: int, percent: float) -> int:
    """Give over how many updates the rate rises."""
    return math.ceil(updates * percent / 100)
