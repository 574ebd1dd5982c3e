"""What the ledger says beside what a machine offers: whoever holds a device there counts here too. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.hardware.ledger.state import DeviceState, Holder
from stoker.model.frozen import changed
from stoker.scheduler.offers import DeviceOffer, NodeOffer, ResidentBase


def with_holders(offer: NodeOffer, devices: Iterable[DeviceState]) -> NodeOffer:
    """Give the offer with what the ledger's entries hold of its devices."""
    states = {state.device.uuid.casefold(): state for state in devices}
    seated = tuple(_seated(device, states.get(device.uuid.casefold())) for device in offer.devices)
    ids = {holder.entry.id for state in states.values() for holder in state.holders}
    return changed(offer, devices=seated, jobs=offer.jobs + len(ids))


def _seated(device: DeviceOffer, state: DeviceState | None) -> DeviceOffer:
    if state is None:
        return device
    free_bytes = device.free_bytes if state.free_bytes is None else state.free_bytes
    if free_bytes is not None:
        # An offer's free memory leaves out what others hold; what our own jobs hold is subtracted as promised.
        ours = sum(holder.share.measured_bytes or 0 for holder in state.holders)
        free_bytes = min(device.total_bytes, free_bytes + ours)
    return changed(
        device,
        free_bytes=free_bytes,
        is_held=state.is_taken,
        jobs=len(state.holders),
        promised_bytes=0 if state.is_taken else state.reserved_bytes,
        bases=_bases(state.holders),
    )


def _bases(holders: Iterable[Holder]) -> tuple[ResidentBase, ...]:
    counted = Counter((one.entry.base, one.entry.base_bytes) for one in holders if one.entry.base)
    return tuple(ResidentBase(base=base, size_bytes=size, jobs=jobs) for (base, size), jobs in counted.items())
