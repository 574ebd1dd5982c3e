"""Series of samples in files of a fixed size: one file per device, a ring of rows per period.

A row has the lowest, mean and highest value of each channel within one period. Rows of a short period are merged into
rows of a longer one, and so are rows for a chart with fewer points: always by the same rule (`merged`), which keeps
every extreme. A row is written in one write at a place that its time determines, and holds its time: a crash costs one
row, and old rows are recognised. Files are written by one process and may be read by others meanwhile.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

from stoker.core import jsontext
from stoker.core.digests import digest_bytes
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.devices.telemetry.samples import DeviceSample
from stoker.host.durable import translated


@frozen
class SeriesChannel:
    """One measured quantity. Stored as a whole number of `1 / scale` units."""

    name: str
    unit: str
    scale: float


CHANNELS = (
    SeriesChannel(name="utilisation", unit="%", scale=100),
    SeriesChannel(name="memory", unit="%", scale=100),
    SeriesChannel(name="power", unit="W", scale=10),
    SeriesChannel(name="temperature", unit="°C", scale=10),
    SeriesChannel(name="clock", unit="MHz", scale=1),
)
_NONE = 0xFFFF
_MOST = 0xFFFE

Extent = tuple[float, float, float]
"""The lowest, the mean and the highest value."""


@frozen
class TelemetryRow:
    """One period of one device."""

    start_s: int
    """Wall time of its beginning, a multiple of the period."""
    count: int
    """Number of samples in it."""
    throttled: int = 0
    """Number of those in which heat or the power supply slowed the device down."""
    values: tuple[Extent | None, ...]
    """By channel; None: not measured."""


def row_of(sample: DeviceSample, wall_s: float) -> TelemetryRow:
    """Return the row of one sample, for the second in which it was taken."""
    found = (
        sample.utilisation_percent,
        sample.memory_percent,
        sample.power_w,
        sample.temperature_c,
        sample.clock_mhz,
    )
    return TelemetryRow(
        start_s=int(wall_s),
        count=1,
        throttled=int(sample.is_slowed),
        values=tuple(None if value is None else (value, value, value) for value in found),
    )


def merged(rows: Sequence[TelemetryRow], start_s: int) -> TelemetryRow:
    """Return one row for several: extremes are kept, means are weighted by the number of samples."""
    return TelemetryRow(
        start_s=start_s,
        count=sum(row.count for row in rows),
        throttled=sum(row.throttled for row in rows),
        values=tuple(_merged([(row.values[at], row.count) for row in rows]) for at in range(len(CHANNELS))),
    )


def _merged(extents: Sequence[tuple[Extent | None, int]]) -> Extent | None:
    found = [(extent, max(1, count)) for extent, count in extents if extent is not None]
    if not found:
        return None
    if len(found) == 1:
        return found[0][0]
    total = sum(count for _, count in found)
    mean = sum(extent[1] * count for extent, count in found) / total
    return min(extent[0] for extent, _ in found), mean, max(extent[2] for extent, _ in found)


def thinned(rows: Sequence[TelemetryRow], period_s: int, points: int) -> tuple[list[TelemetryRow], int]:
    """Return at most so many rows, and their period: a multiple of the given one. Rows are in order of time."""
    if not rows or points < 1:
        return [], period_s
    wide_s = period_for(rows, period_s, points)
    return (list(rows) if wide_s == period_s else list(grouped(rows, wide_s))), wide_s


def period_for(rows: Sequence[TelemetryRow], period_s: int, points: int) -> int:
    """Return the shortest multiple of a period by which these rows are at most so many."""
    if not rows:
        return period_s
    last_s = rows[-1].start_s
    times = max(1, -(-(last_s - rows[0].start_s + period_s) // (period_s * points)))
    wide_s = period_s * times
    # Beginnings are multiples of the period, so the range may touch one more than fits.
    while last_s // wide_s - rows[0].start_s // wide_s + 1 > points:
        times += 1
        wide_s = period_s * times
    return wide_s


def grouped(rows: Iterable[TelemetryRow], period_s: int) -> Iterable[TelemetryRow]:
    """Yield the rows of a longer period."""
    some: list[TelemetryRow] = []
    for row in rows:
        if some and row.start_s // period_s != some[0].start_s // period_s:
            yield merged(some, some[0].start_s // period_s * period_s)
            some = []
        some.append(row)
    if some:
        yield merged(some, some[0].start_s // period_s * period_s)


class RowCollector:
    """Collects samples or rows until a period is over."""

    def __init__(self, period_s: int) -> None:
        self._period_s = period_s
        self._rows: list[TelemetryRow] = []

    def add(self, row: TelemetryRow) -> TelemetryRow | None:
        """Add a row; return that of the period before if this is the first of another."""
        over = None
        if self._rows and row.start_s // self._period_s != self._rows[0].start_s // self._period_s:
            over = merged(self._rows, self._rows[0].start_s // self._period_s * self._period_s)
            self._rows = []
        self._rows.append(row)
        return over


# One file: a header of a page, then a ring for each level.

_HEADER_BYTES = 4096
_ROW = struct.Struct(f"<IHH{3 * len(CHANNELS)}H")
ROW_BYTES = _ROW.size
_MOST_COUNT = 0xFFFF


@frozen
class RingLevel:
    """A ring of one file: the period of its rows, and how many there are."""

    period_s: int
    rows: int


SECONDS = RingLevel(period_s=1, rows=3600)
TENS = RingLevel(period_s=10, rows=24 * 360)
MINUTES = RingLevel(period_s=300, rows=90 * 288)
ON_THE_MACHINE = (SECONDS, TENS, MINUTES)
AT_THE_COORDINATOR = (TENS, MINUTES)


class RingFile:
    """The rings of one device. Nothing is created before the first row is written."""

    def __init__(self, path: str, levels: Sequence[RingLevel]) -> None:
        self.path = path
        self._levels = tuple(levels)
        self._starts: dict[int, int] = {}
        at = _HEADER_BYTES
        for level in self._levels:
            self._starts[level.period_s] = at
            at += level.rows * ROW_BYTES
        self._by_period = {level.period_s: level for level in self._levels}
        self.most_bytes = at

    def write(self, rows: Iterable[tuple[int, TelemetryRow]], *, about: dict[str, str] | None = None) -> None:
        """Write rows, each with its period. `about` describes the device, and is written if the file is new."""
        with translated(self.path):
            descriptor = self._open(about)
            try:
                for period_s, row in rows:
                    level = self._by_period[period_s]
                    slot = row.start_s // period_s
                    os.pwrite(descriptor, packed(row, slot), self._starts[period_s] + slot % level.rows * ROW_BYTES)
            finally:
                os.close(descriptor)

    def read(self, period_s: int, from_s: float, to_s: float) -> list[TelemetryRow]:
        """Return the rows of a period that begin in this span, in order of time; none if there is no file."""
        level = self._by_period[period_s]
        first, last = int(from_s // period_s), int(to_s // period_s)
        first = max(first, last - level.rows + 1, 0)
        if last < first:
            return []
        try:
            with open(self.path, "rb") as file:
                data = _ring(file.fileno(), self._starts[period_s], level.rows, first, last)
        except OSError:
            return []
        whole = data[: len(data) // ROW_BYTES * ROW_BYTES]
        return [
            _unpacked(fields, period_s)
            for fields in _ROW.iter_unpack(whole)
            if first <= fields[0] <= last and fields[1]
        ]

    def about(self) -> dict[str, str]:
        """Return the description of the device."""
        try:
            with open(self.path, "rb") as file:
                value = jsontext.loads(file.read(_HEADER_BYTES).rstrip(b"\0").decode())
        except (OSError, ValueError):
            return {}
        if not isinstance(value, dict):
            return {}
        return {str(key): one_line(str(text), 200) for key, text in value.items()}

    def _open(self, about: dict[str, str] | None) -> int:
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, flags | os.O_CREAT, 0o600)
        text = jsontext.dumps({key: value[:200] for key, value in (about or {}).items()}).encode()
        os.pwrite(descriptor, text[:_HEADER_BYTES].ljust(_HEADER_BYTES, b"\0"), 0)
        return descriptor


def file_name(uuid: str) -> str:
    """Return the name of a device's file: UUIDs come from drivers and other machines."""
    return f"{digest_bytes(uuid.encode())[:24]}.ring" if uuid else "host.ring"


def stored_rings(folder: str, levels: Sequence[RingLevel]) -> list[RingFile]:
    """Return the files in a folder, that of the host first."""
    names: list[str] = []
    with suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if name.endswith(".ring"))
    names.sort(key=lambda name: name != file_name(""))
    return [RingFile(os.path.join(folder, name), levels) for name in names]


def try_write(ring: RingFile, rows: Sequence[tuple[int, TelemetryRow]], about: dict[str, str]) -> None:
    """Write rows if the disk takes them: telemetry is no reason to stop anything."""
    with suppress(StokerError, OSError):
        ring.write(rows, about=about)


def packed(row: TelemetryRow, slot: int) -> bytes:
    """Return a row as bytes."""
    numbers: list[int] = []
    for extent, channel in zip(row.values, CHANNELS, strict=True):
        if extent is None:
            numbers += (_NONE, _NONE, _NONE)
            continue
        low, mean, high = extent
        scale = channel.scale
        first = min(_MOST, max(0, round(low * scale)))
        if low == high:
            # A single sample, as every second.
            numbers += (first, first, first)
        else:
            numbers += (first, min(_MOST, max(0, round(mean * scale))), min(_MOST, max(0, round(high * scale))))
    return _ROW.pack(slot & 0xFFFFFFFF, min(row.count, _MOST_COUNT), min(row.throttled, _MOST_COUNT), *numbers)


def _unpacked(fields: tuple[int, ...], period_s: int) -> TelemetryRow:
    values: list[Extent | None] = []
    for at, channel in enumerate(CHANNELS):
        low, mean, high = fields[3 + 3 * at : 6 + 3 * at]
        known = _NONE not in (low, mean, high)
        values.append((low / channel.scale, mean / channel.scale, high / channel.scale) if known else None)
    return TelemetryRow(start_s=fields[0] * period_s, count=fields[1], throttled=fields[2], values=tuple(values))


def _ring(descriptor: int, start: int, rows: int, first: int, last: int) -> bytes:
    """Return the bytes of slots, in their order: of a ring that goes round, its end and then its beginning."""
    at, end = first % rows, last % rows
    if at <= end:
        return os.pread(descriptor, (end - at + 1) * ROW_BYTES, start + at * ROW_BYTES)
    tail = os.pread(descriptor, (rows - at) * ROW_BYTES, start + at * ROW_BYTES)
    return tail.ljust((rows - at) * ROW_BYTES, b"\0") + os.pread(descriptor, (end + 1) * ROW_BYTES, start)
