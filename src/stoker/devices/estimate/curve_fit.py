"""Whether what a training takes fits on a device: now, alone, or never. Pure, and by the ledger's own rule."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from stoker.core.device import Device
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.devices.ledger.ledger_rules import LedgerDecisionInputs, decide
from stoker.devices.ledger.snapshot import LedgerState
from stoker.devices.ledger.types import CandidateDevice, DeviceRequest, DevicesBusy, NeverFits


class Fit(StrEnum):
    """When it fits."""

    NOW = "now"
    """A run would start at once."""
    ALONE = "alone"
    """When the others have gone."""
    NEVER = "never"
    UNKNOWN = "unknown"
    """Nobody could say how much the device has."""


@frozen
class DeviceFit:
    """The answer for one device, with its reason."""

    device: Device
    fit: Fit
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {"uuid": self.device.uuid, "name": self.device.name, "fits": str(self.fit), "why": self.why}


def fits(need_bytes: int, device: Device, books: LedgerDecisionInputs) -> DeviceFit:
    """Return whether a run that declares so much and does not share would get this device."""
    candidate = CandidateDevice.of(device)
    if candidate is None:
        return DeviceFit(device=device, fit=Fit.UNKNOWN, why="nobody could say how much memory it has")
    total = format_size(candidate.total_bytes)
    answer = decide(DeviceRequest(job="the training", devices=(candidate,), vram_bytes=need_bytes), books)
    if isinstance(answer, NeverFits):
        why = f"{format_size(need_bytes - candidate.total_bytes)} more than its {total}"
        return DeviceFit(device=device, fit=Fit.NEVER, why=why)
    if isinstance(answer, DevicesBusy):
        return DeviceFit(device=device, fit=Fit.ALONE, why=answer.why)
    free_bytes = books.free_bytes.get(device.uuid)
    if free_bytes is None:
        why = f"of {total}; nobody could say how much of it is free"
        return DeviceFit(device=device, fit=Fit.ALONE, why=why)
    return DeviceFit(device=device, fit=Fit.NOW, why=f"{format_size(free_bytes)} of {total} are free")


def books_of(state: LedgerState) -> LedgerDecisionInputs:
    """Return what the ledger tells as what its rule reads."""
    entries = {one.entry.id: one.entry for device in state.devices for one in device.holders}
    free = {one.device.uuid: one.free_bytes for one in state.devices if one.free_bytes is not None}
    taken = {one.device.uuid: one.taken_bytes for one in state.devices}
    ahead = tuple(one.ticket for one in state.waiting if not one.is_asleep)
    return LedgerDecisionInputs(entries=tuple(entries.values()), ahead=ahead, free_bytes=free, taken_bytes=taken)
