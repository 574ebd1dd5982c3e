"""Files of metrics (`.skm`): rows of (step, time, name, value) in frames that stand by themselves.

A frame is appended with one write, so several writers may share a file of a local file system and never meet inside a
frame. Each carries its length and a checksum: a torn tail is passed over, and behind a damaged frame reading goes on
at the next whole one. NaN and infinities are kept as they are. All numbers are little-endian:

    magic            8 bytes
    payload_bytes    u32
    checksum         u32   CRC-32 of payload_bytes and the payload
    payload:
      rows, names    u32 u32
      lost           u64   rows that this writer had to drop before this frame
      source         u8, 7 bytes of zero
      steps          i64 × rows
      times          f64 × rows, seconds since 1970
      values         f64 × rows
      name indices   u32 × rows
      names table    (u16 length, UTF-8 bytes) × names

`stoker_trainer` writes the same bytes without importing this; a test holds the two together.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from stoker.host.durable import translated
from stoker.model.errors import LocalFile
from stoker.model.frozen import frozen

MAGIC = b"\x93SKM1\r\n\x1a"
SUFFIX = ".skm"
ROWS_PER_FRAME = 4096
NAME_BYTES = 200
LARGEST_PAYLOAD_BYTES = 1024 * 1024

_HEADER = struct.Struct("<8sII")
_COUNTS = struct.Struct("<IIQB7x")
_ROW_BYTES = 8 + 8 + 8 + 4
_READ_BYTES = 256 * 1024
_STEP_LIMIT = 1 << 63


class Source(IntEnum):
    """Who said a number."""

    REPORTED = 0
    """The program or stage itself, on purpose."""
    STDOUT = 1
    """Read off a program's output: shown as "from stdout"."""


class Row(NamedTuple):
    """One value of one metric. A tuple by nature: files hold millions, and tables want them as they are."""

    step: int
    at_s: float
    name: str
    value: float
    source: Source = Source.REPORTED


@frozen
class Frame:
    """A batch as it lies in a file, by column."""

    steps: Sequence[int]
    times_s: Sequence[float]
    values: Sequence[float]
    name_of: Sequence[int]
    """For each row the position of its name in `names`."""
    names: tuple[str, ...]
    source: Source
    lost: int
    """Rows that were dropped before these, under pressure."""
    end_bytes: int = 0
    """Where the next frame of the file begins: reading may go on from there later."""

    def rows(self) -> Iterator[Row]:
        """Give the batch by row."""
        names, source = self.names, self.source
        for step, at_s, value, index in zip(self.steps, self.times_s, self.values, self.name_of, strict=True):
            yield Row(step, at_s, names[index], value, source)


@frozen
class Damage:
    """Bytes of a file that are no whole frame."""

    path: str
    start_bytes: int
    size_bytes: int
    is_tail: bool
    """At the very end: a frame that is being written, or whose writer was killed."""


OnDamage = Callable[[Damage], None]


def pass_over(_damage: Damage, /) -> None:
    """Read on."""


def encode_frame(rows: Sequence[Row], *, source: Source = Source.REPORTED, lost: int = 0) -> bytes:
    """Write a batch of at most `ROWS_PER_FRAME` rows as one frame; what `Row.source` says is not looked at."""
    indices: dict[str, int] = {}
    name_of = [indices.setdefault(row.name, len(indices)) for row in rows]
    table = b"".join(_named(name) for name in indices)
    count = len(rows)
    payload = b"".join(
        (
            _COUNTS.pack(count, len(indices), lost, source),
            struct.pack(f"<{count}q", *(row.step for row in rows)),
            struct.pack(f"<{count}d", *(row.at_s for row in rows)),
            struct.pack(f"<{count}d", *(row.value for row in rows)),
            struct.pack(f"<{count}I", *name_of),
            table,
        )
    )
    return _HEADER.pack(MAGIC, len(payload), _checksum(payload)) + payload


def decode_payload(payload: bytes, *, end_bytes: int = 0) -> Frame:
    """Read what stands behind a frame's header. Raises `ValueError` on anything that `encode_frame` can't write."""
    if len(payload) < _COUNTS.size:
        raise ValueError("a frame without its counts")
    rows, names, lost, source = _COUNTS.unpack_from(payload)
    at = _COUNTS.size
    if len(payload) - at < rows * _ROW_BYTES + names * 2:
        message = f"a frame of {len(payload)} bytes can't hold {rows} rows and {names} names"
        raise ValueError(message)
    steps = struct.unpack_from(f"<{rows}q", payload, at)
    times_s = struct.unpack_from(f"<{rows}d", payload, at + 8 * rows)
    values = struct.unpack_from(f"<{rows}d", payload, at + 16 * rows)
    name_of = struct.unpack_from(f"<{rows}I", payload, at + 24 * rows)
    table = _names_in(payload, at + _ROW_BYTES * rows, names)
    if rows and max(name_of) >= names:
        raise ValueError("a row without a name")
    try:
        said_by = Source(source)
    except ValueError:
        raise ValueError(f"nobody is source {source}") from None
    return Frame(
        steps=steps,
        times_s=times_s,
        values=values,
        name_of=name_of,
        names=table,
        source=said_by,
        lost=lost,
        end_bytes=end_bytes,
    )


def read_frames(path: str, *, start_bytes: int = 0, on_damage: OnDamage = pass_over) -> Iterator[Frame]:
    """Give a file's frames in order, from a place where one begins; memory stays at a frame or two.

    A missing file has no frames. Bytes that are no whole frame are passed over and told to `on_damage`. What is no file
    is refused: a program may have put anything there, and nobody waits for a pipe.
    """
    with translated(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LocalFile(f"this is not a file: {path}", path=path)
            yield from _Scan(path, descriptor, start_bytes, on_damage).frames()
        finally:
            os.close(descriptor)


def read_metrics(paths: Sequence[str], *, on_damage: OnDamage = pass_over) -> Iterator[Row]:
    """Give the rows of some files, file by file, in the order in which they were written."""
    for path in paths:
        for frame in read_frames(path, on_damage=on_damage):
            yield from frame.rows()


def clean_step(step: int) -> int:
    """Give a step that a frame can hold."""
    return max(-_STEP_LIMIT, min(_STEP_LIMIT - 1, step))


def clean_name(name: str) -> str:
    """Give a metric's name as a frame can hold it: not empty, valid text, at most `NAME_BYTES` long."""
    if name and name.isascii() and len(name) <= NAME_BYTES:
        return name
    data = name.encode("utf-8", "replace")[:NAME_BYTES]
    return data.decode("utf-8", "ignore") or "unnamed"


class _Scan:
    """One pass over a file: a window of its bytes, and the place in it where the next frame is looked for."""

    def __init__(self, path: str, descriptor: int, start_bytes: int, on_damage: OnDamage) -> None:
        self._path = path
        self._descriptor = descriptor
        self._on_damage = on_damage
        self._window = b""
        self._window_start = start_bytes
        self._at = 0
        self._skipped = 0
        """How many bytes just before that place were no frame."""

    def frames(self) -> Iterator[Frame]:
        while self._has(_HEADER.size):
            frame = self._frame_here()
            if frame is None:
                self._skip()
                continue
            self._tell(is_tail=False)
            self._at = frame.end_bytes - self._window_start
            yield frame
        self._skipped += len(self._window) - self._at
        self._at = len(self._window)
        self._tell(is_tail=True)

    def _has(self, size_bytes: int) -> bool:
        while len(self._window) - self._at < size_bytes:
            more = os.pread(self._descriptor, _READ_BYTES, self._window_start + len(self._window))
            if not more:
                return False
            self._window = self._window[self._at :] + more
            self._window_start += self._at
            self._at = 0
        return True

    def _frame_here(self) -> Frame | None:
        magic, payload_bytes, checksum = _HEADER.unpack_from(self._window, self._at)
        if magic != MAGIC or payload_bytes > LARGEST_PAYLOAD_BYTES or not self._has(_HEADER.size + payload_bytes):
            return None
        begin = self._at + _HEADER.size
        payload = self._window[begin : begin + payload_bytes]
        if _checksum(payload) != checksum:
            return None
        try:
            return decode_payload(payload, end_bytes=self._window_start + begin + payload_bytes)
        except ValueError:
            return None

    def _skip(self) -> None:
        """Go on at the next place that looks like the beginning of a frame."""
        found = self._window.find(MAGIC, self._at + 1)
        # What may be the beginning of a magic stays to be looked at again.
        to = found if found >= 0 else max(self._at + 1, len(self._window) - len(MAGIC) + 1)
        self._skipped += to - self._at
        self._at = to

    def _tell(self, *, is_tail: bool) -> None:
        if self._skipped:
            start_bytes = self._window_start + self._at - self._skipped
            self._on_damage(Damage(path=self._path, start_bytes=start_bytes, size_bytes=self._skipped, is_tail=is_tail))
            self._skipped = 0


def _named(name: str) -> bytes:
    data = name.encode("utf-8", "replace")
    return struct.pack("<H", len(data)) + data


def _names_in(payload: bytes, at: int, count: int) -> tuple[str, ...]:
    names = []
    for _ in range(count):
        if at + 2 > len(payload):
            raise ValueError("the table of names is cut")
        (size,) = struct.unpack_from("<H", payload, at)
        data = payload[at + 2 : at + 2 + size]
        if len(data) != size:
            raise ValueError("the table of names is cut")
        names.append(data.decode("utf-8", "replace"))
        at += 2 + size
    if at != len(payload):
        raise ValueError("there is something behind the table of names")
    return tuple(names)


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<I", len(payload))))
