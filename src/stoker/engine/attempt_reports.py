"""What an attempt reports while it runs: the last value of each metric, and the curves, kept as they come."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.clock import Clock
from stoker.engine.metrics.metrics_file import ROWS_PER_FRAME, MetricRow, MetricSource, MetricsWriter
from stoker.engine.metrics.previous_curves import EarlierCurves

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
