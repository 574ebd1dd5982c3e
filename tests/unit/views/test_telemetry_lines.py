"""Telemetry as lines: what is unknown is a dash, spikes stay visible, hostile names are harmless."""

from __future__ import annotations

from stoker.devices.telemetry.alerts import alerts_now
from stoker.devices.telemetry.samples import DeviceSample
from stoker.devices.telemetry.series import row_of
from stoker.protocol.telemetry_messages import AlertView, DeviceTelemetry, DeviceTelemetryView, TelemetryView
from stoker.views.telemetry_lines import (
    ShownDevice,
    alert_lines,
    curves_of,
    short_text,
    shown_devices,
    telemetry_lines,
    telemetry_of,
)
from stoker.views.telemetry_view import device_view

GIB = 1 << 30
CARD = DeviceSample(
    uuid="GPU-1",
    utilisation_percent=97.0,
    memory_total_bytes=24 * GIB,
    memory_used_bytes=6 * GIB,
    power_w=388.0,
    power_limit_w=450.0,
    temperature_c=71.0,
    throttle=("power limit",),
)


def test_what_was_not_measured_is_a_dash_and_what_no_device_has_is_no_column():
    idle = DeviceSample(uuid="GPU-1", utilisation_percent=0.0, memory_used_bytes=512 << 20, throttle=())
    shown = [ShownDevice(name="Card", now=CARD), ShownDevice(name="Other", now=idle)]
    assert telemetry_lines(shown, span_s=3600.0, columns=0) == [
        "device  util  memory           power         temp   throttle",
        "Card    97 %  6.0 of 24.0 GiB  388 of 450 W  71 °C  power limit",
        "Other   0 %   512.0 MiB        –             –      none",
    ]


def test_on_a_narrow_terminal_the_blocks_are_fewer():
    rows = [row_of(CARD, 10.0 * at) for at in range(360)]
    device = ShownDevice(name="NVIDIA GeForce RTX 4090", now=None, curves=curves_of(rows))
    assert max(map(len, telemetry_lines([device], span_s=3600.0, columns=80))) <= 80


def test_an_hour_is_a_line_of_blocks_with_its_extremes():
    rows = [row_of(DeviceSample(uuid="a", power_w=400.0 if at == 50 else 100.0), 10.0 * at) for at in range(360)]
    lines = telemetry_lines([ShownDevice(name="Card", now=None, curves=curves_of(rows))], span_s=3600.0, columns=0)
    assert lines[1].split() == ["last", "1h00m", "low", "mean", "high"]
    assert lines[2].startswith("Card power  ▁▁▁▁▁█▁")
    assert lines[2].endswith("100 W  101 W  400 W")
    plain = telemetry_lines(
        [ShownDevice(name="Card", now=None, curves=curves_of(rows))], span_s=3600.0, columns=0, is_ascii=True
    )
    assert plain[2].startswith("Card power  _____@_")


def test_a_machine_of_the_fleet_is_shown_by_the_names_of_its_devices():
    rows = [row_of(CARD, 10.0 * at) for at in range(3)]
    view = TelemetryView(
        machine="desk",
        server_s=30.0,
        from_s=0.0,
        to_s=30.0,
        period_s=10,
        devices=(
            device_view("GPU-1", "", rows, 10, telemetry_of(CARD)),
            DeviceTelemetryView(device="", now=DeviceTelemetry(utilisation_percent=5.0)),
        ),
    )
    assert [one.name for one in shown_devices(view, {"GPU-1": "Card\x1b[31m"})] == ["Card [31m", "host"]


def test_alerts_are_lines_the_most_severe_first_and_what_is_reached_now_needs_no_wait():
    alerts = [
        AlertView(device="GPU-1", kind="power", severity=20, message="440 of 450 W"),
        AlertView(device="GPU-1", kind="hot", severity=80, message="91 °C\nforged line"),
    ]
    lines = alert_lines(alerts, {"GPU-1": "Card"})
    assert len(lines) == 2
    assert lines[0].startswith("! Card hot (severity 80): 91 °C")
    hot = DeviceSample(uuid="GPU-1", temperature_c=92.0, utilisation_percent=0.0)
    assert [(one.kind, one.severity) for one in alerts_now([hot], {"GPU-1": 1}, 0.0)] == [("hot", 80)]


def test_a_list_shows_the_mean_utilisation_and_the_hottest_device():
    devices: list[dict[str, object]] = [
        {"telemetry": {"utilisation_percent": 90.0, "temperature_c": 60.0}},
        {"telemetry": {"utilisation_percent": 50.0, "temperature_c": 75.0}},
        {"telemetry": {"utilisation_percent": None, "temperature_c": "hot"}},
        {},
    ]
    assert short_text(devices) == "70 % 75 °C"
    assert short_text([{}]) == ""
