"""A worker's telemetry: one thread samples its machine once a second, another reports to the coordinator.

Neither is in the way of leases: a driver that hangs delays samples, and a coordinator that is away delays reports,
which then bring up to an hour of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.core.clock import Clock
from stoker.core.errors import NotFound, StokerError
from stoker.devices.telemetry.recorder import RecordedTelemetry, TelemetryRecorder
from stoker.devices.telemetry.series import TelemetryRow
from stoker.host.background import RecurringTask
from stoker.protocol.telemetry_messages import (
    MOST_DEVICES,
    REPORT_EVERY_S,
    AlertView,
    DeviceRows,
    TelemetryReport,
    TelemetryRowMessage,
)
from stoker.protocol.view_messages import DoneView
from stoker.views.telemetry_lines import telemetry_of

SAMPLE_S = 1.0
FIRST_S = 3.0
"""After the hello: the coordinator refuses reports of machines that it does not know."""
MOST_ROWS_EACH = 200
"""In one report, which stays below 64 KiB."""
MOST_AGAIN_S = 300.0


class TelemetrySampling(RecurringTask):
    """Samples once a second, at the full second."""

    def __init__(self, recorder: TelemetryRecorder, *, clock: Clock, on_alert: Callable[[], None]) -> None:
        super().__init__("telemetry", first_s=SAMPLE_S, retry_s=SAMPLE_S)
        self._recorder = recorder
        self._clock = clock
        self._on_alert = on_alert

    def act(self) -> float:
        """Sample once; return the seconds until the next time."""
        if self._recorder.record():
            self._on_alert()
        return SAMPLE_S - self._clock.wall_s() % SAMPLE_S


class TelemetryReporting(RecurringTask):
    """Reports to the coordinator: every half minute, and at once when an alert is raised or cleared."""

    def __init__(
        self,
        recorder: TelemetryRecorder,
        send: Callable[[TelemetryReport], DoneView],
        *,
        worker: str,
        names: Callable[[], Mapping[str, str]],
        clock: Clock,
    ) -> None:
        """`names` returns the devices' names by UUID."""
        super().__init__("telemetry-report", first_s=FIRST_S, retry_s=REPORT_EVERY_S)
        self._recorder = recorder
        self._send = send
        self._worker = worker
        self._names = names
        self._clock = clock
        self._again_s = REPORT_EVERY_S

    def act(self) -> float:
        """Report once; return the seconds until the next time."""
        taken = self._recorder.take()
        now, later = split_rows(taken.rows, MOST_ROWS_EACH)
        self._recorder.put_back(later)
        try:
            self._send(report_of(taken, now, worker=self._worker, names=self._names(), wall_s=self._clock.wall_s()))
        except StokerError as error:
            self._recorder.put_back(now)
            # An older coordinator has no such route.
            self._again_s = MOST_AGAIN_S if isinstance(error, NotFound) else min(self._again_s * 2, MOST_AGAIN_S)
            return self._again_s
        self._again_s = REPORT_EVERY_S
        return SAMPLE_S if later else REPORT_EVERY_S


Rows = Mapping[str, tuple[TelemetryRow, ...]]


def split_rows(rows: Rows, most: int) -> tuple[Rows, Rows]:
    """Return the rows of the next report, the oldest of every device, and the rest."""
    each = max(1, most // max(1, len(rows)))
    now = {uuid: some[:each] for uuid, some in rows.items()}
    later = {uuid: some[each:] for uuid, some in rows.items() if len(some) > each}
    return now, later


def report_of(
    taken: RecordedTelemetry, rows: Rows, *, worker: str, names: Mapping[str, str], wall_s: float
) -> TelemetryReport:
    """Return a report. Pure."""
    return TelemetryReport(
        worker=worker,
        wall_s=wall_s,
        devices=tuple(telemetry_of(one) for one in taken.samples[:MOST_DEVICES]),
        rows=tuple(
            DeviceRows(device=uuid, name=names.get(uuid, "")[:200], rows=tuple(map(_message, some)))
            for uuid, some in list(rows.items())[:MOST_DEVICES]
        ),
        alerts=tuple(
            AlertView(
                device=one.device,
                kind=one.kind.value,
                severity=one.severity,
                message=one.message,
                for_s=max(0.0, taken.now_s - one.since_s),
            )
            for one in taken.alerts
        ),
    )


def _message(row: TelemetryRow) -> TelemetryRowMessage:
    values = (
        None if extent is None else (round(extent[0], 2), round(extent[1], 2), round(extent[2], 2))
        for extent in row.values
    )
    return TelemetryRowMessage(start_s=row.start_s, count=row.count, throttled=row.throttled, values=tuple(values))
