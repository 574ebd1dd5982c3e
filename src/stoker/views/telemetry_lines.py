"""Telemetry as data for screens, and as lines: present values, the last hour, alerts.

A value that was not measured is shown as "–", never as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.text import format_duration, format_size, one_line
from stoker.devices.telemetry.series import CHANNELS, TelemetryRow, grouped
from stoker.views.text_chart import sparkline
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from stoker.devices.telemetry.samples import DeviceSample
    from stoker.protocol.telemetry_messages import (
        AlertView,
        DeviceTelemetry,
        DeviceTelemetryView,
        TelemetrySeries,
        TelemetryView,
    )

UNKNOWN = "–"
SPARK_COLUMNS = 40
_SAMPLE_FIELDS = (
    "utilisation_percent", "memory_total_bytes", "memory_used_bytes", "power_w", "power_limit_w", "energy_j",
    "temperature_c", "slowdown_c", "clock_mhz", "throttle", "fan_percent", "ecc_errors", "processes", "load",
)  # fmt: skip
HEADER = ("device", "util", "memory", "power", "temp", "clock", "fan", "throttle")


def telemetry_of(sample: DeviceSample) -> DeviceTelemetry:
    """Return the present state of a device as it is reported and shown."""
    from stoker.protocol.telemetry_messages import DeviceTelemetry

    values: dict[str, Any] = {name: getattr(sample, name) for name in _SAMPLE_FIELDS}
    rounded: dict[str, Any] = {
        name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()
    }
    return DeviceTelemetry(device=sample.uuid, **rounded)


def device_view(
    uuid: str, name: str, rows: Sequence[TelemetryRow], period_s: int, now: DeviceTelemetry | None
) -> DeviceTelemetryView:
    """Return the view of one device, its rows merged to a period."""
    from stoker.protocol.telemetry_messages import DeviceTelemetryView, TelemetrySeries

    shown = list(grouped(rows, period_s))
    series = []
    for at, channel in enumerate(CHANNELS):
        extents = [row.values[at] for row in shown]
        if any(extent is not None for extent in extents):
            low, mean, high = (
                tuple(None if extent is None else round(extent[which], 2) for extent in extents) for which in range(3)
            )
            series.append(
                TelemetrySeries(device=uuid, channel=channel.name, unit=channel.unit, low=low, mean=mean, high=high)
            )
    return DeviceTelemetryView(
        device=uuid,
        name=name,
        now=now,
        times_s=tuple(float(row.start_s) for row in shown),
        throttled=tuple(row.throttled for row in shown),
        series=tuple(series),
    )


def telemetry_lines(
    view: TelemetryView, *, names: Mapping[str, str], columns: int, is_ascii: bool = False
) -> list[str]:
    """Return a machine's telemetry: present values by device, each channel as a line of blocks, alerts."""
    rows = [device_cells(one.now, _name(one, names)) for one in view.devices if one.now is not None]
    lines = table(rows, header=HEADER, columns=columns) if rows else []
    curves = [row for one in view.devices for row in _curves(one, _name(one, names), is_ascii=is_ascii)]
    if curves:
        span = f"last {format_duration(view.to_s - view.from_s)}"
        lines += ["", *table(curves, header=("", span, "low", "mean", "high"), columns=columns)]
    if view.alerts:
        lines += ["", *alert_lines(view.alerts, names)]
    return lines


def device_cells(now: DeviceTelemetry, name: str) -> list[str]:
    """Return the present values of a device as a row under `HEADER`."""
    return [
        name,
        percent_text(now.utilisation_percent),
        memory_text(now.memory_used_bytes, now.memory_total_bytes),
        power_text(now.power_w, now.power_limit_w),
        UNKNOWN if now.temperature_c is None else f"{now.temperature_c:.0f} °C",
        UNKNOWN if now.clock_mhz is None else f"{now.clock_mhz:.0f} MHz",
        percent_text(now.fan_percent),
        UNKNOWN if now.throttle is None else ", ".join(now.throttle) or "none",
    ]


def short_text(devices: Iterable[Mapping[str, Any]]) -> str:
    """Return the hottest and the busiest of a machine's devices in a few words; empty if nothing was measured."""
    found = [one for device in devices if isinstance(one := device.get("telemetry"), dict)]
    hottest = max((one["temperature_c"] for one in found if _is_number(one.get("temperature_c"))), default=None)
    used = [one["utilisation_percent"] for one in found if _is_number(one.get("utilisation_percent"))]
    words = [f"{sum(used) / len(used):.0f} %"] if used else []
    words += [f"{hottest:.0f} °C"] if hottest is not None else []
    return " ".join(words)


def alert_lines(alerts: Sequence[AlertView], names: Mapping[str, str]) -> list[str]:
    """Return one line per alert, the most severe first."""
    return [
        one_line(
            f"! {names.get(one.device, one.device)} {one.kind} (severity {one.severity}, for "
            f"{format_duration(one.for_s)}): {one.message}"
        )
        for one in sorted(alerts, key=lambda one: -one.severity)
    ]


def percent_text(value: float | None) -> str:
    """Return a percentage."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def memory_text(used: int | None, total: int | None) -> str:
    """Return memory in use, of all."""
    if used is None:
        return UNKNOWN
    return f"{format_size(used)} of {format_size(total)}" if total else format_size(used)


def power_text(power_w: float | None, limit_w: float | None) -> str:
    """Return the power drawn, of the limit."""
    if power_w is None:
        return UNKNOWN
    return f"{power_w:.0f} of {limit_w:.0f} W" if limit_w else f"{power_w:.0f} W"


def _name(view: DeviceTelemetryView, names: Mapping[str, str]) -> str:
    return one_line(names.get(view.device) or view.name or view.device or "host")


def _curves(view: DeviceTelemetryView, name: str, *, is_ascii: bool) -> list[list[str]]:
    return [
        [f"{name} {one.channel}", sparkline(_gapped(one), SPARK_COLUMNS, is_ascii=is_ascii), *_extremes(one)]
        for one in view.series
    ]


def _gapped(series: TelemetrySeries) -> list[float]:
    return [float("nan") if value is None else value for value in series.high]


def _extremes(series: TelemetrySeries) -> list[str]:
    low = [value for value in series.low if value is not None]
    mean = [value for value in series.mean if value is not None]
    high = [value for value in series.high if value is not None]
    if not low or not mean or not high:
        return [UNKNOWN] * 3
    return [f"{value:.0f} {series.unit}" for value in (min(low), sum(mean) / len(mean), max(high))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
