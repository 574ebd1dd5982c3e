"""Telemetry of machines: what a worker reports, and what screens show of it.

A value that a device does not report is None, never 0. Numbers of a worker are bounded here, and its texts are made
safe to show.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stoker.protocol.codec import WireMessage
from stoker.protocol.lease_messages import Count, Name, Seconds
from stoker.protocol.view_messages import FiniteSeconds, Line, ViewCount

MOST_DEVICES = 65
"""64 devices and the host."""
MOST_ROWS = 360
"""Per device in one report: an hour."""
MOST_POINTS = 4000
REPORT_EVERY_S = 30.0
"""Between two reports of a worker. A new or a cleared alert is reported at once."""

Short = Annotated[Line, Field(max_length=200)]
Value = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
ShortCount = Annotated[int, Field(ge=0, le=0xFFFF)]
Extent = tuple[Value, Value, Value]


class DeviceTelemetry(WireMessage):
    """The present state of one device."""

    device: Short = ""
    """Its UUID; empty: the host itself, whose processors are its utilisation and whose RAM its memory."""
    utilisation_percent: Percent | None = None
    memory_total_bytes: Count | None = None
    memory_used_bytes: Count | None = None
    power_w: Value | None = None
    power_limit_w: Value | None = None
    energy_j: Value | None = None
    """Since its driver was loaded."""
    temperature_c: Value | None = None
    slowdown_c: Value | None = None
    """At this temperature it slows down."""
    clock_mhz: Value | None = None
    throttle: Annotated[tuple[Short, ...], Field(max_length=16)] | None = None
    """Why it runs below its clock; empty: it does not."""
    fan_percent: Percent | None = None
    ecc_errors: Count | None = None
    """Uncorrected ones."""
    processes: Count | None = None
    load: Value | None = None
    """Of the host: runnable processes, on average over a minute."""


class AlertView(WireMessage):
    """A limit that a device has reached."""

    device: Short
    kind: Annotated[Line, Field(max_length=40)]
    """`hot`, `memory`, `power` or `idle`."""
    severity: Annotated[int, Field(ge=0, le=100)]
    message: Annotated[Line, Field(max_length=500)] = ""
    for_s: Seconds = 0.0
    """How long it is raised."""


class TelemetryRowMessage(WireMessage):
    """Ten seconds of one device: the lowest, mean and highest value of each channel."""

    start_s: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    """On the worker's wall clock."""
    count: Annotated[ShortCount, Field(ge=1)]
    """Number of samples."""
    throttled: ShortCount = 0
    values: Annotated[tuple[Extent | None, ...], Field(max_length=16)]
    """Utilisation, memory (both percent), power (W), temperature (°C), clock (MHz)."""


class DeviceRows(WireMessage):
    """The new rows of one device."""

    device: Short = ""
    name: Short = ""
    rows: Annotated[tuple[TelemetryRowMessage, ...], Field(max_length=MOST_ROWS)] = ()


class TelemetryReport(WireMessage):
    """What a worker measured since its last report."""

    worker: Name
    wall_s: Seconds
    """The worker's clock, when it sent this."""
    devices: Annotated[tuple[DeviceTelemetry, ...], Field(max_length=MOST_DEVICES)] = ()
    rows: Annotated[tuple[DeviceRows, ...], Field(max_length=MOST_DEVICES)] = ()
    alerts: Annotated[tuple[AlertView, ...], Field(max_length=4 * MOST_DEVICES)] = ()


class TelemetrySeries(WireMessage):
    """One channel of one device over time: of each period the lowest, mean and highest value."""

    device: Line = ""
    channel: Line
    """`utilisation`, `memory`, `power`, `temperature`, `clock`."""
    unit: Line = ""
    low: tuple[float | None, ...] = ()
    mean: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    """Beside the times of the device; None: not measured."""


class DeviceTelemetryView(WireMessage):
    """One device: its present state and its past."""

    device: Line = ""
    name: Line = ""
    now: DeviceTelemetry | None = None
    """None: no recent value."""
    times_s: tuple[FiniteSeconds, ...] = ()
    """The beginning of each period, in order."""
    throttled: tuple[ViewCount, ...] = ()
    """Number of samples of each period in which it was slowed down by heat or its power supply."""
    series: tuple[TelemetrySeries, ...] = ()
    """Channels that were measured."""


class TelemetryView(WireMessage):
    """Telemetry of one machine."""

    machine: Line
    server_s: FiniteSeconds
    from_s: FiniteSeconds
    to_s: FiniteSeconds
    period_s: ViewCount
    """Length of a period in `times_s`."""
    reported_s: FiniteSeconds | None = None
    """When its worker reported last; None: not since the coordinator started."""
    devices: tuple[DeviceTelemetryView, ...] = ()
    """The host first."""
    alerts: tuple[AlertView, ...] = ()


class TimelineSpan(WireMessage):
    """One attempt on one machine."""

    machine: Line
    devices: tuple[Line, ...] = ()
    """UUIDs; none: it ran on the CPU."""
    job: str
    name: Line
    attempt: ViewCount
    from_s: FiniteSeconds
    to_s: FiniteSeconds | None = None
    """None: it runs."""
    ending: Line = ""
    """`completed`, `failed`, `released` …; empty: it runs."""


class TimelineView(WireMessage):
    """Which jobs ran where."""

    server_s: FiniteSeconds
    from_s: FiniteSeconds
    to_s: FiniteSeconds
    spans: tuple[TimelineSpan, ...] = ()
    """By machine, then by time."""
    is_cut: bool = False
    """There are more than are shown."""
    whole_from_s: FiniteSeconds | None = None
    """Of one that is cut: nothing is missing that ended since then. None: unknown."""
