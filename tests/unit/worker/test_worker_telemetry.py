"""Reports of telemetry: bounded, repeated after a failure, at once after an alert."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import NotFound, Unavailable
from stoker.devices.telemetry.recorder import TelemetryRecorder
from stoker.devices.telemetry.samples import DeviceSample
from stoker.protocol.telemetry_messages import TelemetryReport
from stoker.protocol.view_messages import DoneView
from stoker.worker.telemetry import MOST_ROWS_EACH, TelemetryReporting, TelemetrySampling


class Line:
    """A coordinator that takes reports, or is away."""

    def __init__(self) -> None:
        self.reports: list[TelemetryReport] = []
        self.error: Exception | None = None

    def send(self, report: TelemetryReport) -> DoneView:
        if self.error is not None:
            raise self.error
        self.reports.append(report)
        return DoneView()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_800_000_000.25)


@pytest.fixture
def recorder(tmp_path: Path, clock: FakeClock) -> TelemetryRecorder:
    samples = [
        DeviceSample(uuid="", utilisation_percent=12.345),
        DeviceSample(uuid="GPU-1", temperature_c=95.0, throttle=("power limit",)),
    ]
    return TelemetryRecorder(str(tmp_path), lambda _now_s: samples, dict, clock=clock)


def reporting(recorder: TelemetryRecorder, line: Line, clock: FakeClock) -> TelemetryReporting:
    names = {"GPU-1": "Card"}
    return TelemetryReporting(recorder, line.send, worker="desk", names=lambda: names, clock=clock)


def test_an_alert_is_reported_at_once_and_rows_as_they_are_complete(
    recorder: TelemetryRecorder, clock: FakeClock
) -> None:
    alerts: list[float] = []
    sampling = TelemetrySampling(recorder, clock=clock, on_alert=lambda: alerts.append(clock.monotonic_s()))
    for _ in range(12):
        assert sampling.act() == pytest.approx(0.75)
        clock.advance(1.0)
    assert alerts == [10.0]
    line = Line()
    assert reporting(recorder, line, clock).act() == 30.0
    (report,) = line.reports
    assert [(one.device, len(one.rows), one.name) for one in report.rows] == [("", 1, ""), ("GPU-1", 1, "Card")]
    assert [(one.kind, one.severity, one.for_s) for one in report.alerts] == [("hot", 80, 2.0)]
    assert report.devices[0].utilisation_percent == 12.35
    assert report.devices[0].power_w is None
    assert report.devices[1].throttle == ("power limit",)


def test_rows_wait_for_a_coordinator_that_is_away_and_then_come_in_parts(
    recorder: TelemetryRecorder, clock: FakeClock
) -> None:
    line = Line()
    task = reporting(recorder, line, clock)
    for _ in range(1500):
        recorder.record()
        clock.advance(1.0)
    line.error = Unavailable("away")
    assert [task.act() for _ in range(4)] == [60.0, 120.0, 240.0, 300.0]
    line.error = None
    pauses = [task.act(), task.act()]
    assert pauses == [1.0, 30.0]
    counts = [sum(len(one.rows) for one in report.rows) for report in line.reports]
    assert counts[0] <= MOST_ROWS_EACH
    assert sum(counts) == 2 * 149
    starts = [row.start_s for report in line.reports for one in report.rows if one.device for row in one.rows]
    assert starts == sorted(starts)


def test_a_coordinator_without_the_route_is_asked_seldom(recorder: TelemetryRecorder, clock: FakeClock) -> None:
    line = Line()
    line.error = NotFound("there is nothing there")
    assert reporting(recorder, line, clock).act() == 300.0
