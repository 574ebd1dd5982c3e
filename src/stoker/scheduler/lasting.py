"""What a fleet could take at its best: nothing running on it, ours or anybody's, and nothing closed."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.frozen import changed
from stoker.model.requirements import Wish
from stoker.model.units import format_size
from stoker.scheduler.alike import idle
from stoker.scheduler.fit import policy_block, shares
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.scheduler.shapes import Shape

_MOST_NAMED = 3


def at_best(offer: NodeOffer) -> NodeOffer:
    """Give a node as it is at its best. RAM that was measured stays as measured."""
    free = idle(offer)
    return changed(free, devices=tuple(_at_best(device) for device in free.devices), closed="")


def _at_best(device: DeviceOffer) -> DeviceOffer:
    unmeasured = changed(device, free_bytes=None, closed="")
    # Of memory that the machine works in too, more may have been measured free than can be counted on.
    is_more = device.free_bytes is not None and device.whole_bytes > unmeasured.whole_bytes
    return changed(device, closed="") if is_more else unmeasured


def why_never(shape: Shape, offers: Sequence[NodeOffer]) -> str:
    """Say why no node could take the job at its best, by what the fleet has the most of."""
    if not offers:
        return "there are no machines"
    allowed = [offer for offer in offers if policy_block(shape, offer) is None]
    if not allowed:
        hosts = ", ".join(sorted(shape.allowed_hosts))
        known = any(offer.node in shape.allowed_hosts for offer in offers)
        if shape.allowed_hosts and not known:
            return f"none of its allowed hosts is on this fleet ({hosts})"
        unable = {offer.node: why for offer in offers if (why := why_unable(shape, offer))}
        if unable:
            told = "; ".join(f"{node}: {why}" for node, why in list(unable.items())[:_MOST_NAMED])
            return told if len(unable) <= _MOST_NAMED else f"{told} and {len(unable) - _MOST_NAMED} more"
        return "no machine's lists and the job's hosts allow it"
    why = (_devices(shape, allowed) if shape.wish is Wish.REQUIRE else "") or _machine(shape, allowed)
    if len(allowed) == len(offers):
        return why
    return f"{why}; lists or hosts keep it from {len(offers) - len(allowed)} of {len(offers)} machines"


def why_unable(shape: Shape, offer: NodeOffer) -> str:
    """Say why a machine can't have the job whatever its lists say: the job's environment can't be made there."""
    return next((why for word, why in offer.denied_for if word in shape.words), "")


def _devices(shape: Shape, offers: Sequence[NodeOffer]) -> str:
    by_node = [
        sorted((_most(shape, device) for device in offer.devices if device.backend is shape.backend), reverse=True)
        for offer in offers
    ]
    largest = max((sizes[0] for sizes in by_node if sizes), default=None)
    if largest is None:
        return f"needs a {shape.backend} device, no machine has one"
    if largest < shape.vram_bytes:
        return f"needs {format_size(shape.vram_bytes)}, the largest device has {format_size(largest)}"
    count = shape.device_count
    most = max(len(sizes) for sizes in by_node)
    if most < count:
        return f"needs {count} devices on one machine, none has more than {most}"
    if not any(len(sizes) >= count and sizes[count - 1] >= shape.vram_bytes for sizes in by_node):
        return f"needs {count} devices of {format_size(shape.vram_bytes)} on one machine, none has so many"
    return ""


def _most(shape: Shape, device: DeviceOffer) -> int:
    return device.shared_bytes if shares(shape, device) else device.whole_bytes


def _machine(shape: Shape, offers: Sequence[NodeOffer]) -> str:
    ram = max((offer.ram_bytes for offer in offers if offer.ram_bytes is not None), default=0)
    if all(offer.ram_bytes is not None and offer.ram_bytes < shape.ram_bytes for offer in offers):
        return f"needs {format_size(shape.ram_bytes)} RAM, the largest machine has {format_size(ram)}"
    cores = max((offer.cores for offer in offers if offer.cores is not None), default=0)
    if all(offer.cores is not None and offer.cores < shape.cores for offer in offers):
        return f"needs {shape.cores} cores, no machine has more than {cores}"
    return "no single machine has all of it: each lacks something"
