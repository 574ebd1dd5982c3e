"""Telemetry of one machine as screens get it, from rows however they are stored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.core.frozen import frozen
from stoker.devices.telemetry.series import TelemetryRow, grouped, period_for
from stoker.protocol.telemetry_messages import (
    AlertView,
    DeviceTelemetry,
    DeviceTelemetryView,
    TelemetrySeries,
    TelemetryView,
)
from stoker.views.telemetry_lines import curves_of

StoredRows = tuple[Mapping[str, str], Sequence[TelemetryRow]]
"""The description of a device (`uuid`, `name`), and its rows."""


@frozen
class TelemetrySpan:
    """Which part of the past to show, and how finely."""

    from_s: float
    to_s: float
    period_s: int
    """Of the rows."""
    points: int
    now_s: float


def telemetry_view(
    machine: str,
    stored: Iterable[StoredRows],
    present: Mapping[str, DeviceTelemetry],
    span: TelemetrySpan,
    *,
    reported_s: float | None,
    alerts: tuple[AlertView, ...],
) -> TelemetryView:
    """Return telemetry in at most so many points; `present` is by UUID."""
    found, left = list(stored), dict(present)
    wide_s = max((period_for(rows, span.period_s, span.points) for _, rows in found), default=span.period_s)
    devices = []
    for about, rows in found:
        uuid = about.get("uuid", "")
        devices.append(device_view(uuid, about.get("name", ""), rows, wide_s, left.pop(uuid, None)))
    devices += [DeviceTelemetryView(device=uuid, now=one) for uuid, one in left.items()]
    return TelemetryView(
        machine=machine,
        server_s=span.now_s,
        from_s=span.from_s,
        to_s=span.to_s,
        period_s=wide_s,
        reported_s=reported_s,
        devices=tuple(devices),
        alerts=alerts,
    )


def device_view(
    uuid: str, name: str, rows: Sequence[TelemetryRow], period_s: int, now: DeviceTelemetry | None
) -> DeviceTelemetryView:
    """Return the view of one device, its rows merged to a period."""
    shown = list(grouped(rows, period_s))
    return DeviceTelemetryView(
        device=uuid,
        name=name,
        now=now,
        times_s=tuple(float(row.start_s) for row in shown),
        throttled=tuple(row.throttled for row in shown),
        series=tuple(
            TelemetrySeries(device=uuid, channel=one.channel, unit=one.unit, low=one.low, mean=one.mean, high=one.high)
            for one in curves_of(shown)
        ),
    )
