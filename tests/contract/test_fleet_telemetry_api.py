"""Telemetry over HTTP: reports of machines in their own name, series, alerts as symptoms, metrics, the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.http.app_state import MetricsPage
from stoker.coordinator.storage.telemetry import gauges_of
from stoker.core.errors import BadInput, Forbidden, NotFound
from stoker.protocol.telemetry_messages import (
    AlertView,
    DeviceRows,
    DeviceTelemetry,
    TelemetryReport,
    TelemetryRowMessage,
)
from tests.contract.test_fleet_contents_secure import CLOCK, Machine
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.tls_line import Lines

GPU = "GPU-1"


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("telemetry")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder, is_secure=True) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def machine(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with closing(Lines(fleet, folder)) as lines:
        found = Machine(fleet, lines, "desk", folder)
    with closing(found):
        found.hello()
        yield found


def row(at_s: float, power: float, **more: Any) -> TelemetryRowMessage:
    values = ((50.0, 60.0, 70.0), None, (power, power, power))
    return TelemetryRowMessage(**{"start_s": int(at_s) // 10 * 10, "count": 10, "values": values, **more})


def report(now_s: float, worker: str = "desk", **more: Any) -> TelemetryReport:
    fields = {
        "worker": worker,
        "wall_s": now_s,
        "devices": (DeviceTelemetry(device=""), DeviceTelemetry(device=GPU, temperature_c=81.0, throttle=())),
        "rows": (
            DeviceRows(device=GPU, name="Card", rows=tuple(row(now_s - 10 * at, 100.0 + at) for at in range(30))),
        ),
        "alerts": (AlertView(device=GPU, kind="hot", severity=60, message="81 °C", for_s=12.0),),
    }
    return TelemetryReport(**{**fields, **more})


def test_a_machine_reports_what_it_measured_and_everybody_sees_it(fleet: Fleet, machine: Machine) -> None:
    now_s = CLOCK.wall_s()
    machine.client.report_telemetry(report(now_s))
    found = fleet.client().telemetry("desk")
    assert [one.device for one in found.devices] == [GPU, ""]
    card = found.devices[0]
    assert card.name == "Card"
    assert card.now is not None
    assert card.now.temperature_c == 81.0
    # Not reported is not zero.
    assert card.now.power_w is None
    assert found.period_s == 10
    assert len(card.times_s) == 30
    assert [one.channel for one in card.series] == ["utilisation", "power"]
    assert max(value for value in card.series[1].high if value is not None) == 129.0
    thin = fleet.client().telemetry("desk", points=4)
    assert len(thin.devices[0].times_s) <= 4
    assert max(value for value in thin.devices[0].series[1].high if value is not None) == 129.0
    assert found.alerts[0].severity == 60


def test_a_machine_reports_for_itself_only_and_an_unknown_one_not_at_all(fleet: Fleet, machine: Machine) -> None:
    with pytest.raises(Forbidden):
        machine.client.report_telemetry(report(CLOCK.wall_s(), "other"))
    with pytest.raises(Forbidden):
        fleet.client().report_telemetry(report(CLOCK.wall_s()))
    with pytest.raises(NotFound):
        fleet.client().telemetry("nowhere")
    with pytest.raises(BadInput):
        fleet.client().telemetry("desk", from_s=20.0, to_s=10.0)


def test_metrics_have_what_was_measured_and_leave_out_the_rest(fleet: Fleet, machine: Machine) -> None:
    hostile = DeviceTelemetry(device='GPU-"}', power_w=7.5)
    measured = (hostile, DeviceTelemetry(device=GPU, clock_mhz=1.0))
    machine.client.report_telemetry(report(CLOCK.wall_s(), devices=measured))
    page = MetricsPage()
    for name, help, values in gauges_of(fleet.keeping.telemetry.all_latest()):
        page.labelled(name, help, values)
    text = page.to_bytes().decode()
    assert f'stoker_device_clock_megahertz{{machine="desk",device="{GPU}"}} 1\n' in text
    assert f'stoker_device_alert{{machine="desk",device="{GPU}",alert="hot"}} 60\n' in text
    assert [line for line in text.splitlines() if line.startswith("stoker_device_power_watts")] == [
        'stoker_device_power_watts{machine="desk",device="GPU-\\"}"} 7.5'
    ]


def test_a_forgotten_machine_leaves_no_files(fleet: Fleet, tmp_path: Path) -> None:
    with closing(Lines(fleet, tmp_path)) as lines:
        one = Machine(fleet, lines, "gone", tmp_path)
    with closing(one):
        one.hello()
        one.client.report_telemetry(report(CLOCK.wall_s(), "gone"))
    place = Path(fleet.keeping.telemetry._place("gone"))
    assert place.is_dir()
    fleet.client().change_machine("gone", "forget")
    assert not place.exists()
    with pytest.raises(NotFound):
        fleet.client().telemetry("gone")
