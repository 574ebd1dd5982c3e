"""Telemetry of this machine for screens: sampled when it is asked for, with the last hour if a worker here recorded it.

The sampler stays open between requests: starting the child that calls a vendor's library costs more than a sample.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.core.errors import StokerError
from stoker.devices.telemetry.alerts import alerts_now
from stoker.devices.telemetry.local import SPAN_S, LocalSampler, LocalTelemetry
from stoker.devices.telemetry.series import TENS
from stoker.protocol.telemetry_messages import AlertView, TelemetryView
from stoker.views.telemetry_lines import device_view, telemetry_of

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts

_FRESH_S = 2.0
"""Several screens share a sample that is no older."""


class LocalTelemetryReader:
    """Telemetry of this machine. Thread-safe."""

    def __init__(self, parts: AppParts, name: str) -> None:
        """`name` is what screens call this machine."""
        self._parts = parts
        self._name = name
        self._lock = threading.Lock()
        self._sampler: LocalSampler | None = None
        self._found: LocalTelemetry | None = None
        self._due_s = float("-inf")

    def view(self) -> TelemetryView:
        """Return the present state and the last hour. Blocks."""
        found, now_s = self._look(), self._parts.clock.wall_s()
        names = {device.uuid: device.name for device in self._parts.capability.devices}
        shown = [
            device_view(
                one.uuid, names.get(one.uuid, ""), found.rows.get(one.uuid, ()), TENS.period_s, telemetry_of(one)
            )
            for one in found.samples
        ]
        raised = alerts_now(found.samples, self._reserved(), self._parts.clock.monotonic_s()) if names else ()
        alerts = tuple(
            AlertView(device=one.device, kind=one.kind.value, severity=one.severity, message=one.message)
            for one in raised
        )
        return TelemetryView(
            machine=self._name,
            server_s=now_s,
            from_s=now_s - SPAN_S,
            to_s=now_s,
            period_s=TENS.period_s,
            reported_s=now_s,
            devices=tuple(shown),
            alerts=alerts,
        )

    def present(self) -> dict[str, dict[str, Any]]:
        """Return the present values of devices by UUID, without the host; nothing if there are none. Blocks."""
        if not self._parts.capability.devices:
            return {}
        return {one.uuid: telemetry_of(one).model_dump(mode="json") for one in self._look().samples if one.uuid}

    def _look(self) -> LocalTelemetry:
        parts, clock = self._parts, self._parts.clock
        with self._lock:
            if self._sampler is None:
                settings, devices = parts.settings, parts.capability.devices
                self._sampler = LocalSampler(devices, settings.environment, settings.state, clock=clock)
            if self._found is None or clock.monotonic_s() >= self._due_s:
                self._found = self._sampler.look()
                self._due_s = clock.monotonic_s() + _FRESH_S
            return self._found

    def _reserved(self) -> Mapping[str, int]:
        try:
            return self._parts.ledger.reserved()
        except StokerError:
            return {}
