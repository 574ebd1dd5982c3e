"""Curves, configuration and code of a job as screens get them."""

from __future__ import annotations

import math
from typing import Any

from stoker.core.jsontext import dumps
from stoker.engine.metrics.curve_reader import ReadCurve
from stoker.engine.metrics.metric_levels import TimedPoint
from stoker.engine.metrics.metric_names import Direction
from stoker.engine.metrics.metrics_file import MetricSource
from stoker.jobs.code_diff import CodeChange
from stoker.jobs.job_curves import JobCurves
from stoker.jobs.trial_settings import Layers
from stoker.protocol.screen_messages import (
    CodeDiff,
    ConfigView,
    Series,
    SeriesView,
    SettingView,
)

MOST_NAMES = 2000
MOST_SETTINGS = 2000
_MOST_LAYERS = 50
_LONGEST_VALUE = 4000
_SOURCES = {MetricSource.REPORTED: "reported", MetricSource.STDOUT: "stdout"}


def series_view(job: str, curves: JobCurves, started_s: float | None) -> SeriesView:
    """Return the curves of a job; of very many names the first."""
    return SeriesView(
        job=job,
        names=curves.names[:MOST_NAMES],
        series=tuple(_series(curve) for curve in curves.curves),
        attempts={str(number): step for number, step in curves.borders.items()},
        started_s=started_s,
    )


def _series(curve: ReadCurve) -> Series:
    best, last = curve.best, curve.last
    return Series(
        name=curve.name,
        steps=tuple(point[0] for point in curve.points),
        values=tuple(point[1] for point in curve.points),
        times_s=tuple(_time_s(point) for point in curve.points),
        total=curve.total,
        is_lower_better=None if curve.direction is None else curve.direction is Direction.SMALLER,
        best_step=best[0] if best is not None else None,
        best=best[1] if best is not None else None,
        last_step=last[0] if last is not None else None,
        last=last[1] if last is not None else None,
        source=_SOURCES[curve.source],
    )


def _time_s(point: TimedPoint) -> float:
    """Return the time of a value; a program may write any number there."""
    return round(point[2], 2) if math.isfinite(point[2]) else 0.0


def config_view(job: str, layers: Layers) -> ConfigView:
    """Return the configuration of a job; of very many values, or layers of one, not all."""
    return ConfigView(
        job=job,
        settings=tuple(
            SettingView(
                path=path,
                value=_short(stack[-1][1]),
                origin=stack[-1][0],
                layers=tuple((origin, _short(value)) for origin, value in stack[-_MOST_LAYERS:]),
            )
            for path, stack in layers[:MOST_SETTINGS]
            if stack
        ),
    )


def _short(value: Any) -> Any:
    """Return a value; a long one as the beginning of its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else dumps(value)
    return value if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def code_diff_view(job: str, parent: str, change: CodeChange | None, note: str = "") -> CodeDiff:
    """Return how a job's code differs from that of its parent; `note` says why if that is unknown."""
    if change is None:
        return CodeDiff(job=job, parent=parent, note=note)
    same = "" if change.files else "the code is the same"
    return CodeDiff(
        job=job, parent=parent, files=change.files, text=change.text, is_cut=change.is_cut, note=note or same
    )
