"""The curves of a job: of all its stages, and of several attempts joined to one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from stoker.core.frozen import frozen
from stoker.core.text import outside
from stoker.engine.metrics.curve_reader import CurveReader, ReadCurve
from stoker.engine.metrics.metric_levels import TimedPoint
from stoker.engine.metrics.metric_names import preference
from stoker.engine.metrics.metrics_file import SUFFIX

MOST_POINTS = 4000
"""Of all curves of one answer: with steps and times some 170 KB."""
FEWEST_POINTS = 50
_PROGRAM = ".program"
_DEFAULT_NAMES = 4
_JITTER_S = 5.0
"""By so much several writers of one curve may be apart."""


@frozen
class CurveRange:
    """Which metrics, which steps (both included) and how many points are wanted; of no names the most telling."""

    names: Sequence[str] = ()
    first: int | None = None
    last: int | None = None
    points: int = 1000


@frozen
class JobCurves:
    """Curves of one job."""

    names: tuple[str, ...]
    """All that it has, the most telling first."""
    curves: tuple[ReadCurve, ...]
    borders: Mapping[int, int]
    """The first step of each attempt after the first, by its number."""


def curve_files(metrics_folder: str) -> dict[str, list[str]]:
    """Return the metrics files of a job's folder by stage: its own, then its program's."""
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(metrics_folder))
    found: dict[str, list[str]] = {}
    for name in names:
        stem = name.removesuffix(SUFFIX)
        if stem not in (name, "") and not name.startswith("."):
            found.setdefault(stem.removesuffix(_PROGRAM), []).append(os.path.join(metrics_folder, name))
    return found


def joined_files(attempts: Iterable[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Return the metrics files of several attempts by stage, earlier attempts first."""
    found: dict[str, list[str]] = {}
    for files in attempts:
        for stage, paths in files.items():
            found.setdefault(stage, []).extend(paths)
    return found


def read_job_curves(
    files: Mapping[str, Sequence[str]], asked: CurveRange, attempts: Mapping[int, float] | None = None
) -> JobCurves:
    """Read curves out of the metrics files of each stage; `attempts` are the wall-clock times of their starts.

    A name that several stages use is written with the stage before it.
    """
    stages = {stage: CurveReader(paths) for stage, paths in files.items()}
    by_name: dict[str, list[str]] = {}
    for stage, reader in stages.items():
        for name in reader.names:
            by_name.setdefault(name, []).append(stage)
    known: dict[str, tuple[str, str]] = {}
    for name in sorted(by_name, key=preference):
        users = by_name[name]
        for stage in users:
            # As it is shown: a name may have control codes, and is asked for by what is seen.
            known[outside(name if len(users) == 1 else f"{stage}: {name}")] = (stage, name)
    wanted = _wanted(asked.names, known)
    points = max(FEWEST_POINTS, min(asked.points, MOST_POINTS // max(1, len(wanted))))
    curves = []
    for shown in wanted[: MOST_POINTS // FEWEST_POINTS]:
        stage, name = known[shown]
        curve = stages[stage].curve(name, points=points, first=asked.first, last=asked.last, shown=shown)
        if curve is not None:
            curves.append(curve)
    return JobCurves(names=tuple(known), curves=tuple(curves), borders=_borders(curves, attempts or {}))


def _wanted(names: Sequence[str], known: Mapping[str, object]) -> list[str]:
    """Return the metrics that are meant; names may be joined by commas, and may contain some."""
    if not names:
        return list(known)[:_DEFAULT_NAMES]
    apart = [part for name in names for part in ([name] if name in known else name.split(","))]
    return [name for name in dict.fromkeys(apart) if name in known]


def _borders(curves: Iterable[ReadCurve], attempts: Mapping[int, float]) -> dict[int, int]:
    """Return the lowest step that each attempt after the first reported itself.

    Values of earlier attempts keep their times, which may be of a machine whose clock is ahead: those of one attempt
    follow each other in time, and none is from before its start.
    """
    found: dict[int, int] = {}
    for curve in curves:
        end = len(curve.points)
        for number, started_s in sorted(attempts.items(), reverse=True)[:-1]:
            begin = _begin_of(curve.points, end, started_s)
            if begin < end:
                step = curve.points[begin][0]
                found[number], end = min(found.get(number, step), step), begin
    return dict(sorted(found.items()))


def _begin_of(points: Sequence[TimedPoint], end: int, started_s: float) -> int:
    """Return where the last points before `end` begin that were measured one after the other since a time."""
    at = end
    while at and points[at - 1][2] >= started_s and (at == end or points[at - 1][2] <= points[at][2] + _JITTER_S):
        at -= 1
    return at
