"""Machines as people see them: what each has, what it holds, and what state that amounts to.

Pure. Silence goes first, then what people decided, then what the machine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stoker.model.frozen import fresh, frozen
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.wire.leasing import Holdings
from stoker.wire.views import MachineView

GONE_S = 24 * 3600.0
"""Who was silent for so long is called gone."""


class MachineState(StrEnum):
    """How a machine is, in a word."""

    READY = "ready"
    BUSY = "busy"
    """It holds as many jobs as it takes at once."""
    DRAINED = "drained"
    CORDONED = "cordoned"
    PAUSED = "paused"
    """Its owner needs it, or it says itself that it can take nothing."""
    LEFT = "left"
    """Its worker ended in order; nobody works there."""
    SILENT = "silent"
    """Nothing was heard of it for longer than a lease and the grace."""
    GONE = "gone"


@frozen
class Lease:
    """One live lease on a machine."""

    job: str
    """Its name."""
    devices: tuple[str, ...] = ()


@frozen
class MachineFacts:
    """What the coordinator knows of a machine."""

    name: str
    incarnation: str = ""
    version: str = ""
    last_seen_s: float
    left_s: float | None = None
    """When its worker said goodbye; nothing: it has not since its hello."""
    ends_s: float | None = None
    """When it goes away, as its worker announced."""
    closed: str = ""
    """Empty, drained, cordoned or paused."""
    why: str = ""
    until_s: float | None = None
    closed_devices: Mapping[str, str] = fresh(factory=dict)
    slots: int | None = None
    """As its worker asked; nothing: one per device."""
    leases: tuple[Lease, ...] = ()
    capability: Mapping[str, Any] = fresh(factory=dict)
    drift: tuple[str, ...] = ()
    offer: NodeOffer | None = None
    """As matching sees it, or would if it were back; nothing: its capability is not known."""
    holdings: Holdings | None = None


def machine_view(facts: MachineFacts, *, now_s: float, silent_s: float) -> MachineView:
    """Give a machine; one that says nothing for longer than `silent_s` is silent."""
    found = [device for device in facts.capability.get("devices", ()) if isinstance(device, dict)]
    slots = facts.offer.slots if facts.offer is not None else facts.slots or max(1, len(found))
    state = state_of(facts, slots, now_s=now_s, silent_s=silent_s)
    is_closed = state in _CLOSED
    offered = {} if facts.offer is None else {device.uuid: device for device in facts.offer.devices}
    return MachineView(
        name=facts.name,
        state=str(state),
        why=(facts.why or ("" if facts.offer is None else facts.offer.closed)) if is_closed else "",
        until_s=facts.until_s if is_closed else None,
        ends_s=facts.ends_s if facts.left_s is None else None,
        incarnation=facts.incarnation,
        version=facts.version,
        last_seen_s=facts.last_seen_s,
        slots=slots,
        held=len(facts.leases),
        jobs=tuple(lease.job for lease in facts.leases),
        cores=None if facts.offer is None else facts.offer.cores,
        ram_bytes=None if facts.offer is None else facts.offer.ram_bytes,
        devices=tuple(_device(device, facts, offered.get(str(device.get("uuid", "")))) for device in found),
        capability=dict(facts.capability),
        drift=facts.drift,
        environments=_environments(facts.holdings),
        trees=0 if facts.holdings is None else len(facts.holdings.trees),
    )


def _environments(holdings: Holdings | None) -> dict[str, Any]:
    return {} if holdings is None else holdings.model_dump(mode="json", exclude={"trees"})


def state_of(facts: MachineFacts, slots: int, *, now_s: float, silent_s: float) -> MachineState:
    """Say how a machine is."""
    if facts.left_s is not None:
        return MachineState.LEFT
    quiet_s = now_s - facts.last_seen_s
    if quiet_s > max(silent_s, GONE_S):
        return MachineState.GONE
    if quiet_s > silent_s:
        return MachineState.SILENT
    if facts.closed:
        return MachineState(facts.closed)
    if facts.offer is not None and facts.offer.closed:
        return MachineState.PAUSED
    return MachineState.BUSY if len(facts.leases) >= slots else MachineState.READY


_CLOSED = frozenset({MachineState.DRAINED, MachineState.CORDONED, MachineState.PAUSED})


def _device(found: dict[str, Any], facts: MachineFacts, offered: DeviceOffer | None) -> dict[str, Any]:
    uuid = str(found.get("uuid", ""))
    told = {
        **found,
        "jobs": [lease.job for lease in facts.leases if uuid in lease.devices],
        "closed": facts.closed_devices.get(uuid, "") or ("" if offered is None else offered.closed),
    }
    if offered is not None:
        told |= {"free_bytes": offered.free_bytes, "promised_bytes": offered.promised_bytes}
    return told
