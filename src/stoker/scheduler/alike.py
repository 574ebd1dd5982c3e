"""Machines that are alike: nodes that differ in nothing but their names, as one.

A fleet of thousands has a few dozen sorts of machines. What is worked out about waiting work as a whole is worked out
for sorts, never for single nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.model.frozen import changed, frozen
from stoker.scheduler.offers import DeviceOffer, NodeOffer, Sharing


@frozen
class NodeType:
    """Nodes that are alike, idle."""

    name: str
    """What people call them: their devices, or their cores and memory."""
    offer: NodeOffer
    """One of them, with nothing running on it."""
    count: int


def node_types_of(offers: Iterable[NodeOffer]) -> tuple[tuple[NodeType, ...], dict[str, int]]:
    """Put nodes that are alike together; also gives the sort of each node, by its name."""
    found: dict[object, int] = {}
    firsts: list[NodeOffer] = []
    counts: list[int] = []
    of_node: dict[str, int] = {}
    for offer in offers:
        place = found.setdefault(_likeness(offer), len(firsts))
        if place == len(firsts):
            firsts.append(idle(offer))
            counts.append(0)
        counts[place] += 1
        of_node[offer.node] = place
    sorts = tuple(
        NodeType(name=name_of(first), offer=first, count=count) for first, count in zip(firsts, counts, strict=True)
    )
    return sorts, of_node


def idle(offer: NodeOffer) -> NodeOffer:
    """Give a node as it is when nothing of ours runs on it."""
    return changed(
        offer,
        devices=tuple(changed(device, is_held=False, jobs=0, promised_bytes=0, bases=()) for device in offer.devices),
        jobs=0,
        cpu_jobs=0,
        ram_held_bytes=0,
        processes=(),
        cores_held=0,
    )


def name_of(offer: NodeOffer) -> str:
    """Say what a node is: `8 × A100 80 GiB, shared`, `CPU 16 cores`."""
    if not offer.devices:
        return "CPU" if offer.cores is None else f"CPU {offer.cores} cores"
    parts: dict[str, int] = {}
    for device in offer.devices:
        text = f"{device.type} {device.total_bytes / 1024**3:.0f} GiB"
        parts[text] = parts.get(text, 0) + 1
    joined = " + ".join(f"{count} × {text}" if count > 1 else text for text, count in parts.items())
    is_shared = any(device.sharing is Sharing.ALWAYS for device in offer.devices)
    return f"{joined}, shared" if is_shared else joined


def _likeness(offer: NodeOffer) -> object:
    devices = tuple(_device_likeness(device) for device in offer.devices)
    lists = (offer.allow_jobs, offer.deny_jobs, offer.priority, offer.closed)
    return devices, offer.slots, offer.is_slot_per_device, offer.ram_bytes, offer.cores, lists


def _device_likeness(device: DeviceOffer) -> object:
    memory = (device.memory_type, device.total_bytes, device.free_bytes)
    return device.type, device.backend, memory, device.sharing, device.slots, device.closed
