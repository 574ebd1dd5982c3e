"""Shapes of jobs and types of nodes: what placement distinguishes. A million jobs have a few hundred shapes.

A `Shape` has a job's requirements and preferences, and those of its names that nodes' lists mention. Jobs of one shape
are placed alike, so what is computed for a shape holds for all of them. A `NodeType` is the nodes that differ in
nothing but their names; a fleet of thousands has a few dozen, and what is computed for the whole queue is computed for
these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stoker.core.device import MIB, Backend
from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob, environment_word
from stoker.devices.device_fit import added_bytes
from stoker.scheduler.offers import DeviceOffer, NodeOffer, Sharing
from stoker.scheduler.score import COST_RULE, CostRule

_TRIAL = re.compile(r"(.+)/\d+")


@frozen
class PlacementShape:
    """Everything about a job that decides its placement. Equal shapes are one shape."""

    wish: DevicePreference
    backend: Backend
    device_count: int
    vram_bytes: int
    ram_bytes: int
    cores: int
    may_share: bool
    base: str
    base_bytes: int
    base_ram_bytes: int
    """The part of `ram_bytes` that jobs which share its base hold once. A job must fit as if it were the first."""
    words: frozenset[str]
    """Those of its names that lists of nodes mention."""
    allowed_hosts: frozenset[str]
    """Empty: all hosts."""
    preferred_hosts: frozenset[str]
    is_advised_against: bool
    """The cost rule advises against devices."""

    @property
    def takes_devices(self) -> bool:
        return self.wish is not DevicePreference.NEVER

    @property
    def takes_cpu(self) -> bool:
        return self.wish is not DevicePreference.REQUIRE

    @property
    def increment_bytes(self) -> int:
        """What it takes of a device that has its base already."""
        return added_bytes(self.vram_bytes, self.base_bytes, self.base_bytes) if self.base else self.vram_bytes


def shape_of(
    wanted: SchedulableJob, *, listed: Iterable[str] | None = None, cost: CostRule | None = COST_RULE
) -> PlacementShape:
    """Return the shape of a job.

    `listed` are the words that lists mention (`None`: keep every name), `cost` is the rule that may advise against
    devices (`None`: no rule does).
    """
    asked = wanted.requirements
    names = names_of(wanted)
    keep = names if listed is None else names.intersection(listed)
    takes_devices = asked.wish is not DevicePreference.NEVER
    has_base = bool(asked.base) and (takes_devices or asked.base_ram_bytes > 0)
    return PlacementShape(
        wish=asked.wish,
        backend=asked.backend if takes_devices else Backend.CUDA,
        device_count=max(1, asked.device_count) if takes_devices else 0,
        # Reservations are in whole MiB, as usable memory is.
        vram_bytes=-(-asked.vram_bytes // MIB) * MIB if takes_devices else 0,
        ram_bytes=asked.ram_bytes,
        cores=asked.cores,
        may_share=asked.may_share and takes_devices,
        base=asked.base if has_base else "",
        base_bytes=min(asked.base_bytes // MIB * MIB, asked.vram_bytes) if has_base and takes_devices else 0,
        base_ram_bytes=min(asked.base_ram_bytes, asked.ram_bytes) if has_base else 0,
        words=keep,
        allowed_hosts=frozenset(wanted.allowed_hosts),
        preferred_hosts=frozenset(wanted.preferred_hosts),
        is_advised_against=cost is not None and _is_advised_against(cost, asked),
    )


def names_of(wanted: SchedulableJob) -> frozenset[str]:
    """Return the names of a job in lists: its own, that of the sweep it is a trial of (`name/3`), its model.

    A recipe also has its last word as a name, as on the command line: `lora` is `language/lora`. Nodes that can't have
    an environment deny its word; nodes that run only some code allow its word.
    """
    names = {wanted.name, wanted.model, wanted.model.rpartition("/")[2]}
    if wanted.environment:
        names.add(environment_word(wanted.environment))
    if wanted.code:
        names.add(wanted.code)
    trial = _TRIAL.fullmatch(wanted.name)
    if trial:
        names.add(trial[1])
    return frozenset(names - {""})


@frozen
class NodeType:
    """Nodes that differ in nothing but their names, idle."""

    name: str
    """Their devices, or their cores: see `name_of`."""
    offer: NodeOffer
    """One of them, with no jobs on it."""
    count: int


def node_types_of(offers: Iterable[NodeOffer]) -> tuple[tuple[NodeType, ...], dict[str, int]]:
    """Return the types of these nodes, and the index of its type for each node's name."""
    found: dict[object, int] = {}
    firsts: list[NodeOffer] = []
    counts: list[int] = []
    of_node: dict[str, int] = {}
    for offer in offers:
        place = found.setdefault(likeness(offer), len(firsts))
        if place == len(firsts):
            firsts.append(idle(offer))
            counts.append(0)
        counts[place] += 1
        of_node[offer.node] = place
    types = tuple(
        NodeType(name=name_of(first), offer=first, count=count) for first, count in zip(firsts, counts, strict=True)
    )
    return types, of_node


def idle(offer: NodeOffer) -> NodeOffer:
    """Return a node without our jobs."""
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
    """Return what a node is: `8 × A100 80 GiB, shared`, `CPU 16 cores`."""
    if not offer.devices:
        return "CPU" if offer.cores is None else f"CPU {offer.cores} cores"
    parts: dict[str, int] = {}
    for device in offer.devices:
        text = f"{device.type} {device.total_bytes / 1024**3:.0f} GiB"
        parts[text] = parts.get(text, 0) + 1
    joined = " + ".join(f"{count} × {text}" if count > 1 else text for text, count in parts.items())
    is_shared = any(device.sharing is Sharing.ALWAYS for device in offer.devices)
    return f"{joined}, shared" if is_shared else joined


def _is_advised_against(cost: CostRule, asked: Requirements) -> bool:
    return asked.wish is DevicePreference.PREFER and cost.advise(asked.transfer_mb, asked.mflop).is_against


def likeness(offer: NodeOffer) -> object:
    """Return what nodes of one type have in common."""
    devices = tuple(_device_likeness(device) for device in offer.devices)
    lists = (offer.allow_jobs, offer.deny_jobs, offer.priority, offer.closed)
    return devices, offer.slots, offer.is_slot_per_device, offer.ram_bytes, offer.cores, lists


def _device_likeness(device: DeviceOffer) -> object:
    memory = (device.memory_type, device.total_bytes, device.free_bytes)
    return device.type, device.backend, memory, device.sharing, device.slots, device.closed
