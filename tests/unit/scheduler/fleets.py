"""Machines and jobs that the tests of placement share: system B's sample cluster first of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stoker.core.device import GIB, MIB, MemoryType
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.scheduler.offers import DeviceOffer, NodeOffer, NodeType, idle, likeness, name_of, offer_of

DESKTOP = Node(
    name="desktop", host="localhost", max_adapters=3, gpus=(Gpu(uuid="GPU-4090", type="rtx-4090", vram_mb=24564),)
)
EDGE = Node(
    name="edge",
    host="edge.local",
    gpus=(Gpu(uuid="GPU-orin", type="jetson-orin", vram_mb=8192, memory_type=MemoryType.UNIFIED),),
)
BOX = Node(name="box", host="box.local", cpu_cores=16, ram_mb=65536)
SAMPLE = tuple(offer_of(node) for node in (DESKTOP, EDGE, BOX))


def gpu_job(vram_mb: float = 0, name: str = "job", **more: Any) -> SchedulableJob:
    """A job that has to have a device."""
    return job(name, wish=DevicePreference.REQUIRE, vram_bytes=int(vram_mb * MIB), **more)


def job(name: str = "job", **more: Any) -> SchedulableJob:
    """A job; what is not about its requirements is about itself."""
    own = {key: more.pop(key) for key in ("model", "priority", "allowed_hosts", "preferred_hosts") if key in more}
    return SchedulableJob(name=name, requirements=Requirements(**{"ram_bytes": 0, **more}), **own)


def card(uuid: str = "GPU-1", gib: float = 24, **more: Any) -> DeviceOffer:
    """A device that nobody measured."""
    return DeviceOffer(**{"uuid": uuid, "type": "rtx-4090", "total_bytes": int(gib * GIB), **more})


def machine(node: str, *devices: DeviceOffer, **more: Any) -> NodeOffer:
    """A machine with a slot for each device, or for one job."""
    return NodeOffer(
        **{"node": node, "devices": devices, "slots": max(1, len(devices)), "is_slot_per_device": True, **more}
    )


def node_types_of(nodes: Iterable[Node]) -> tuple[NodeType, ...]:
    """Return the types of declared nodes, in the order in which each first occurs."""
    by_likeness: dict[object, list[NodeOffer]] = {}
    for node in nodes:
        offer = offer_of(node)
        by_likeness.setdefault(likeness(offer), []).append(idle(offer))
    return tuple(NodeType(name=name_of(ones[0]), offer=ones[0], count=len(ones)) for ones in by_likeness.values())
