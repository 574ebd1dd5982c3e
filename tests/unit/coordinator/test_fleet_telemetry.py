"""Rows of machines in files: five minutes are summed up, clocks may differ, and nothing grows without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.coordinator.storage.telemetry import FleetTelemetry
from stoker.core.clock import FakeClock
from stoker.protocol.telemetry_messages import DeviceRows, TelemetryReport, TelemetryRowMessage

START_S = 1_800_000_000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_S)


@pytest.fixture
def telemetry(tmp_path: Path, clock: FakeClock) -> FleetTelemetry:
    return FleetTelemetry(str(tmp_path), clock)


def rows(from_s: float, count: int, *, power: float = 100.0) -> tuple[TelemetryRowMessage, ...]:
    values = (None, None, (power, power, power))
    return tuple(TelemetryRowMessage(start_s=int(from_s) + 10 * at, count=10, values=values) for at in range(count))


def report(telemetry: FleetTelemetry, wall_s: float, some: tuple[TelemetryRowMessage, ...], device: str = "G") -> None:
    telemetry.note(TelemetryReport(worker="m1", wall_s=wall_s, rows=(DeviceRows(device=device, rows=some),)))


def test_five_minutes_are_summed_up_once_they_are_over_and_outlive_the_day(
    telemetry: FleetTelemetry, clock: FakeClock
) -> None:
    for at in range(10):
        clock.advance(90.0)
        report(telemetry, clock.wall_s(), rows(START_S + 90.0 * at, 9, power=100.0 + at))
    clock.advance(2 * 24 * 3600.0)
    found = telemetry.view("m1", from_s=START_S - 10.0, to_s=clock.wall_s(), points=1000)
    (device,) = found.devices
    assert found.period_s == 300
    assert [at_s - START_S for at_s in device.times_s] == [0.0, 300.0, 600.0]
    assert device.series[0].high[0] == 103.0
    assert device.series[0].mean[0] == pytest.approx(101.2, abs=0.01)
    assert found.reported_s is None


def test_rows_of_a_machine_whose_clock_is_wrong_are_put_where_they_belong(
    telemetry: FleetTelemetry, clock: FakeClock
) -> None:
    report(telemetry, clock.wall_s() + 7200.0, rows(START_S + 7200.0 - 100.0, 10))
    (device,) = telemetry.view("m1", from_s=START_S - 3600.0, to_s=START_S, points=100).devices
    assert device.times_s[0] == START_S - 100.0


def test_rows_of_another_century_are_not_taken(telemetry: FleetTelemetry, clock: FakeClock) -> None:
    report(telemetry, clock.wall_s(), rows(4_000_000_000.0, 3))
    report(telemetry, clock.wall_s(), rows(10.0, 3))
    assert telemetry.view("m1", from_s=0.0, to_s=4e9, points=100).devices == ()


def test_folders_of_machines_that_are_gone_are_swept(
    telemetry: FleetTelemetry, clock: FakeClock, tmp_path: Path
) -> None:
    report(telemetry, clock.wall_s(), rows(START_S - 100.0, 3), device="../../etc")
    assert len(list(tmp_path.iterdir())) == 1
    telemetry.sweep(["m1"])
    assert len(list(tmp_path.iterdir())) == 1
    telemetry.sweep([])
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_names_ever_new_devices_has_a_bounded_number_of_files(
    telemetry: FleetTelemetry, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.coordinator.storage.telemetry.MOST_FILES", 4)
    for at in range(12):
        clock.advance(10.0)
        report(telemetry, clock.wall_s(), rows(clock.wall_s() - 10.0, 1), device=f"MIG-{at}")
        report(telemetry, clock.wall_s(), rows(clock.wall_s() - 10.0, 1), device="")
    assert len(list(tmp_path.glob("*/*.ring"))) == 4
    found = telemetry.view("m1", from_s=START_S, to_s=clock.wall_s(), points=100).devices
    assert [one.device for one in found if one.device == ""] == [""], "the host reports all the time"
    assert "MIG-11" in {one.device for one in found}
