"""What the cockpit shows of one machine beside its row: telemetry, fetched again while the machine is shown."""

from __future__ import annotations

import threading

from stoker.api.monitor import Monitor
from stoker.core.clock import Clock
from stoker.core.frozen import changed, frozen
from stoker.protocol.telemetry_messages import TelemetryView
from stoker.tui.requests import RequestThreads, failure_text

_EVERY_S = 5.0


@frozen
class MachineData:
    """Everything that is known of the open machine. Replaced, never changed."""

    version: int = 0
    name: str = ""
    telemetry: TelemetryView | None = None
    error: str = ""
    """Why there is no telemetry."""


class MachineFeed:
    """Fetches the telemetry of one machine. `data` may be read from any thread."""

    def __init__(self, monitor: Monitor, clock: Clock, requests: RequestThreads) -> None:
        self._monitor = monitor
        self._clock = clock
        self._requests = requests
        self._lock = threading.Lock()
        self._fetched_s = float("-inf")
        self.data = MachineData()

    def open(self, name: str) -> None:
        """Show another machine, or the same one."""
        with self._lock:
            if name != self.data.name:
                self.data = MachineData(version=self.data.version + 1, name=name)
                self._fetched_s = float("-inf")

    def refresh(self) -> None:
        """Fetch, if that is due."""
        name, now_s = self.data.name, self._clock.monotonic_s()
        if name and now_s - self._fetched_s >= _EVERY_S and not self._requests.is_pending("machine"):
            self._fetched_s = now_s
            self._requests.put("machine", lambda: self._fetch(name))

    def _fetch(self, name: str) -> None:
        try:
            found, error = self._monitor.telemetry(name), ""
        except Exception as caught:  # noqa: BLE001 - the page says what is wrong, and shows the rest
            found, error = None, failure_text(caught)
        with self._lock:
            if self.data.name == name:
                # The last values stay while nothing newer arrives.
                telemetry = found if found is not None else self.data.telemetry
                self.data = changed(self.data, version=self.data.version + 1, telemetry=telemetry, error=error)
