"""What `stoker machines show` prints of telemetry: of this machine, or of one of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.cli.context import CommandContext
from stoker.core.errors import NotFound, StokerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import MachineView


def local_lines(call: CommandContext) -> list[str]:
    """Return the present state of this machine's devices, and what a worker here recorded."""
    from stoker.devices.telemetry.alerts import alerts_now
    from stoker.devices.telemetry.local import SPAN_S, look_here
    from stoker.views.telemetry_lines import HOST_NAME, ShownDevice, alert_lines, curves_of, telemetry_lines

    parts, out = call.parts, call.out
    devices = parts.capability.devices
    names = {one.uuid: one.name or one.uuid for one in devices}
    found = look_here(devices, parts.settings.environment, parts.settings.state, clock=parts.clock)
    shown = [
        ShownDevice(name=names.get(one.uuid) or HOST_NAME, now=one, curves=curves_of(found.rows.get(one.uuid, ())))
        for one in found.samples
    ]
    alerts = alerts_now(found.samples, _reserved(call) if devices else {}, parts.clock.monotonic_s())
    lines = telemetry_lines(shown, span_s=SPAN_S, columns=out.columns, is_ascii=not out.is_unicode)
    return [*lines, *(["", *alert_lines(alerts, names)] if alerts else [])]


def fleet_lines(call: CommandContext, client: FleetClient, machine: MachineView) -> list[str]:
    """Return the telemetry of a machine of the fleet; nothing if its coordinator, or its worker, has none."""
    from stoker.views.telemetry_lines import alert_lines, shown_devices, telemetry_lines

    try:
        view = client.telemetry(machine.name)
    except NotFound:
        # A coordinator of an earlier version.
        return []
    names = {str(one.get("uuid", "")): str(one.get("name") or "") for one in machine.devices}
    out = call.out
    lines = telemetry_lines(
        shown_devices(view, names), span_s=view.to_s - view.from_s, columns=out.columns, is_ascii=not out.is_unicode
    )
    shown = [*([""] if lines else []), *lines]
    return [*shown, *(["", *alert_lines(view.alerts, names)] if view.alerts else [])]


def _reserved(call: CommandContext) -> Mapping[str, int]:
    try:
        return call.parts.ledger.reserved()
    except StokerError:
        return {}
