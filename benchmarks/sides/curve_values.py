"""The curve that every side of the benchmark of curves has: it falls, with noise and a few spikes."""

from __future__ import annotations

import random
from collections.abc import Iterator

NAME = "loss"
_NOISE, _SPIKE_EVERY = 0.05, 70_001


def values(count: int) -> Iterator[float]:
    """Return the values of all steps, the same each time."""
    chance = random.Random(1)
    for step in range(count):
        spike = 1.0 if step % _SPIKE_EVERY == _SPIKE_EVERY - 1 else 0.0
        yield 1.0 / (1.0 + 20.0 * step / count) + _NOISE * chance.random() + spike
