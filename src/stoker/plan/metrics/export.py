"""Metrics for other programs: CSV, or Parquet where pyarrow is installed.

Long form, one value per row: labels of the caller's (job, trial), then `step, at_s, name, value, source`. NaN and
infinities stay what they are (`nan`, `inf`, `-inf` in CSV). Files appear whole or not at all. Parquet comes in parts:
a file of it can't be read before it is closed, so none stays open for long, and memory stays at one part.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.host.durable import move_into, sync_dir, temp_name, translated
from stoker.host.installing import pip_install
from stoker.model.errors import MissingExtra
from stoker.model.frozen import fresh, frozen
from stoker.plan.metrics.file import Damage, Frame, Source, read_frames

COLUMNS = ("step", "at_s", "name", "value", "source")
PART_ROWS = 250_000
_PART = re.compile(r"part-\d{5,}\.parquet")
_SOURCES = {Source.REPORTED: "reported", Source.STDOUT: "stdout"}


@frozen
class Series:
    """The metrics of one run or trial, in one file or several."""

    paths: tuple[str, ...]
    labels: Mapping[str, str] = fresh(factory=dict)
    """Columns that are the same in all its rows; each series has the same ones."""


@frozen
class Exported:
    """What was written, and what was not there to be written."""

    files: tuple[str, ...]
    rows: int
    lost: int
    """Rows that their writer had to drop when they were measured."""
    damaged_bytes: int
    """Bytes that could not be read as metrics."""


def export_csv(series: Sequence[Series], path: str) -> Exported:
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


def export_parquet(series: Sequence[Series], folder: str, *, part_rows: int = PART_ROWS) -> Exported:
    """Write everything as `part-00000.parquet` and so on, into a folder of their own. Raises `MissingExtra`."""
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

    def __init__(self, series: Sequence[Series]) -> None:
        self.labels = tuple(series[0].labels) if series else ()
        self._series = series
        self._rows = 0
        self._lost = 0
        self._damaged_bytes = 0

    def frames(self) -> Iterator[tuple[Series, Frame]]:
        for one in self._series:
            for path in one.paths:
                for frame in read_frames(path, on_damage=self._count):
                    self._rows += len(frame.values)
                    self._lost += frame.lost
                    yield one, frame

    def parts(self, part_rows: int) -> Iterator[dict[str, list[Any]]]:
        """Give columns of at least `part_rows` rows, and at the end of whatever is left; at least once."""
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

    def exported(self, files: tuple[str, ...]) -> Exported:
        return Exported(files=files, rows=self._rows, lost=self._lost, damaged_bytes=self._damaged_bytes)

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
