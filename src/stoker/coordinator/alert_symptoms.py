"""Symptoms of devices that have reached a limit: heat, memory, power, idleness. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stoker.core.leases import Symptom, SymptomKind
from stoker.protocol.telemetry_messages import AlertView

LEAST_SEVERITY = 50
"""A less severe alert is shown with the machine, and nowhere else."""
_HINTS = {
    SymptomKind.HOT: "check its cooling; until it is fixed: `stoker machines cordon {machine} --device {device}`",
    SymptomKind.MEMORY: "see which processes use it: `stoker machines memory` there",
    SymptomKind.POWER: "check its power supply: `stoker machines show {machine}`",
    SymptomKind.IDLE: "see what its job waits for: `stoker machines show {machine}`, then `stoker logs NAME`",
}


def alert_symptoms(alerts: Mapping[str, Sequence[AlertView]], machines: Collection[str]) -> list[Symptom]:
    """Return the symptoms of these machines; `alerts` are what their workers report now, by machine."""
    found: dict[tuple[str, str, str], Symptom] = {}
    for machine in sorted(alerts.keys() & set(machines)):
        for one in alerts[machine]:
            if one.severity < LEAST_SEVERITY or one.kind not in _HINTS:
                continue
            kind = SymptomKind(one.kind)
            symptom = Symptom(
                machine=machine,
                device=one.device,
                ailment=kind,
                message=f"{one.message} (severity {one.severity})",
                hint=_HINTS[kind].format(machine=machine, device=one.device),
            )
            found[symptom.key] = symptom
    return list(found.values())
