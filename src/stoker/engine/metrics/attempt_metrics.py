"""Curves of earlier attempts: an attempt that resumes from a checkpoint shows the steps before it, too.

While an attempt runs, its files of metrics have second names in its scratch folder, so they are kept with the
checkpoint however the attempt ends. The next attempt takes from there, for each metric, the steps before the first one
that it reports itself: what it runs again is its own, and an attempt that starts again takes nothing. Its own file then
has the whole curve, for every reader and for the attempt after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.engine.metrics.metrics_file import (
    ROWS_PER_FRAME,
    MetricRow,
    MetricSource,
    MetricsWriter,
    encode_frame,
    read_frames,
)
from stoker.host.durable import write_file
from stoker.host.users import acting_as_owner

_CURRENT = (".curves.skm", ".curves.program.skm")
"""Second names of the files of the attempt that works there, or worked there last: ours, and its program's."""
EARLIER = ".curves.earlier.skm"
"""What attempts before that one measured."""
FILES = frozenset({*_CURRENT, EARLIER})
"""Names in a scratch folder that are ours, and nothing to go on from."""
LARGEST_BYTES = 32 << 20
"""Longer curves are not carried along: the attempt then begins its curve where it resumes."""


class EarlierCurves:
    """The curves that a scratch folder has of earlier attempts, for one attempt. Not thread-safe."""

    def __init__(self, scratch: str, files: Sequence[str]) -> None:
        """`files` are those that this attempt writes: ours, then its program's."""
        self._scratch = scratch
        self._files = files
        self._linked: set[str] = set()
        self._is_open = False
        self._has_any = False

    def before(self, first_steps: Mapping[str, int]) -> list[MetricRow]:
        """Return the rows of these metrics with lower steps than these, in the order in which they were written."""
        self._open()
        if not self._has_any:
            return []
        return [row for row in self._rows() if row.name in first_steps and row.step < first_steps[row.name]]

    def of_others(self, names: Collection[str]) -> list[MetricRow]:
        """Return the rows of all metrics but these."""
        return [row for row in self._rows() if row.name not in names] if self._has_any else []

    def link(self) -> None:
        """Link this attempt's files into the scratch folder, once there is one."""
        if len(self._linked) == len(_CURRENT) or not os.path.isdir(self._scratch):
            return
        with suppress(OSError):
            os.close(
                os.open(self._files[0], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
            )
        for file, name in zip(self._files, _CURRENT, strict=True):
            if name not in self._linked and os.path.isfile(file):
                second = os.path.join(self._scratch, name)
                # On another file system there is none, and the curve begins where the next attempt resumes.
                with suppress(OSError):
                    os.unlink(second)
                with suppress(OSError):
                    os.link(file, second, follow_symlinks=False)
                self._linked.add(name)

    def _open(self) -> None:
        """Put what the attempt before this one measured with what is older. An attempt of the same run has it all."""
        if self._is_open or not os.path.isdir(self._scratch):
            return
        self._is_open = True
        if self._is_same_run():
            self._linked.update(_CURRENT[:1])
            return
        data = earlier_curves(self._scratch)
        if data:
            with suppress(OSError, StokerError), acting_as_owner(self._scratch):
                write_file(os.path.join(self._scratch, EARLIER), data, mode=0o600)
                self._has_any = True
        for name in _CURRENT:
            with suppress(OSError):
                os.unlink(os.path.join(self._scratch, name))

    def _is_same_run(self) -> bool:
        try:
            return os.path.samefile(self._files[0], os.path.join(self._scratch, _CURRENT[0]))
        except OSError:
            return False

    def _rows(self) -> list[MetricRow]:
        with suppress(StokerError), acting_as_owner(self._scratch):
            return list(_read(self._scratch, EARLIER))
        return []


def earlier_curves(scratch: str) -> bytes:
    """Return all that attempts in a scratch folder have measured, as one file; empty if it is nothing, or too much.

    Of a metric that the last attempt reported its file has the older values as well, as far as they count.
    """
    rows: list[MetricRow] = []
    size_bytes = 0
    with suppress(OSError, StokerError), acting_as_owner(scratch):
        for name in (*_CURRENT, EARLIER):
            path = os.path.join(scratch, name)
            size_bytes += os.stat(path).st_size if os.path.isfile(path) else 0
        if size_bytes > LARGEST_BYTES:
            return b""
        current = [row for name in _CURRENT for row in _read(scratch, name)]
        names = {row.name for row in current}
        rows = [*(row for row in _read(scratch, EARLIER) if row.name not in names), *current]
    return b"".join(_frames(rows))


def _read(scratch: str, name: str) -> Iterator[MetricRow]:
    for frame in read_frames(os.path.join(scratch, name)):
        yield from frame.rows()


def _frames(rows: Sequence[MetricRow]) -> Iterator[bytes]:
    """Write rows as frames, each of one source."""
    at = 0
    while at < len(rows):
        source = rows[at].source
        end = at
        while end < len(rows) and end - at < ROWS_PER_FRAME and rows[end].source is source:
            end += 1
        yield encode_frame(rows[at:end], source=source)
        at = end


# What an attempt reports while it runs: the last value of each metric, and the curves, kept as they come.


LAST_KEPT = 256
"""Metrics whose last value is part of the result; the curves have all of them."""


_LOOK_S = 1.0


class Reports:
    """The reports of one attempt; any thread may bring one.

    A report with `step` is progress, one with `row` is only for the curves. Metrics of a report that `is_kept` are
    in a file already. The first value of a metric brings the steps before it that earlier attempts measured.
    """

    def __init__(self, curves_path: str, clock: Clock, earlier: EarlierCurves | None = None) -> None:
        self._curves_path = curves_path
        self._clock = clock
        self._earlier = earlier
        self._names: set[str] = set()
        self._look_s = 0.0
        self._writer: MetricsWriter | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self.last: dict[str, float] = {}
        """The last value of each metric."""

    def take(self, report: dict[str, Any]) -> dict[str, Any]:
        """Keep what a report says; gives it back."""
        metrics = report.get("metrics")
        if metrics:
            place = report["row"] if "row" in report else report["step"]
            with self._lock:
                self._take_earlier(metrics, place)
                self._note(metrics)
                writer = None if report.get("is_kept") else self._open()
            if writer is not None:
                writer.add(place, metrics, source=report.get("source", MetricSource.REPORTED))
        return report

    def close(self) -> str:
        """Write what is left; says what could not be kept. Reports that come later are not taken."""
        with self._lock:
            self._take_rest()
            self._is_closed = True
            writer, self._writer = self._writer, None
        written = writer.close() if writer is not None else None
        if written is None or not written.lost:
            return ""
        return f"{written.lost} values of metrics could not be kept{f': {written.fault}' if written.fault else ''}"

    def _take_earlier(self, metrics: Mapping[str, float], place: int) -> None:
        """Bring earlier values of metrics that are reported for the first time."""
        if self._earlier is None or self._is_closed:
            return
        fresh = metrics.keys() - self._names
        if fresh:
            self._names |= fresh
            self._add(self._earlier.before(dict.fromkeys(fresh, place)))
        now_s = self._clock.monotonic_s()
        if fresh or now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            self._earlier.link()

    def _take_rest(self) -> None:
        """Bring the metrics that only earlier attempts reported, if this one has reported any."""
        if self._earlier is None or self._is_closed or not self._names:
            return
        rows = self._earlier.of_others(self._names)
        self._add(rows)
        note_last(self.last, {row.name: row.value for row in rows})
        self._earlier.link()

    def _add(self, rows: Sequence[MetricRow]) -> None:
        writer = self._open() if rows else None
        if writer is None:
            return
        for at, row in enumerate(rows, 1):
            writer.add(row.step, {row.name: row.value}, at_s=row.at_s, source=row.source)
            if at % ROWS_PER_FRAME == 0:
                # Its buffer is bounded.
                writer.flush()

    def _note(self, metrics: Mapping[str, float]) -> None:
        if not self._is_closed:
            note_last(self.last, metrics)

    def _open(self) -> MetricsWriter | None:
        if self._writer is None and not self._is_closed:
            self._writer = MetricsWriter(self._curves_path, clock=self._clock)
        return self._writer


def note_last(last: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Put the values of some metrics in the place of earlier ones; beyond so many names, new ones are left out."""
    for name, value in metrics.items():
        if name in last or len(last) < LAST_KEPT:
            last[name] = value
