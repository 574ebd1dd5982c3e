"""Levels of a metrics file: of each 64, 512 and 4,096 values of a metric the telling ones, so that no reader needs all.

They lie beside the file, hidden (`.NODE.skm.levels`), in frames that each cover some of its bytes. A reader brings them
up to date: whole parts are added, the rest is read as it is. A part has 512 KiB, with very many metrics more: levels
have at most a quarter of the bytes that they cover. A frame that is damaged or does not follow the one before is not
used, levels of another file are deleted; both are made again from the file, which alone counts. A folder that can't be
written costs time, nothing else. Memory stays at one frame and a line per metric and part.

    magic            8 bytes
    payload_bytes    u32
    checksum         u32   CRC-32 of the payload
    payload:
      start, end     u64 u64   which bytes of the metrics file
      head           u32 u32   length and CRC-32 of its first bytes
      series         u32
      directory      per series: source u8, name (u16 length, UTF-8), lowest and highest step i64 i64,
                     values u32, blocks per level u32 × 3
      blocks         per series and level: counts u32 × blocks, then of the first, last, lowest, highest and first
                     non-finite value: steps i64 × blocks, times f64 × blocks, values f64 × blocks
"""

from __future__ import annotations

import math
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, repeat
from operator import itemgetter, le
from typing import Any, BinaryIO, NamedTuple

from stoker.core.errors import StokerError
from stoker.core.frozen import frozen, frozen_by_position
from stoker.engine.metrics.metrics_file import MetricFrame, MetricSource, read_frames
from stoker.host.durable import open_regular

LEVELS = (64, 512, 4096)
PART_BYTES = 512 * 1024
MOST_SERIES = 10_000
"""Metrics of one file; others are not read. No program has so many on purpose."""
SOURCE_PER_LEVEL_BYTES = 4
"""A part grows until its bytes are so many times those of its levels."""
MOST_SOURCE_BYTES = 2 << 30
"""Of a metrics file, some 75 million values; what follows is not read."""
KINDS = 5
"""Telling values of a block: the first, last, lowest, highest, and the first that is not finite."""
NONE = -(1 << 63)
"""The step of a value that a block does not have."""

_MAGIC = b"\x93SKL1\r\n\x1a"
_HEADER = struct.Struct("<8sII")
_PART = struct.Struct("<QQIII")
_ENTRY = struct.Struct("<qqI3I")
_HEAD_BYTES = 4096
_LARGEST_FRAME_BYTES = 64 << 20
_MOST_RUNS = 8
"""Of ascending steps in one part: with more of them, steps are out of order rather than taken up again."""

SeriesKey = tuple[str, MetricSource]


TimedPoint = tuple[int, float, float]
"""Step, value and wall-clock time. A plain tuple: there are millions."""


class LevelBlocks(NamedTuple):
    """The blocks of one level, by column; for each kind of telling value its steps, times and values."""

    counts: Sequence[int]
    steps: Sequence[Sequence[int]]
    times_s: Sequence[Sequence[float]]
    values: Sequence[Sequence[float]]


@frozen_by_position
class _LevelsFrame:
    """A frame of levels that was whole when it was read, or made."""

    path: str
    start_bytes: int
    """Where its payload begins in the file of levels."""
    size_bytes: int
    checksum: int
    kept: bytes = b""
    """The payload, if it could not be written."""

    def payload(self) -> bytes | None:
        """Read the payload; None if something else is there now."""
        if self.kept:
            return self.kept
        try:
            with open_regular(self.path) as file:
                data = os.pread(file.fileno(), self.size_bytes, self.start_bytes)
        except OSError:
            return None
        return data if len(data) == self.size_bytes and zlib.crc32(data) == self.checksum else None


@frozen
class SeriesPart:
    """One metric in one part of a file."""

    path: str
    key: SeriesKey
    start_bytes: int
    end_bytes: int
    count: int
    low: int
    high: int
    """Its lowest and highest step."""
    blocks: tuple[int, int, int]
    """Number of blocks of each level; 0 in the rest of a file, which has no levels yet."""
    frame: _LevelsFrame | None = None
    at: int = 0
    """Where its blocks begin in the frame's payload."""
    columns: _Columns | None = None
    """Its values, where they were read already."""

    def points(self) -> list[TimedPoint]:
        """Read all its values, in the order in which they were written."""
        columns = self._columns()
        return list(zip(columns.steps, columns.values, columns.times_s, strict=True))

    def level(self, number: int) -> LevelBlocks:
        """Read its blocks of a level."""
        payload = self.frame.payload() if self.frame is not None else None
        if payload is None:
            # Another reader has cut the levels off behind damage.
            blocks = _levels_of(list(self._columns().runs()))[number]
            return _decode_level(_encode_level(blocks), 0, len(blocks))
        at = self.at + sum(_blocks_bytes(count) for count in self.blocks[:number])
        return _decode_level(payload, at, self.blocks[number])

    def _columns(self) -> _Columns:
        if self.columns is not None:
            return self.columns
        part = _PartColumns(self.start_bytes)
        for frame in _frames(self.path, self.start_bytes, self.end_bytes):
            part.add(frame)
        return part.of(self.key)


def series_parts(path: str) -> dict[SeriesKey, list[SeriesPart]]:
    """Return every metric of a file in its parts, in the order of the file; bring its levels up to date."""
    found: dict[SeriesKey, list[SeriesPart]] = {}
    for part in _Levels(path).parts():
        for one in part:
            if one.key in found or len(found) < MOST_SERIES:
                found.setdefault(one.key, []).append(one)
    return found


def levels_path(path: str) -> str:
    """Return where the levels of a metrics file are."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.levels")


class _Levels:
    def __init__(self, path: str) -> None:
        self._path = path
        self._side = levels_path(path)

    def parts(self) -> Iterator[list[SeriesPart]]:
        head = _head_of(self._path)
        if not head:
            return
        end_bytes = 0
        for kept, payload, end in self._kept(head):
            yield list(_directory(self._path, kept, payload))
            end_bytes = end
        gathered = _PartColumns(end_bytes)
        for frame in _frames(self._path, end_bytes):
            if frame.end_bytes > MOST_SOURCE_BYTES:
                break
            gathered.add(frame)
            if gathered.is_whole:
                payload = gathered.encode(head)
                yield list(_directory(self._path, self._append(payload), payload))
                gathered = _PartColumns(gathered.end_bytes)
        yield gathered.rest(self._path)

    def _kept(self, head: bytes) -> Iterator[tuple[_LevelsFrame, bytes, int]]:
        """Return the frames that cover the file from its beginning without a gap: payload, and the end of the part."""
        with suppress(OSError), open_regular(self._side) as file:
            side_bytes, size_bytes = os.fstat(file.fileno()).st_size, os.path.getsize(self._path)
            at = covered = 0
            is_used = not side_bytes
            while (found := _frame_at(file)) is not None:
                payload, checksum = found
                start, end, head_bytes, head_checksum, _ = _PART.unpack_from(payload)
                if head_bytes > len(head) or zlib.crc32(head[:head_bytes]) != head_checksum or end > size_bytes:
                    break
                begin, at = at + _HEADER.size, at + _HEADER.size + len(payload)
                # Two readers may have added the same part.
                if start == covered and end > start:
                    yield _LevelsFrame(self._side, begin, len(payload), checksum), payload, end
                    covered, is_used = end, True
            if at < side_bytes or not is_used:
                # What follows damage can't be used, and would stay in the way of what is added.
                os.truncate(self._side, at if is_used else 0)

    def _append(self, payload: bytes) -> _LevelsFrame:
        """Add a payload; return its frame, which keeps the payload itself if it can't be written."""
        checksum = zlib.crc32(payload)
        data = _HEADER.pack(_MAGIC, len(payload), checksum) + payload
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        with suppress(OSError):
            descriptor = os.open(self._side, flags, 0o600)
            try:
                if os.write(descriptor, data) == len(data):
                    end = os.lseek(descriptor, 0, os.SEEK_CUR)
                    return _LevelsFrame(self._side, end - len(payload), len(payload), checksum)
            finally:
                os.close(descriptor)
        return _LevelsFrame(self._side, 0, len(payload), checksum, kept=payload)


def _frame_at(file: BinaryIO) -> tuple[bytes, int] | None:
    """Read the next frame of levels: payload and checksum; None where no whole one is."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, payload_bytes, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or not _PART.size <= payload_bytes <= _LARGEST_FRAME_BYTES:
        return None
    payload = file.read(payload_bytes)
    return (payload, checksum) if len(payload) == payload_bytes and zlib.crc32(payload) == checksum else None


class _Columns:
    """Values of one metric, by column, in the order of the file."""

    __slots__ = ("steps", "times_s", "values")

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.times_s: list[float] = []
        self.values: list[float] = []

    def runs(self) -> Iterator[_Run]:
        """Return stretches of ascending steps. Where there are many, all in order, the later value of a step."""
        steps = self.steps
        if not any(map(le, steps[1:], steps)):
            yield steps, self.times_s, self.values
            return
        borders = [0, *(at for at, is_back in enumerate(map(le, steps[1:], steps), 1) if is_back), len(steps)]
        if len(borders) <= _MOST_RUNS + 1:
            for begin, end in pairwise(borders):
                yield steps[begin:end], self.times_s[begin:end], self.values[begin:end]
            return
        rows = {step: (step, at_s, value) for step, at_s, value in zip(steps, self.times_s, self.values, strict=True)}
        ordered = sorted(rows.values(), key=itemgetter(0))
        yield [row[0] for row in ordered], [row[1] for row in ordered], [row[2] for row in ordered]


class _PartColumns:
    """What was read of one part of a file, by metric."""

    def __init__(self, start_bytes: int) -> None:
        self.start_bytes = self.end_bytes = start_bytes
        self._series: dict[SeriesKey, _Columns] = {}
        self._values = 0

    @property
    def is_whole(self) -> bool:
        """True if it has enough bytes for levels."""
        size_bytes = self.end_bytes - self.start_bytes
        levels_bytes = len(self._series) * _SERIES_BYTES + self._values // LEVELS[0] * _BLOCK_BYTES * 8 // 7
        return size_bytes >= max(PART_BYTES, SOURCE_PER_LEVEL_BYTES * levels_bytes)

    def add(self, frame: MetricFrame) -> None:
        self.end_bytes = frame.end_bytes
        self._values += len(frame.steps)
        columns = [self.of((name, frame.source)) for name in frame.names]
        count, width = len(frame.steps), len(columns)
        if width and frame.name_of == (*range(width),) * (count // width):
            # The metrics of a step, then those of the next one: nearly all files are written so.
            for place, one in enumerate(columns):
                one.steps += frame.steps[place::width]
                one.times_s += frame.times_s[place::width]
                one.values += frame.values[place::width]
            return
        for step, at_s, value, index in zip(frame.steps, frame.times_s, frame.values, frame.name_of, strict=True):
            one = columns[index]
            one.steps.append(step)
            one.times_s.append(at_s)
            one.values.append(value)

    def rest(self, path: str) -> list[SeriesPart]:
        """Return it as parts without levels."""
        return [
            SeriesPart(
                path=path,
                key=key,
                start_bytes=self.start_bytes,
                end_bytes=self.end_bytes,
                count=len(one.steps),
                low=min(one.steps),
                high=max(one.steps),
                blocks=(0, 0, 0),
                columns=one,
            )
            for key, one in self._series.items()
            if one.steps
        ]

    def encode(self, head: bytes) -> bytes:
        """Return it as the payload of a frame."""
        kept = head[: self.end_bytes]
        series = [(key, one) for key, one in self._series.items() if one.steps]
        directory, blocks = bytearray(), bytearray()
        directory += _PART.pack(self.start_bytes, self.end_bytes, len(kept), zlib.crc32(kept), len(series))
        for (name, source), one in series:
            levels = _levels_of(list(one.runs()))
            text = name.encode("utf-8", "replace")
            directory += struct.pack("<BH", source, len(text)) + text
            directory += _ENTRY.pack(min(one.steps), max(one.steps), len(one.steps), *(len(level) for level in levels))
            for level in levels:
                blocks += _encode_level(level)
        return bytes(directory + blocks)

    def of(self, key: SeriesKey) -> _Columns:
        """Return the values of a metric."""
        found = self._series.get(key)
        if found is None:
            found = _Columns()
            if len(self._series) < MOST_SERIES:
                self._series[key] = found
        return found


_Run = tuple[Sequence[int], Sequence[float], Sequence[float]]
_Block = tuple[int, list[int], list[float], list[float]]
"""How many values; then steps, times and values of the telling ones."""


def _levels_of(runs: list[_Run]) -> list[list[_Block]]:
    """Return the blocks of every level; each block is of one run."""
    levels: list[list[_Block]] = [[] for _ in LEVELS]
    for run in runs:
        blocks = _finest(*run)
        levels[0] += blocks
        for number, (size, below) in enumerate(zip(LEVELS[1:], LEVELS, strict=False), 1):
            many = size // below
            blocks = [_joined(blocks[at : at + many]) for at in range(0, len(blocks), many)]
            levels[number] += blocks
    return levels


def _finest(steps: Sequence[int], times_s: Sequence[float], values: Sequence[float]) -> list[_Block]:
    begins = range(0, len(steps), LEVELS[0])
    parts = [values[begin : begin + LEVELS[0]] for begin in begins]
    # A sum is finite only if all of them are; one that overflows takes the longer way.
    if math.isfinite(sum(values)):
        # By columns, for speed: a first look at a long curve is waited for.
        low_at = map(list.index, parts, map(min, parts))  # type: ignore[arg-type]
        high_at = map(list.index, parts, map(max, parts))  # type: ignore[arg-type]
        places = [(0, len(part) - 1, low, high, -1) for part, low, high in zip(parts, low_at, high_at, strict=True)]
    else:
        places = [_telling_places(part) for part in parts]
    blocks: list[_Block] = []
    for begin, part, (first, last, low, high, odd) in zip(begins, parts, places, strict=True):
        if low < 0 or odd >= 0:
            at = (first, last, low, high, odd)
            blocks.append(
                (
                    len(part),
                    [NONE if one < 0 else steps[begin + one] for one in at],
                    [0.0 if one < 0 else times_s[begin + one] for one in at],
                    [0.0 if one < 0 else part[one] for one in at],
                )
            )
            continue
        end, lowest, highest = begin + last, begin + low, begin + high
        blocks.append(
            (
                len(part),
                [steps[begin], steps[end], steps[lowest], steps[highest], NONE],
                [times_s[begin], times_s[end], times_s[lowest], times_s[highest], 0.0],
                [part[0], part[last], part[low], part[high], 0.0],
            )
        )
    return blocks


def _joined(blocks: list[_Block]) -> _Block:
    """Return several blocks as one."""
    finite = [block for block in blocks if block[1][2] != NONE]
    odd = next((block for block in blocks if block[1][4] != NONE), blocks[0])
    low = min(finite, key=_low, default=blocks[0])
    high = max(finite, key=_high, default=blocks[0])
    chosen = list(enumerate((blocks[0], blocks[-1], low, high, odd)))
    return (
        sum(block[0] for block in blocks),
        [block[1][kind] for kind, block in chosen],
        [block[2][kind] for kind, block in chosen],
        [block[3][kind] for kind, block in chosen],
    )


def _low(block: _Block) -> float:
    return block[3][2]


def _high(block: _Block) -> float:
    return block[3][3]


def _telling_places(values: Sequence[float]) -> tuple[int, int, int, int, int]:
    """Return the places of the first, last, lowest, highest and first non-finite value; -1 if there is none."""
    finite = [at for at, value in enumerate(values) if math.isfinite(value)]
    odd = next((at for at, value in enumerate(values) if not math.isfinite(value)), -1)
    if not finite:
        return 0, len(values) - 1, -1, -1, odd
    low, high = (choose(finite, key=values.__getitem__) for choose in (min, max))
    return 0, len(values) - 1, low, high, odd


def _encode_level(blocks: list[_Block]) -> bytes:
    count = len(blocks)
    pieces = [struct.pack(f"<{count}I", *(block[0] for block in blocks))]
    for kind in range(KINDS):
        pieces += [
            struct.pack(f"<{count}q", *(block[1][kind] for block in blocks)),
            struct.pack(f"<{count}d", *(block[2][kind] for block in blocks)),
            struct.pack(f"<{count}d", *(block[3][kind] for block in blocks)),
        ]
    return b"".join(pieces)


def _decode_level(payload: bytes, at: int, count: int) -> LevelBlocks:
    counts = _column("I", payload, at, count)
    at += 4 * count
    columns: list[tuple[array[int], array[float], array[float]]] = []
    for _ in range(KINDS):
        steps, times_s, values = (
            _column(code, payload, at + 8 * count * place, count) for place, code in enumerate("qdd")
        )
        columns.append((steps, times_s, values))
        at += 24 * count
    return LevelBlocks(counts, *zip(*columns, strict=True))


def _directory(path: str, frame: _LevelsFrame, payload: bytes) -> Iterator[SeriesPart]:
    """Read which metrics a part has. Its checksum was right, so it is as it was written."""
    start, end, *_, series = _PART.unpack_from(payload)
    at = _PART.size
    entries = []
    for _ in repeat(None, series):
        source, size = struct.unpack_from("<BH", payload, at)
        name = payload[at + 3 : at + 3 + size].decode("utf-8", "replace")
        at += 3 + size
        entries.append(((name, MetricSource(source)), *_ENTRY.unpack_from(payload, at)))
        at += _ENTRY.size
    for key, low, high, count, *blocks in entries:
        yield SeriesPart(
            path=path,
            key=key,
            start_bytes=start,
            end_bytes=end,
            count=count,
            low=low,
            high=high,
            blocks=(blocks[0], blocks[1], blocks[2]),
            frame=frame,
            at=at,
        )
        at += sum(_blocks_bytes(one) for one in blocks)


_BLOCK_BYTES = 4 + KINDS * 24
_SERIES_BYTES = _ENTRY.size + 3 + 40 + len(LEVELS) * _BLOCK_BYTES
"""Of a metric with few values, with a name of usual length."""


def _blocks_bytes(count: int) -> int:
    return count * _BLOCK_BYTES


def _column(code: str, payload: bytes, at: int, count: int) -> array[Any]:
    column = array(code)
    column.frombytes(payload[at : at + count * column.itemsize])
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _frames(path: str, start_bytes: int, end_bytes: int | None = None) -> Iterator[MetricFrame]:
    with suppress(StokerError):
        for frame in read_frames(path, start_bytes=start_bytes):
            if end_bytes is not None and frame.end_bytes > end_bytes:
                return
            yield frame


def _head_of(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
