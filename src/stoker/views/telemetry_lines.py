"""Telemetry as data for screens, and as lines: present values, the last hour, alerts.

A value that was not measured is shown as "–", never as 0. Every list of machines imports this, so what only some lines
need is imported by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.display_width import text_width
from stoker.core.frozen import frozen
from stoker.core.text import format_duration, format_size, one_line
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from stoker.devices.telemetry.alerts import DeviceAlert
    from stoker.devices.telemetry.samples import DeviceSample
    from stoker.devices.telemetry.series import TelemetryRow
    from stoker.protocol.telemetry_messages import (
        AlertView,
        DeviceTelemetry,
        TelemetrySeries,
        TelemetryView,
    )

UNKNOWN = "–"
SPARK_COLUMNS = 40
_FEWEST_BLOCKS = 10
_EXTREMES_COLUMNS = 36
"""Three values of up to eight columns, and the gaps."""
HOST_NAME = "host"
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


@frozen
class ChannelCurve:
    """One channel of one device over time; None: not measured in that period."""

    channel: str
    unit: str
    low: tuple[float | None, ...]
    mean: tuple[float | None, ...]
    high: tuple[float | None, ...]


@frozen
class ShownDevice:
    """What is shown of one device."""

    name: str
    now: DeviceSample | DeviceTelemetry | None
    curves: Sequence[ChannelCurve | TelemetrySeries] = ()


def curves_of(rows: Sequence[TelemetryRow]) -> list[ChannelCurve]:
    """Return the channels that were measured in some period."""
    from stoker.devices.telemetry.series import CHANNELS

    found = []
    for at, channel in enumerate(CHANNELS):
        extents = [row.values[at] for row in rows]
        if any(extent is not None for extent in extents):
            low, mean, high = (
                tuple(None if extent is None else round(extent[which], 2) for extent in extents) for which in range(3)
            )
            found.append(ChannelCurve(channel=channel.name, unit=channel.unit, low=low, mean=mean, high=high))
    return found


def shown_devices(view: TelemetryView, names: Mapping[str, str]) -> list[ShownDevice]:
    """Return what is shown of a machine of the fleet; `names` are those of its devices by UUID."""
    return [
        ShownDevice(
            name=one_line(names.get(one.device) or one.name or one.device or HOST_NAME), now=one.now, curves=one.series
        )
        for one in view.devices
    ]


def telemetry_lines(
    devices: Sequence[ShownDevice], *, span_s: float, columns: int, is_ascii: bool = False
) -> list[str]:
    """Return present values by device, then each channel over the span as a line of blocks."""
    rows = [device_cells(one.now, one.name) for one in devices if one.now is not None]
    # What no device of the machine has is no column.
    held = [at for at in range(len(HEADER)) if any(row[at] != UNKNOWN for row in rows)]
    shown = [[row[at] for at in held] for row in rows]
    lines = table(shown, header=[HEADER[at] for at in held], columns=columns) if rows else []
    named = [(f"{one.name} {curve.channel}", curve) for one in devices for curve in one.curves]
    if named:
        room = columns - max(text_width(name) for name, _ in named) - _EXTREMES_COLUMNS
        across = min(max(room, _FEWEST_BLOCKS), SPARK_COLUMNS) if columns else SPARK_COLUMNS
        curves = [[name, _blocks(one, across, is_ascii=is_ascii), *_extremes(one)] for name, one in named]
        header = ("", f"last {format_duration(span_s)}", "low", "mean", "high")
        lines += ["", *table(curves, header=header, columns=columns)]
    return lines


def device_cells(now: DeviceSample | DeviceTelemetry, name: str) -> list[str]:
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


def alert_lines(alerts: Sequence[AlertView | DeviceAlert], names: Mapping[str, str]) -> list[str]:
    """Return one line per alert, the most severe first."""
    return [
        one_line(f"! {names.get(one.device) or one.device} {one.kind} (severity {one.severity}): {one.message}")
        for one in sorted(alerts, key=lambda one: -one.severity)
    ]


def percent_text(value: float | None) -> str:
    """Return a percentage."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def memory_text(used: int | None, total: int | None) -> str:
    """Return memory in use, of all."""
    if used is None:
        return UNKNOWN
    if not total:
        return format_size(used)
    (number, _, unit), whole = format_size(used).partition(" "), format_size(total)
    return f"{number if whole.endswith(f' {unit}') else format_size(used)} of {whole}"


def power_text(power_w: float | None, limit_w: float | None) -> str:
    """Return the power drawn, of the limit."""
    if power_w is None:
        return UNKNOWN
    return f"{power_w:.0f} of {limit_w:.0f} W" if limit_w else f"{power_w:.0f} W"


def _blocks(curve: ChannelCurve | TelemetrySeries, columns: int, *, is_ascii: bool) -> str:
    from stoker.views.text_chart import sparkline

    values = [float("nan") if value is None else value for value in curve.high]
    return sparkline(values, columns, is_ascii=is_ascii)


def _extremes(series: ChannelCurve | TelemetrySeries) -> list[str]:
    low = [value for value in series.low if value is not None]
    mean = [value for value in series.mean if value is not None]
    high = [value for value in series.high if value is not None]
    if not low or not mean or not high:
        return [UNKNOWN] * 3
    return [f"{value:.0f} {series.unit}" for value in (min(low), sum(mean) / len(mean), max(high))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
