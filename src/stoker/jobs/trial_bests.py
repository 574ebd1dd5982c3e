"""The best step of trials: the best value of a metric in a trial's curves, and the other metrics at that step.

Read once per file and size: a page asks for a sweep again and again while it runs.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.engine.metrics.curve_reader import CurveReader
from stoker.engine.metrics.metric_names import Direction
from stoker.engine.metrics.metrics_file import MetricSource, read_frames

MOST_BYTES = 1 << 20
"""Of one trial's metrics files, read value by value; of larger ones the levels beside them are read."""
_MOST_NAMES = 24
"""Of one trial, the most telling first."""
_FEW_POINTS = 50
_REMEMBERED = 5000


@frozen
class BestStep:
    """The best value of a metric, and all metrics there."""

    step: int
    metrics: Mapping[str, float]
    """At that step; of a metric that has no value there, the last one before it."""


def best_step(paths: Sequence[str], metric: str, direction: Direction) -> BestStep | None:
    """Return where a metric of some files is best, of equal values the first; None if no finite value is there."""
    if sum(_size_of(path)[0] for path in paths) > MOST_BYTES:
        return _best_by_levels(paths, metric, direction)
    curves = _curves(paths)
    points = [(step, value) for step, value in curves.get(metric, {}).items() if math.isfinite(value)]
    if not points:
        return None
    sign = 1.0 if direction is Direction.SMALLER else -1.0
    step, value = min(points, key=lambda point: (sign * point[1], point[0]))
    metrics = {metric: value}
    for name, curve in curves.items():
        before = max((at for at in curve if at <= step), default=None)
        if before is not None:
            metrics.setdefault(name, curve[before])
    return BestStep(step=step, metrics=metrics)


def _best_by_levels(paths: Sequence[str], metric: str, direction: Direction) -> BestStep | None:
    """Return the same by the levels beside long files; of few metrics."""
    reader = CurveReader(paths)
    curve = reader.curve(metric, points=_FEW_POINTS)
    points = [point for point in curve.points if math.isfinite(point[1])] if curve is not None else []
    if not points:
        return None
    sign = 1.0 if direction is Direction.SMALLER else -1.0
    step, value, _ = min(points, key=lambda point: (sign * point[1], point[0]))
    metrics = {metric: value}
    for name in reader.names[:_MOST_NAMES]:
        before = reader.curve(name, points=_FEW_POINTS, last=step)
        if before is not None and before.points:
            metrics.setdefault(name, before.points[-1][1])
    return BestStep(step=step, metrics=metrics)


def _curves(paths: Sequence[str]) -> dict[str, dict[int, float]]:
    """Return every curve of some files; of two values at one step the later counts, of two sources the program's."""
    found: dict[tuple[str, MetricSource], dict[int, float]] = {}
    for path in paths:
        for frame in read_frames(path):
            names = [found.setdefault((name, frame.source), {}) for name in frame.names]
            for step, value, index in zip(frame.steps, frame.values, frame.name_of, strict=True):
                names[index][step] = value
    # Sources in descending order: what was reported replaces what was printed.
    return {name: curve for (name, _), curve in sorted(found.items(), key=lambda item: -item[0][1])}


class TrialBests:
    """Remembers the best steps of trials by their files and sizes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[object, ...], BestStep | None] = OrderedDict()

    def find(
        self,
        files: Mapping[int, Sequence[str]],
        metric: str,
        direction: Direction,
        *,
        is_late: Callable[[], bool] = lambda: False,
    ) -> tuple[dict[int, BestStep], int]:
        """Return the best step of each trial that has one, by number, and how many trials were not read.

        None is read after `is_late` returns True; they are read the next time.
        """
        found: dict[int, BestStep] = {}
        unread = 0
        for number, paths in files.items():
            sizes = tuple(_size_of(path) for path in paths)
            if not any(size for size, _ in sizes):
                continue
            key = (tuple(paths), sizes, metric, direction)
            with self._lock:
                is_known = key in self._known
                best = self._known.get(key)
                if is_known:
                    self._known.move_to_end(key)
            if not is_known:
                if is_late():
                    unread += 1
                    continue
                best = self._read(key, paths, metric, direction)
            if best is not None:
                found[number] = best
        return found, unread

    def _read(
        self, key: tuple[object, ...], paths: Sequence[str], metric: str, direction: Direction
    ) -> BestStep | None:
        best = None
        with suppress(StokerError):
            best = best_step(paths, metric, direction)
        with self._lock:
            self._known[key] = best
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return best


def _size_of(path: str) -> tuple[int, int]:
    try:
        info = os.stat(path)
    except OSError:
        return 0, 0
    return info.st_size, info.st_mtime_ns
