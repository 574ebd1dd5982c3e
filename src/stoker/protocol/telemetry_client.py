"""What a client sends and asks about machines over time."""

from __future__ import annotations

from stoker.protocol.telemetry_messages import TelemetryReport, TelemetryView, TimelineView
from stoker.protocol.transport import CoordinatorClient, part
from stoker.protocol.view_messages import DoneView


class TelemetryClient(CoordinatorClient):
    """The part of a client with the routes about telemetry."""

    def report_telemetry(self, report: TelemetryReport) -> DoneView:
        """Send what a worker measured on its machine."""
        return self._ask(f"/v1/machines/{part(report.worker)}/telemetry", DoneView, report)

    def telemetry(
        self, name: str, *, from_s: float | None = None, to_s: float | None = None, points: int | None = None
    ) -> TelemetryView:
        """Return the telemetry of a machine, by default of the last hour."""
        query = {"from": from_s, "to": to_s, "points": points}
        return self._get(f"/v1/machines/{part(name)}/telemetry", TelemetryView, query)

    def timeline(self, *, from_s: float | None = None, to_s: float | None = None, machine: str = "") -> TimelineView:
        """Return which attempts ran where, by default in the last hour."""
        return self._get("/v1/machines/timeline", TimelineView, {"from": from_s, "to": to_s, "machine": machine})
