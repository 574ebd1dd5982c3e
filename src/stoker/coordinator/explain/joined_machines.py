"""What a machine that joins offers: what was found, cut down by everybody who has a say.

Three speak: detection (the capability), the coordinator's cluster file with the policies laid over it, and whoever
started the worker. The smaller of all counts; where file and machine disagree, that is told.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.core.capability import Capability
from stoker.core.errors import BadInput
from stoker.core.frozen import changed, frozen
from stoker.core.machine import Node
from stoker.core.text import whole_number
from stoker.protocol.job_messages import HostPolicy
from stoker.scheduler.offers import AgreedOffer, DeviceOffer, NodeOffer, agree, node_of

_MOST = 1 << 60


@frozen
class WorkerLimits:
    """What whoever started a worker declared. Nothing said means: as found."""

    cores: int | None = None
    ram_bytes: int | None = None
    gpus: int | tuple[str, ...] | None = None
    """How many devices, or which, by UUID."""
    slots: int | None = None


def limits_of(said: Mapping[str, object]) -> WorkerLimits:
    """Read what a worker says was declared (`Hello.declared`); other keys are passed over.

    Raises:
        BadInput: a value that is none.

    """
    gpus = said.get("gpus")
    if isinstance(gpus, list | tuple):
        if not all(isinstance(one, str) for one in gpus):
            message = "gpus: a number of devices, or a list of UUIDs"
            raise BadInput(message)
        devices: int | tuple[str, ...] | None = tuple(str(one) for one in gpus)
    else:
        devices = _whole(said, "gpus", least=0)
    return WorkerLimits(
        cores=_whole(said, "cores", least=1),
        ram_bytes=_whole(said, "ram_bytes", least=1),
        gpus=devices,
        slots=_whole(said, "slots", least=1),
    )


def laid_over(node: Node | None, policy: HostPolicy | None, capability: Capability) -> Node | None:
    """Lay a manifest's policy over a declared node; over what was found, where nobody declared the machine."""
    if policy is None:
        return node
    said = {
        name: value
        for name in ("description", "priority", "allow_jobs", "deny_jobs")
        if (value := getattr(policy, name)) is not None
    }
    return changed(node or node_of(capability), **said) if said else node


def joined(
    name: str,
    capability: Capability,
    declared: Node | None,
    slots: int | None,
    *,
    policy: HostPolicy | None = None,
    limits: WorkerLimits | None = None,
) -> AgreedOffer:
    """Return what a machine offers by everybody who has a say: also what a manifest says, and slots as it was asked."""
    limits = limits or WorkerLimits()
    if slots is not None:
        limits = changed(limits, slots=min(slots, limits.slots or slots))
    return join(name, capability, laid_over(declared, policy, capability), limits=limits)


def with_closed(
    offer: NodeOffer, closed: str, closed_devices: Mapping[str, str], *, unable: Mapping[str, str]
) -> NodeOffer:
    """Return an offer with what is closed, and why: the machine, devices by UUID, jobs by a word of theirs."""
    devices = tuple(
        changed(device, closed=closed_devices[device.uuid] or "closed") if device.uuid in closed_devices else device
        for device in offer.devices
    )
    return changed(
        offer,
        closed=closed,
        devices=devices,
        deny_jobs=(*offer.deny_jobs, *unable),
        denied_for=tuple(unable.items()),
    )


def join(
    name: str, capability: Capability, node: Node | None = None, *, limits: WorkerLimits | None = None
) -> AgreedOffer:
    """Return what a machine offers, idle, and where its declaration and the machine disagree.

    RAM that was available when it joined is left out: what is available is measured with every claim.
    """
    steady = changed(capability, ram_available_bytes=None)
    agreed = agree(node, steady)
    limits = limits or WorkerLimits()
    offer = agreed.offer
    return AgreedOffer(
        offer=changed(
            offer,
            node=name,
            devices=_chosen(offer.devices, limits.gpus),
            cores=_smaller(offer.cores, limits.cores),
            ram_bytes=_smaller(offer.ram_bytes, limits.ram_bytes),
            **_slots(offer, limits.slots),
        ),
        drift=agreed.drift,
    )


def _chosen(devices: tuple[DeviceOffer, ...], gpus: int | tuple[str, ...] | None) -> tuple[DeviceOffer, ...]:
    if gpus is None:
        return devices
    if isinstance(gpus, int):
        # The first that can be used.
        able = [device.uuid for device in devices if not device.closed][:gpus]
        why = f"its worker was started for {gpus} device{'' if gpus == 1 else 's'}"
    else:
        able = [device.uuid for device in devices if device.uuid in gpus]
        why = "its worker was started for other devices"
    return tuple(device if device.closed or device.uuid in able else changed(device, closed=why) for device in devices)


def _slots(offer: NodeOffer, slots: int | None) -> dict[str, int | bool]:
    if slots is None:
        return {}
    # A slot per device is what holds where nobody counted; the worker did.
    return {"slots": slots if offer.is_slot_per_device else min(offer.slots, slots), "is_slot_per_device": False}


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((amount for amount in (one, other) if amount is not None), default=None)


def _whole(said: Mapping[str, object], name: str, *, least: int) -> int | None:
    if said.get(name) is None:
        return None
    value = whole_number(said[name])
    if value is None or not least <= value <= _MOST:
        message = f"{name}: a whole number of at least {least}, not {str(said[name])[:40]!r}"
        raise BadInput(message)
    return value
