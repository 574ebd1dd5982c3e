"""Records a machine's telemetry once a second: rings on disk, rows for the coordinator, alerts.

The sampler has one lasting child process for NVIDIA's devices. While the driver does not answer, nothing is recorded of
its devices, and the host is recorded as before.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.devices.telemetry.alerts import AlertTracker, DeviceAlert
from stoker.devices.telemetry.samples import DeviceSample
from stoker.devices.telemetry.series import (
    MINUTES,
    ON_THE_MACHINE,
    SECONDS,
    TENS,
    RingFile,
    RowCollector,
    TelemetryRow,
    file_name,
    row_of,
    try_write,
)

FOLDER = "telemetry"
"""Below the state folder."""
RESERVED_EVERY_S = 10.0
MOST_UNSENT = 360
"""Rows of ten seconds per device that wait for a coordinator that is away: an hour."""
FRESH_S = 10.0
"""A sample that is older is not shown as the present state."""


@frozen
class RecordedTelemetry:
    """What a recorder has to report."""

    samples: tuple[DeviceSample, ...]
    """The newest of each device."""
    rows: Mapping[str, tuple[TelemetryRow, ...]]
    """Rows of ten seconds by device that were not reported yet."""
    alerts: tuple[DeviceAlert, ...]
    now_s: float
    """When, on the clock of the alerts."""


class TelemetryRecorder:
    """Samples, stores and judges. One thread calls `record`; the other methods are thread-safe."""

    def __init__(
        self,
        folder: str,
        sample: Callable[[float], Sequence[DeviceSample]],
        reserved: Callable[[], Mapping[str, int]],
        *,
        clock: Clock,
        name_of: Callable[[str], str] = lambda uuid: uuid,
    ) -> None:
        """Write below `folder`; `reserved` returns the reserved bytes of devices that running jobs hold."""
        self._folder = folder
        self._sample = sample
        self._reserved = reserved
        self._clock = clock
        self._name_of = name_of
        self._alerts = AlertTracker()
        self._held: Mapping[str, int] = {}
        self._held_due_s = float("-inf")
        self._devices: dict[str, _DeviceSeries] = {}
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[float, DeviceSample]] = {}
        self._unsent: dict[str, deque[TelemetryRow]] = {}
        self._raised: tuple[DeviceAlert, ...] = ()

    def record(self) -> bool:
        """Take one sample of everything; return True if alerts were raised or cleared."""
        now_s, wall_s = self._clock.boottime_s(), self._clock.wall_s()
        samples = [one for one in self._sample(now_s) if not one.error]
        for one in samples:
            tens = self._series_of(one.uuid).add(row_of(one, wall_s))
            if tens is not None:
                with self._lock:
                    self._unsent.setdefault(one.uuid, deque(maxlen=MOST_UNSENT)).append(tens)
        alerts = self._alerts.update(samples, self._reservations(now_s), now_s)
        with self._lock:
            self._newest |= {one.uuid: (now_s, one) for one in samples}
            before, self._raised = self._raised, alerts
        return {_key(one) for one in before} != {_key(one) for one in alerts}

    def take(self) -> RecordedTelemetry:
        """Return what is to be reported; its rows are not returned again, unless they are put back."""
        now_s = self._clock.boottime_s()
        with self._lock:
            rows = {uuid: tuple(some) for uuid, some in self._unsent.items() if some}
            self._unsent = {}
            return RecordedTelemetry(
                samples=tuple(one for at_s, one in self._newest.values() if now_s - at_s <= FRESH_S),
                rows=rows,
                alerts=self._raised,
                now_s=now_s,
            )

    def put_back(self, rows: Mapping[str, tuple[TelemetryRow, ...]]) -> None:
        """Report rows again with the next ones: the coordinator did not get them."""
        with self._lock:
            for uuid, some in rows.items():
                newer = self._unsent.get(uuid, ())
                self._unsent[uuid] = deque((*some, *newer), maxlen=MOST_UNSENT)

    def _series_of(self, uuid: str) -> _DeviceSeries:
        found = self._devices.get(uuid)
        if found is None:
            ring = RingFile(os.path.join(self._folder, file_name(uuid)), ON_THE_MACHINE)
            found = self._devices[uuid] = _DeviceSeries(ring, {"uuid": uuid, "name": self._name_of(uuid)})
        return found

    def _reservations(self, now_s: float) -> Mapping[str, int]:
        if now_s >= self._held_due_s:
            self._held_due_s = now_s + RESERVED_EVERY_S
            try:
                self._held = self._reserved()
            except StokerError:
                self._held = {}
        return self._held


class _DeviceSeries:
    """The rows of one device under way."""

    def __init__(self, ring: RingFile, about: dict[str, str]) -> None:
        self._ring = ring
        self._about = about
        self._tens = RowCollector(TENS.period_s)
        self._minutes = RowCollector(MINUTES.period_s)

    def add(self, second: TelemetryRow) -> TelemetryRow | None:
        """Store a row of a second; return that of ten seconds if it is complete."""
        rows = [(SECONDS.period_s, second)]
        tens = self._tens.add(second)
        if tens is not None:
            rows.append((TENS.period_s, tens))
            minutes = self._minutes.add(tens)
            if minutes is not None:
                rows.append((MINUTES.period_s, minutes))
        try_write(self._ring, rows, self._about)
        return tens


def _key(alert: DeviceAlert) -> tuple[str, str, int]:
    return alert.device, alert.kind, alert.severity
