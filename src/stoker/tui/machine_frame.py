"""The list of machines, and one machine as lines of styled text: symptoms, devices now and over time, details."""

from __future__ import annotations

from stoker.core.display_width import cut_middle, padded, text_width
from stoker.core.text import one_line
from stoker.protocol.telemetry_messages import TelemetryView
from stoker.protocol.view_messages import MachineView
from stoker.tui.cockpit_state import CockpitState
from stoker.tui.feed import ScreenData
from stoker.tui.machine_feed import MachineData
from stoker.tui.styled_text import ScreenLook, StyledLine, filled_lines, joined, plain, whole, wrapped_line
from stoker.views.fleet_lines import devices_text, machine_lines, symptom_lines
from stoker.views.telemetry_lines import alert_lines, short_text, shown_devices, telemetry_lines
from stoker.views.text_tables import ago

_STYLES = {"ready": "green", "busy": "green", "silent": "red", "gone": "red"}
_STATE = 10


def machine_list(data: ScreenData, state: CockpitState, look: ScreenLook, rows: int) -> list[StyledLine]:
    """Return the machines in so many lines."""
    if not data.machines:
        texts = ["no machines; invite one:", "", "  stoker machines invite"]
        if data.overview is None:
            texts = ["loading…"]
        return filled_lines([plain(f" {text}", look) for text in texts], rows, look)
    top = state.machines.top
    lines = []
    for index, machine in enumerate(data.machines[top : top + rows], top):
        line = _machine_line(machine, look)
        lines.append(whole(line, "reverse") if index == state.machines.index else line)
    return filled_lines(lines, rows, look)


def machine_reason(data: ScreenData, state: CockpitState) -> str:
    """Return what is wrong with the selected machine, or what runs there."""
    if state.machines.index >= len(data.machines):
        return ""
    machine = data.machines[state.machines.index]
    symptoms = [f"{one.symptom}: {one.message}; {one.hint}" for one in machine.symptoms]
    jobs = f"jobs: {', '.join(machine.jobs)}" if machine.jobs else ""
    version = f"Stoker {machine.version}" if machine.version else ""
    return "; ".join(filter(None, (*symptoms, machine.why, jobs, *machine.drift, version)))


def machine_panel(
    data: ScreenData, state: CockpitState, more: MachineData, look: ScreenLook, rows: int
) -> list[StyledLine]:
    """Return one machine in so many lines."""
    machine = next((one for one in data.machines if one.name == more.name), None)
    if machine is None:
        texts = [f"{more.name}: not found, perhaps removed from the fleet" if more.name and data.overview else ""]
        return filled_lines([plain(f" {text}", look, "yellow") for text in texts], rows, look)
    room = look.columns - 2
    texts = [part for line in _texts(machine, more, look) for part in wrapped_line(line, room)]
    first = state.window(len(texts), rows) if state.page == "machine" else 0
    return filled_lines([plain(f" {text}", look) for text in texts[first : first + rows]], rows, look)


def _texts(machine: MachineView, more: MachineData, look: ScreenLook) -> list[str]:
    texts = [*symptom_lines(machine.symptoms, look.now_s)]
    if more.telemetry is not None:
        texts += _telemetry_texts(machine, more.telemetry, look)
    elif more.error:
        texts.append(f"no telemetry: {more.error}")
    else:
        texts.append("loading telemetry…")
    return [*texts, "", *machine_lines(machine, look.now_s)]


def _telemetry_texts(machine: MachineView, view: TelemetryView, look: ScreenLook) -> list[str]:
    names = {str(one.get("uuid", "")): str(one.get("name") or "") for one in machine.devices}
    span_s = view.to_s - view.from_s
    shown = shown_devices(view, names)
    lines = telemetry_lines(shown, span_s=span_s, columns=look.columns - 2, is_ascii=look.is_ascii)
    return [*alert_lines(view.alerts, names), *(lines or ["no telemetry: its worker does not report any"])]


def _machine_line(machine: MachineView, look: ScreenLook) -> StyledLine:
    name = min(max(look.columns // 5, 10), 24)
    style = _STYLES.get(machine.state, "yellow")
    parts = (machine.why, short_text(machine.devices), devices_text(machine.devices), ", ".join(machine.jobs))
    detail = "; ".join(filter(None, parts))
    sign = "!" if machine.symptoms else " "
    pieces = [
        (f" {sign} ", "red"),
        (f"{padded(cut_middle(look.safe(machine.name), name), name)} ", ""),
        (f"{padded(look.safe(machine.state), _STATE)} ", style),
        (f"{padded(f'{machine.held}/{machine.slots}', 7)} ", ""),
    ]
    seen = ago(machine.last_seen_s, look.now_s)
    rest = look.columns - sum(text_width(text) for text, _ in pieces) - 12
    pieces.append((f"{padded(look.safe(one_line(detail)), max(rest, 0))} {padded(seen, 10, is_right=True)} ", ""))
    return joined(pieces, "", look)
