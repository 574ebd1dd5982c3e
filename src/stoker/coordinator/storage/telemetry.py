"""Telemetry of the fleet's machines: present values in memory, the past in files of a fixed size.

    telemetry/MACHINE/DEVICE.ring       rows of 10 s for a day, of 5 min for 90 days

A device's file has at most 1.3 MB, so 500 machines with eight devices and their hosts take 5.9 GB after 90 days; the
database has none of it. A machine has at most 130 files: of more devices, those that reported last are kept. Present
values and alerts are lost with the coordinator's process, and reported again within half a minute.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.digests import digest_bytes
from stoker.core.frozen import frozen
from stoker.devices.telemetry.series import (
    AT_THE_COORDINATOR,
    CHANNELS,
    MINUTES,
    TENS,
    RingFile,
    TelemetryRow,
    file_name,
    merged,
    stored_rings,
    try_write,
)
from stoker.host.durable import remove_tree
from stoker.protocol.telemetry_messages import (
    MOST_DEVICES,
    AlertView,
    DeviceRows,
    DeviceTelemetry,
    TelemetryReport,
    TelemetryRowMessage,
    TelemetryView,
)
from stoker.views.telemetry_view import TelemetrySpan, telemetry_view

FRESH_S = 120.0
"""Older values are not shown as present, and older alerts are over: their machine does not report."""
_CLOCK_OFF_S = 5.0
_AHEAD_S = 60.0
"""A row may be so far ahead of our clock."""
_KEPT_S = float(MINUTES.period_s * MINUTES.rows)
MOST_FILES = 2 * MOST_DEVICES
"""Of one machine: parts of divided devices have other names after each division."""


@frozen
class MachineTelemetry:
    """The last report of a machine."""

    at_s: float
    devices: tuple[DeviceTelemetry, ...] = ()
    alerts: tuple[AlertView, ...] = ()


class FleetTelemetry:
    """Telemetry of all machines. Thread-safe; one process at a time writes."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: dict[str, MachineTelemetry] = {}
        self._open_slots: dict[tuple[str, str], int] = {}
        self.alert_count = 0
        """Rises with every change of alerts."""

    def note(self, report: TelemetryReport) -> None:
        """Store a report of a registered machine."""
        now_s = self._clock.wall_s()
        latest = MachineTelemetry(at_s=now_s, devices=report.devices, alerts=report.alerts)
        with self._lock:
            before = self._latest.get(report.worker)
            self._latest[report.worker] = latest
            if _alert_keys(before) != _alert_keys(latest):
                self.alert_count += 1
        offset_s = report.wall_s - now_s
        # Rows are moved by whole periods, and only if the clocks really differ.
        shift_s = round(offset_s / TENS.period_s) * TENS.period_s if abs(offset_s) > _CLOCK_OFF_S else 0
        for one in report.rows:
            self._store(report.worker, one, shift_s, now_s)

    def forget(self, machine: str) -> None:
        """Delete everything of a machine."""
        with self._lock:
            self._latest.pop(machine, None)
            self._open_slots = {key: slot for key, slot in self._open_slots.items() if key[0] != machine}
        remove_tree(self._place(machine))

    def sweep(self, known: Iterable[str]) -> None:
        """Delete the folders of machines that are not known any more."""
        kept = {os.path.basename(self._place(name)) for name in known}
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            if name not in kept:
                remove_tree(os.path.join(self._folder, name))

    def latest(self, machine: str) -> MachineTelemetry | None:
        """Return the last report of a machine; None if there is none of the last two minutes."""
        with self._lock:
            found = self._latest.get(machine)
        return found if found is not None and self._clock.wall_s() - found.at_s <= FRESH_S else None

    def all_latest(self) -> dict[str, MachineTelemetry]:
        """Return the last reports of the last two minutes, by machine."""
        fresh_s = self._clock.wall_s() - FRESH_S
        with self._lock:
            return {name: one for name, one in self._latest.items() if one.at_s >= fresh_s}

    def view(self, machine: str, *, from_s: float, to_s: float, points: int) -> TelemetryView:
        """Return the telemetry of a machine in a span of time, in at most so many points. Blocks."""
        now_s = self._clock.wall_s()
        to_s = min(to_s, now_s + _AHEAD_S)
        latest = self.latest(machine)
        level = TENS if from_s >= now_s - TENS.period_s * TENS.rows else MINUTES
        rings = stored_rings(self._place(machine), AT_THE_COORDINATOR)
        return telemetry_view(
            machine,
            [(ring.about(), ring.read(level.period_s, from_s, to_s)) for ring in rings],
            {one.device: one for one in (latest.devices if latest is not None else ())},
            TelemetrySpan(from_s=from_s, to_s=to_s, period_s=level.period_s, points=points, now_s=now_s),
            reported_s=None if latest is None else latest.at_s,
            alerts=() if latest is None else latest.alerts,
        )

    def _store(self, machine: str, given: DeviceRows, shift_s: int, now_s: float) -> None:
        taken = (_row(one, shift_s) for one in given.rows)
        rows = [row for row in taken if now_s - _KEPT_S < row.start_s <= now_s + _AHEAD_S]
        if not rows:
            return
        ring = RingFile(os.path.join(self._place(machine), file_name(given.device)), AT_THE_COORDINATOR)
        written = [(TENS.period_s, row) for row in rows]
        about = {"uuid": given.device, "name": given.name}
        if not os.path.exists(ring.path):
            self._make_room(machine)
        try_write(ring, written, about)
        slots = {row.start_s // MINUTES.period_s for row in rows}
        newest = max(slots)
        with self._lock:
            slots.add(self._open_slots.get((machine, given.device), newest))
            self._open_slots[machine, given.device] = newest
        # A period is summed up when it is over: with its last row, or with the first of another.
        if max(row.start_s for row in rows) % MINUTES.period_s != MINUTES.period_s - TENS.period_s:
            slots.discard(newest)
        try_write(ring, [(MINUTES.period_s, row) for slot in slots if (row := _summed(ring, slot)) is not None], about)

    def _make_room(self, machine: str) -> None:
        """Delete the files of devices that reported longest ago, so that there is room for one more."""
        with suppress(OSError):
            found = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(self._place(machine))]
            for _, path in sorted(found)[: max(0, len(found) - MOST_FILES + 1)]:
                os.unlink(path)
            with self._lock:
                devices = [key for key in self._open_slots if key[0] == machine]
                for key in devices[: max(0, len(devices) - MOST_FILES)]:
                    del self._open_slots[key]

    def _place(self, machine: str) -> str:
        return os.path.join(self._folder, digest_bytes(machine.encode())[:24])


def _row(message: TelemetryRowMessage, shift_s: int) -> TelemetryRow:
    count = len(CHANNELS)
    values = (*message.values[:count], *(None for _ in range(count - len(message.values))))
    start_s = (message.start_s - shift_s) // TENS.period_s * TENS.period_s
    return TelemetryRow(
        start_s=start_s, count=message.count, throttled=min(message.throttled, message.count), values=values
    )


def _summed(ring: RingFile, slot: int) -> TelemetryRow | None:
    start_s = slot * MINUTES.period_s
    rows = ring.read(TENS.period_s, start_s, start_s + MINUTES.period_s - 1)
    return merged(rows, start_s) if rows else None


def _alert_keys(report: MachineTelemetry | None) -> set[tuple[str, str, int]]:
    return set() if report is None else {(one.device, one.kind, one.severity) for one in report.alerts}


# Metrics in Prometheus format: present values of all machines; what is unknown is left out.

_GAUGES = (
    ("utilisation_percent", "stoker_device_utilisation_percent", "Part of the time in which a kernel ran."),
    ("memory_used_bytes", "stoker_device_memory_used_bytes", "Device memory in use."),
    ("memory_total_bytes", "stoker_device_memory_total_bytes", "Device memory."),
    ("power_w", "stoker_device_power_watts", "Power drawn."),
    ("power_limit_w", "stoker_device_power_limit_watts", "Power limit."),
    ("temperature_c", "stoker_device_temperature_celsius", "Temperature."),
    ("clock_mhz", "stoker_device_clock_megahertz", "Clock of the multiprocessors."),
    ("fan_percent", "stoker_device_fan_percent", "Fan speed."),
    ("ecc_errors", "stoker_device_ecc_errors", "Uncorrected memory errors since the driver was loaded."),
)
_HOST_GAUGES = (
    ("utilisation_percent", "stoker_machine_cpu_percent", "Part of the processors' time in use."),
    ("memory_used_bytes", "stoker_machine_ram_used_bytes", "RAM in use."),
    ("memory_total_bytes", "stoker_machine_ram_total_bytes", "RAM."),
    ("load", "stoker_machine_load", "Runnable processes, on average over a minute."),
)

Gauge = tuple[str, str, list[tuple[dict[str, str], float]]]
"""Name, description, and values with their labels."""


def gauges_of(latest: Mapping[str, MachineTelemetry]) -> Iterator[Gauge]:
    """Yield the gauges of machines and their devices."""
    hosts = [({"machine": name}, one) for name, report in latest.items() for one in report.devices if not one.device]
    devices = [
        ({"machine": name, "device": one.device}, one)
        for name, report in latest.items()
        for one in report.devices
        if one.device
    ]
    for table, listed in ((_HOST_GAUGES, hosts), (_GAUGES, devices)):
        for field, name, help in table:
            values = [(labels, getattr(one, field)) for labels, one in listed]
            yield name, help, [(labels, float(value)) for labels, value in values if value is not None]
    yield (
        "stoker_device_throttled",
        "1 for each reason why a device runs below its clock.",
        [({**labels, "reason": reason}, 1.0) for labels, one in devices for reason in one.throttle or ()],
    )
    yield (
        "stoker_device_alert",
        "Severity (0 to 100) of each raised alert.",
        [
            ({"machine": name, "device": one.device, "alert": one.kind}, float(one.severity))
            for name, report in latest.items()
            for one in report.alerts
        ],
    )
