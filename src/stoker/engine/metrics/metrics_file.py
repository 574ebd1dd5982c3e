"""Files of metrics (`.skm`): rows of (step, time, name, value) in frames that stand by themselves.

A frame is appended with one write, so several writers may share a file of a local file system and never meet inside a
frame. Each carries its length and a checksum: a torn tail is passed over, and behind a damaged frame reading resumes
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

import errno
import os
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from stoker.core.clock import Clock
from stoker.core.errors import LocalFile
from stoker.core.frozen import frozen
from stoker.host.durable import translated

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
_WASTED_BYTES = 32 << 20
"""Checked without a result, beyond as many bytes as were passed: then the rest of the file counts as damaged."""


class MetricSource(IntEnum):
    """Who said a number."""

    REPORTED = 0
    """The program or stage itself, on purpose."""
    STDOUT = 1
    """Read off a program's output, of either stream."""


class MetricRow(NamedTuple):
    """One value of one metric. A tuple by nature: files hold millions, and tables want them as they are."""

    step: int
    at_s: float
    name: str
    value: float
    source: MetricSource = MetricSource.REPORTED


@frozen
class MetricFrame:
    """A batch as it lies in a file, by column."""

    steps: Sequence[int]
    times_s: Sequence[float]
    values: Sequence[float]
    name_of: Sequence[int]
    """For each row the position of its name in `names`."""
    names: tuple[str, ...]
    source: MetricSource
    lost: int
    """Rows that were dropped before these, under pressure."""
    end_bytes: int = 0
    """Where the next frame of the file begins: reading may go on from there later."""

    def rows(self) -> Iterator[MetricRow]:
        """Return the batch by row."""
        names, source = self.names, self.source
        for step, at_s, value, index in zip(self.steps, self.times_s, self.values, self.name_of, strict=True):
            yield MetricRow(step, at_s, names[index], value, source)


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


def encode_frame(rows: Sequence[MetricRow], *, source: MetricSource = MetricSource.REPORTED, lost: int = 0) -> bytes:
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


def decode_payload(payload: bytes, *, end_bytes: int = 0) -> MetricFrame:
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
        said_by = MetricSource(source)
    except ValueError:
        raise ValueError(f"unknown source {source}") from None
    return MetricFrame(
        steps=steps,
        times_s=times_s,
        values=values,
        name_of=name_of,
        names=table,
        source=said_by,
        lost=lost,
        end_bytes=end_bytes,
    )


def read_frames(path: str, *, start_bytes: int = 0, on_damage: OnDamage = pass_over) -> Iterator[MetricFrame]:
    """Return a file's frames in order, from a place where one begins; memory stays at a frame or two.

    A missing file has no frames. Bytes that are no whole frame are passed over and reported to `on_damage`. What is no
    file is refused: a program may have put anything there, and a pipe would block.
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


def read_metrics(paths: Sequence[str], *, on_damage: OnDamage = pass_over) -> Iterator[MetricRow]:
    """Return the rows of some files, file by file, in the order in which they were written."""
    for path in paths:
        for frame in read_frames(path, on_damage=on_damage):
            yield from frame.rows()


def clean_step(step: int) -> int:
    """Return a step that a frame can hold."""
    return max(-_STEP_LIMIT, min(_STEP_LIMIT - 1, step))


def clean_name(name: str) -> str:
    """Return a metric's name as a frame can hold it: not empty, valid text, at most `NAME_BYTES` long."""
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
        self._wasted_bytes = 0

    def frames(self) -> Iterator[MetricFrame]:
        while self._is_worth_it() and self._has(_HEADER.size):
            frame = self._frame_here()
            if frame is None:
                self._skip()
                continue
            self._tell(is_tail=False)
            self._at = frame.end_bytes - self._window_start
            yield frame
        end_bytes = max(os.fstat(self._descriptor).st_size, self._window_start + len(self._window))
        self._skipped += end_bytes - self._window_start - self._at
        self._at = end_bytes - self._window_start
        self._tell(is_tail=True)

    def _is_worth_it(self) -> bool:
        """Return False if a file has so many false headers that to look at each would take hours."""
        return self._wasted_bytes <= _WASTED_BYTES + self._window_start + self._at

    def _has(self, size_bytes: int) -> bool:
        while len(self._window) - self._at < size_bytes:
            more = os.pread(self._descriptor, _READ_BYTES, self._window_start + len(self._window))
            if not more:
                return False
            self._window = self._window[self._at :] + more
            self._window_start += self._at
            self._at = 0
        return True

    def _frame_here(self) -> MetricFrame | None:
        magic, payload_bytes, checksum = _HEADER.unpack_from(self._window, self._at)
        if magic != MAGIC or payload_bytes > LARGEST_PAYLOAD_BYTES or not self._has(_HEADER.size + payload_bytes):
            return None
        begin = self._at + _HEADER.size
        payload = self._window[begin : begin + payload_bytes]
        if _checksum(payload) != checksum:
            self._wasted_bytes += payload_bytes
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


FLUSH_S = 0.5
BUFFER_ROWS = 256 * 1024
CLOSE_S = 5.0


@frozen
class MetricsWriteResult:
    """What became of everything that was added."""

    rows: int
    lost: int
    """Did not fit while the disk did not keep up."""
    fault: str = ""
    """What the operating system said last, if some of it could not be written."""


class MetricsWriter:
    """Appends to one file, which is made with the first value. Any thread may add.

    `add` never waits: values go into a bounded buffer, and a thread writes them as frames twice a second. What did not
    fit is counted, and the next frame says how much is missing. A disk that is full or gone costs the values that no
    longer fit into the buffer, never the run; `close` says what happened.
    """

    def __init__(self, path: str, *, clock: Clock, buffer_rows: int = BUFFER_ROWS, flush_s: float = FLUSH_S) -> None:
        self.path = path
        self._clock = clock
        self._buffer_rows = buffer_rows
        self._flush_s = flush_s
        self._adding = threading.Lock()
        self._rows: list[MetricRow] = []
        self._lost = 0
        self._is_closed = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._taken: list[MetricRow] = []
        """Out of the buffer and not yet in the file; counts against the buffer's bound."""
        self._descriptor = -1
        self._written = 0
        self._lost_told = 0
        self._fault = ""

    def add(
        self,
        step: int,
        values: Mapping[str, float],
        *,
        at_s: float | None = None,
        source: MetricSource = MetricSource.REPORTED,
    ) -> None:
        """Take values in; what does not fit is counted as lost."""
        if not values:
            return
        when_s = self._clock.wall_s() if at_s is None else at_s
        where = clean_step(step)
        with self._adding:
            room = 0 if self._is_closed else self._buffer_rows - len(self._rows) - len(self._taken)
            for name, value in values.items():
                if room > 0:
                    self._rows.append(MetricRow(where, when_s, clean_name(name), value, source))
                    room -= 1
                else:
                    self._lost += 1
            is_due = len(self._rows) >= ROWS_PER_FRAME
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="stoker-metrics", daemon=True)
                self._thread.start()
        if is_due:
            self._wake.set()

    def flush(self) -> None:
        """Write what has been added so far, now and here."""
        with self._writing:
            with self._adding:
                self._taken += self._rows
                self._rows = []
                lost = self._lost
            try:
                self._write(lost)
            except OSError as error:
                # What was taken is tried again next time.
                self._fault = error.strerror or str(error)

    def close(self, timeout_s: float = CLOSE_S) -> MetricsWriteResult:
        """Write the rest, make it durable and say what became of it all. A disk that hangs is not waited for longer."""
        with self._adding:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(timeout_s)
        late = thread is not None and thread.is_alive()
        with self._adding:
            lost = self._lost + len(self._rows) + len(self._taken)
        return MetricsWriteResult(
            rows=self._written, lost=lost, fault="the disk does not answer" if late else self._fault
        )

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self.flush()
        self.flush()
        with self._writing, suppress(OSError):
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self, lost: int) -> None:
        while self._taken:
            source = self._taken[0].source
            batch = [row for row in self._taken[:ROWS_PER_FRAME] if row.source is source]
            frame = encode_frame(batch, source=source, lost=lost - self._lost_told)
            if self._descriptor < 0:
                # A program may have put a pipe there, or a link to something else.
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
                self._descriptor = os.open(self.path, flags, 0o644)
            if os.write(self._descriptor, frame) != len(frame):
                # Readers pass over what did get there.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._lost_told = lost
            self._written += len(batch)
            others = [row for row in self._taken[:ROWS_PER_FRAME] if row.source is not source]
            self._taken = others + self._taken[ROWS_PER_FRAME:]
