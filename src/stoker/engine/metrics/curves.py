"""Curves out of files of metrics: one per name, thinned while reading, so that memory stays flat.

What a program reported itself goes before what was read off its output under the same name. Of two values at one step
the later counts: an attempt that resumes from a checkpoint writes some steps again.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from stoker.core.errors import MissingExtra
from stoker.core.frozen import fresh, frozen
from stoker.engine.metrics.metric_levels import TimedPoint
from stoker.engine.metrics.metrics_file import Damage, MetricFrame, MetricSource, OnDamage, pass_over, read_frames
from stoker.host.durable import move_into, sync_dir, temp_name, translated
from stoker.host.install import pip_install

POINTS = 1000
"""Of one curve: more than a screen has columns."""
ALL_POINTS = 1_000_000
"""Of all curves together; where there are very many, each gets fewer."""
_FEWEST = 20
_KEPT_PER_PART = 5

Point = tuple[int, float]
P = TypeVar("P", Point, TimedPoint)


def curves(
    paths: Sequence[str], *, points: int = POINTS, names: Sequence[str] | None = None, on_damage: OnDamage = pass_over
) -> dict[str, list[Point]]:
    """Return (step, value) for each metric, or for those of some `names`, ordered by step.

    A curve of more than `points` values is thinned: of each of its parts there remain the first, last, lowest and
    highest value and the first one that is not finite.
    """
    gathered = _Gathered(points, None if names is None else frozenset(names))
    for path in paths:
        for frame in read_frames(path, on_damage=on_damage):
            gathered.add(frame)
    return gathered.curves()


class _Gathered:
    def __init__(self, points: int, wanted: frozenset[str] | None) -> None:
        self._limit = max(points, _FEWEST)
        self._wanted = wanted
        self._names: dict[str, None] = {}
        self._raw: dict[tuple[str, MetricSource], list[Point]] = {}

    def add(self, frame: MetricFrame) -> None:
        lists = [self._list_of(name, frame.source) for name in frame.names]
        for step, value, index in zip(frame.steps, frame.values, frame.name_of, strict=True):
            lists[index].append((step, value))
        for points in lists:
            if len(points) >= 2 * self._limit:
                points[:] = thin(points, self._limit)

    def curves(self) -> dict[str, list[Point]]:
        found = {}
        for name in self._names:
            reported, from_stdout = ((name, source) for source in (MetricSource.REPORTED, MetricSource.STDOUT))
            found[name] = thin(self._raw.get(reported) or self._raw[from_stdout], self._limit)
        return found

    def _list_of(self, name: str, source: MetricSource) -> list[Point]:
        if self._wanted is not None and name not in self._wanted:
            return []
        points = self._raw.get((name, source))
        if points is None:
            points = self._raw[name, source] = []
            self._names[name] = None
            self._limit = max(_FEWEST, min(self._limit, ALL_POINTS // len(self._raw)))
        return points


def thin(points: Sequence[P], limit: int) -> list[P]:
    """Order points by step, the later of two at one step; if that is more than `limit`, leave out the dull ones.

    A point begins with its step and its value; what follows stays with it.
    """
    # A map keeps the place of the first and the value of the last, and the sort is on steps that differ.
    ordered = sorted({point[0]: point for point in points}.values(), key=_step)
    if len(ordered) <= limit:
        return ordered
    parts = max(1, limit // _KEPT_PER_PART)
    first_step = ordered[0][0]
    span = ordered[-1][0] - first_step + 1
    kept: list[P] = []
    part: list[P] = []
    part_number = 0
    for point in ordered:
        number = (point[0] - first_step) * parts // span
        if number != part_number:
            kept += _telling(part)
            part, part_number = [], number
        part.append(point)
    return kept + _telling(part)


def _telling(part: list[P]) -> list[P]:
    if len(part) <= _KEPT_PER_PART:
        return part
    finite = [point for point in part if math.isfinite(point[1])]
    chosen = {part[0], part[-1]}
    if finite:
        chosen |= {min(finite, key=_value), max(finite, key=_value)}
    if len(finite) < len(part):
        chosen.add(next(point for point in part if not math.isfinite(point[1])))
    return sorted(chosen, key=_step)


def _step(point: Point | TimedPoint) -> int:
    return point[0]


def _value(point: Point | TimedPoint) -> float:
    return point[1]


# Metrics for other programs: CSV, or Parquet where pyarrow is installed.
#
# Long form, one value per row: labels of the caller's (job, trial), then `step, at_s, name, value, source`. NaN and
# infinities stay what they are (`nan`, `inf`, `-inf` in CSV). Files appear whole or not at all.

COLUMNS = ("step", "at_s", "name", "value", "source")
PART_ROWS = 250_000
_PART = re.compile(r"part-\d{5,}\.parquet")
_SOURCES = {MetricSource.REPORTED: "reported", MetricSource.STDOUT: "stdout"}


@frozen
class MetricSeries:
    """The metrics of one run or trial, in one file or several."""

    paths: tuple[str, ...]
    labels: Mapping[str, str] = fresh(factory=dict)
    """Columns that are the same in all its rows; each series has the same ones."""


@frozen
class MetricExport:
    """What was written, and what was not there to be written."""

    files: tuple[str, ...]
    rows: int
    lost: int
    """Rows that their writer had to drop when they were measured."""
    damaged_bytes: int
    """Bytes that could not be read as metrics."""


def export_csv(series: Sequence[MetricSeries], path: str) -> MetricExport:
    """Write everything as one CSV file, in place of what lies there."""
    reading = _Reading(series)
    temp = temp_name(os.path.dirname(path) or ".")
    try:
        with translated(path), open(temp, "x", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow((*reading.labels, *COLUMNS))
            for one, frame in reading.frames():
                labels, source = one.labels.values(), _SOURCES[frame.source]
                writer.writerows(
                    (*labels, row.step, repr(row.at_s), row.name, repr(row.value), source) for row in frame.rows()
                )
        move_into(temp, path)
    finally:
        _discard(temp)
    sync_dir(os.path.dirname(path) or ".")
    return reading.exported((path,))


def export_parquet(series: Sequence[MetricSeries], folder: str, *, part_rows: int = PART_ROWS) -> MetricExport:
    """Write everything as `part-00000.parquet` and so on, into a folder of their own. Raises `MissingExtra`.

    A file of Parquet can't be read before it is closed, so none stays open for long, and memory stays at one part.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - only who exports pays for it
        from pyarrow import parquet  # noqa: PLC0415 - the same
    except ImportError as error:
        raise MissingExtra("Parquet needs pyarrow", hint=f"{pip_install('stoker[tabular]')}, or take CSV") from error
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
    reading = _Reading(series)
    files: list[str] = []
    for columns in reading.parts(part_rows):
        temp, path = temp_name(folder), os.path.join(folder, f"part-{len(files):05d}.parquet")
        table = pa.table(
            {
                **{name: pa.array(columns[name]).dictionary_encode() for name in reading.labels},
                "step": pa.array(columns["step"], pa.int64()),
                "at_s": pa.array(columns["at_s"], pa.float64()),
                "name": pa.array(columns["name"], pa.string()).dictionary_encode(),
                "value": pa.array(columns["value"], pa.float64()),
                "source": pa.array(columns["source"], pa.string()).dictionary_encode(),
            }
        )
        try:
            with translated(path):
                parquet.write_table(table, temp, compression="zstd")
            move_into(temp, path)
        finally:
            _discard(temp)
        files.append(path)
    _remove_older_parts(folder, files)
    sync_dir(folder)
    return reading.exported(tuple(files))


class _Reading:
    """One pass over some series, counting what is missing."""

    def __init__(self, series: Sequence[MetricSeries]) -> None:
        self.labels = tuple(series[0].labels) if series else ()
        self._series = series
        self._rows = 0
        self._lost = 0
        self._damaged_bytes = 0

    def frames(self) -> Iterator[tuple[MetricSeries, MetricFrame]]:
        for one in self._series:
            for path in one.paths:
                for frame in read_frames(path, on_damage=self._count):
                    self._rows += len(frame.values)
                    self._lost += frame.lost
                    yield one, frame

    def parts(self, part_rows: int) -> Iterator[dict[str, list[Any]]]:
        """Return columns of at least `part_rows` rows, and at the end of whatever is left; at least once."""
        columns = self._empty()
        for one, frame in self.frames():
            count = len(frame.values)
            for name in self.labels:
                columns[name] += [one.labels[name]] * count
            columns["step"] += frame.steps
            columns["at_s"] += frame.times_s
            columns["name"] += [frame.names[index] for index in frame.name_of]
            columns["value"] += frame.values
            columns["source"] += [_SOURCES[frame.source]] * count
            if len(columns["step"]) >= part_rows:
                yield columns
                columns = self._empty()
        if columns["step"] or not self._rows:
            yield columns

    def exported(self, files: tuple[str, ...]) -> MetricExport:
        return MetricExport(files=files, rows=self._rows, lost=self._lost, damaged_bytes=self._damaged_bytes)

    def _empty(self) -> dict[str, list[Any]]:
        return {name: [] for name in (*self.labels, *COLUMNS)}

    def _count(self, damage: Damage) -> None:
        self._damaged_bytes += damage.size_bytes


def _remove_older_parts(folder: str, files: list[str]) -> None:
    """Remove what an earlier, longer export has left."""
    kept = {os.path.basename(file) for file in files}
    with translated(folder):
        for name in os.listdir(folder):
            if _PART.fullmatch(name) and name not in kept:
                os.unlink(os.path.join(folder, name))


def _discard(temp: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(temp)
