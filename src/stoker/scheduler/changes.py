"""What would let a job start: changes that start it now, and what the fleet could take at its best.

A change concerns the job (less memory, fewer devices, sharing, the CPU) or a node (sharing, a slot, its lists). It is
computed from what is left on a node, rounded to what is shown, and kept only if `fit.choose` then finds a placement.
At its best a node has no jobs, nothing is closed, and other programs hold no device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum

from stoker.core.device import GIB, MIB
from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference
from stoker.core.text import counted, format_size
from stoker.scheduler.fit import (
    PlacementShape,
    choose,
    cores_left,
    is_resident,
    policy_block,
    ram_left,
    room_bytes,
    shares,
)
from stoker.scheduler.offers import DeviceOffer, NodeOffer, Sharing, idle
from stoker.scheduler.reasons import why_unable

_MOST_NAMED = 3


class ChangeKind(StrEnum):
    """What would be changed. The first ones are amounts: the job would require less of them."""

    VRAM = "min_vram"
    RAM = "min_ram"
    CORES = "min_cores"
    SEVERAL = "amounts"
    DEVICES = "devices"
    SHARE_JOB = "share_job"
    SHARE_NODE = "share_node"
    CPU = "cpu"
    SLOTS = "slots"
    HOSTS = "allowed_hosts"
    LISTS = "lists"


@frozen
class Change:
    """One change after which the job would start."""

    what: ChangeKind
    node: str
    """Where it would start."""
    text: str
    """The condition, as it continues “starts now if”."""
    relative: float | None = None
    """How much less of an amount is required, as a part of it; `None` if the change is not an amount."""
    shape: PlacementShape
    """The job as it would be."""
    offer: NodeOffer
    """The node as it would be."""

    def to_dict(self) -> dict[str, object]:
        return {"what": str(self.what), "node": self.node, "text": self.text, "relative": self.relative}


def changes_over(shape: PlacementShape, offers: Iterable[NodeOffer]) -> list[Change]:
    """Return the changes of all these nodes, without those that `best_of_each` and `nearest` would skip."""
    found: list[Change] = []
    known: set[ChangeKind] = set()
    for offer in offers:
        true = _changes(shape, offer, known)
        # Of changes that are no amounts only the first counts.
        known.update(change.what for change in true if change.relative is None)
        found += true
    return found


def is_true(change: Change) -> bool:
    """Return True if the job would start after the change."""
    return choose(change.shape, change.offer) is not None


def nearest(found: Iterable[Change]) -> Change | None:
    """Return the smallest change: any amount before all others, and of amounts the smallest part."""
    return min(found, key=lambda one: (one.relative is None, one.relative or 0.0), default=None)


def best_of_each(found: Iterable[Change]) -> list[Change]:
    """Return the smallest change of every kind; of changes of nodes the first."""
    kept: dict[ChangeKind, Change] = {}
    for change in found:
        known = kept.get(change.what)
        if known is None or (change.relative or 0.0) < (known.relative or 0.0):
            kept[change.what] = change
    return [kept[what] for what in ChangeKind if what in kept]


def shown_bytes(size_bytes: int) -> int:
    """Round down to the precision of texts, so that they are true: tenths of a GiB, whole MiB below 1 GiB."""
    if size_bytes < GIB:
        return max(0, size_bytes) // MIB * MIB
    for tenths in (size_bytes * 10 // GIB, size_bytes * 10 // GIB - 1):
        # 20.3 GiB in a job reserves the next whole MiB.
        written = -(-tenths * GIB // (10 * MIB)) * MIB
        if written <= size_bytes:
            return written
    return size_bytes // GIB * GIB


def at_best(offer: NodeOffer) -> NodeOffer:
    """Return a node at its best. Measured RAM stays as measured."""
    free = idle(offer)
    return changed(free, devices=tuple(_device_at_best(device) for device in free.devices), closed="")


def why_never(shape: PlacementShape, offers: Sequence[NodeOffer]) -> str:
    """Return why no node could take the job at its best, by the largest amounts in the fleet."""
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
            text = "; ".join(f"{node}: {why}" for node, why in list(unable.items())[:_MOST_NAMED])
            return text if len(unable) <= _MOST_NAMED else f"{text} and {len(unable) - _MOST_NAMED} more"
        return "allow and deny lists, or the job's hosts, exclude every machine"
    why = (_lacks_devices(shape, allowed) if shape.wish is DevicePreference.REQUIRE else "") or _lacks_capacity(
        shape, allowed
    )
    if len(allowed) == len(offers):
        return why
    return f"{why}; lists or hosts keep it from {len(offers) - len(allowed)} of {len(offers)} machines"


def _changes(shape: PlacementShape, offer: NodeOffer, known: Collection[ChangeKind]) -> list[Change]:
    true = [change for what, make in _PROPOSALS if what not in known for change in _true(make(shape, offer))]
    several = [] if true else list(_true(_all_amounts(shape, offer)))
    if several and any(True for what, make in _PROPOSALS if what in known for _ in _true(make(shape, offer))):
        return []
    return true or several


def _true(proposed: Iterable[Change | None]) -> Iterator[Change]:
    return (change for change in proposed if change is not None and is_true(change))


def _less_vram(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    most = _most_vram(shape, offer)
    if most is not None:
        yield _amount(ChangeKind.VRAM, shape, offer, vram_bytes=most)


def _less_ram(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    left = ram_left(offer)
    if left < shape.ram_bytes:
        yield _amount(ChangeKind.RAM, shape, offer, ram_bytes=shown_bytes(int(left)))


def _fewer_cores(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    left = cores_left(offer)
    if left < shape.cores:
        yield _amount(ChangeKind.CORES, shape, offer, cores=int(left))


def _all_amounts(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change]:
    less: dict[str, int] = {}
    if ram_left(offer) < shape.ram_bytes:
        less["ram_bytes"] = shown_bytes(int(ram_left(offer)))
    if cores_left(offer) < shape.cores:
        less["cores"] = int(cores_left(offer))
    most = _most_vram(shape, offer) if shape.wish is DevicePreference.REQUIRE else None
    if most is not None:
        less["vram_bytes"] = most
    change = _amount(ChangeKind.SEVERAL, shape, offer, **less)
    if len(less) > 1 and change is not None:
        yield change


def _amount(what: ChangeKind, shape: PlacementShape, offer: NodeOffer, **less: int) -> Change | None:
    """Return the change to require less of something."""
    if any(amount < (1 if name == "vram_bytes" else 0) for name, amount in less.items()):
        return None
    parts = [_amount_text(name, amount) for name, amount in less.items()]
    relative = max((1 - amount / getattr(shape, name) for name, amount in less.items()), default=0.0)
    smaller = changed(shape, **less)
    smaller = changed(smaller, base_bytes=min(smaller.base_bytes, smaller.vram_bytes))
    return Change(what=what, node=offer.node, text=" and ".join(parts), relative=relative, shape=smaller, offer=offer)


def _amount_text(name: str, amount: int) -> str:
    if name == "cores":
        return f"min_cores ≤ {amount}"
    return f"{'min_vram' if name == 'vram_bytes' else 'min_ram'} ≤ {_shown(amount)}"


def _most_vram(shape: PlacementShape, offer: NodeOffer) -> int | None:
    """Return the most memory per device that this node has for the job now, if that is less than required."""
    able = sorted((_device_vram(shape, device) for device in offer.devices), reverse=True)
    if not shape.takes_devices or len(able) < shape.device_count:
        return None
    most = shown_bytes(able[shape.device_count - 1])
    return most if 0 < most < shape.vram_bytes else None


def _device_vram(shape: PlacementShape, device: DeviceOffer) -> int:
    """Return how much of a device a job like this one could have now."""
    if device.closed or device.backend is not shape.backend or device.is_held:
        return 0
    if not device.jobs:
        return device.whole_bytes
    # With so little memory that it may be shared.
    if not shares(changed(shape, vram_bytes=MIB), device):
        return 0
    return max(0, room_bytes(device) + (shape.base_bytes if is_resident(shape, device) else 0))


def _fewer_devices(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    for count in range(shape.device_count - 1, 0, -1):
        fewer = changed(shape, device_count=count)
        if choose(fewer, offer) is not None:
            text = f"it takes {counted(count, 'device')} instead of {shape.device_count}"
            relative = 1 - count / shape.device_count
            yield Change(
                what=ChangeKind.DEVICES, node=offer.node, text=text, relative=relative, shape=fewer, offer=offer
            )
            return


def _job_shares(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    if shape.takes_devices and not shape.may_share:
        sharing = changed(shape, may_share=True)
        text = f"it may share a device of {offer.node}{_room_text(sharing, offer)}"
        yield Change(what=ChangeKind.SHARE_JOB, node=offer.node, text=text, shape=sharing, offer=offer)


def _node_shares(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    """Return the change that all jobs on the node's devices share them, each within its reservation."""
    if shape.takes_devices and any(device.is_held for device in offer.devices):
        shared = changed(offer, devices=tuple(_shared(device) for device in offer.devices))
        text = f"jobs may share {offer.node}{_room_text(shape, shared)}"
        yield Change(what=ChangeKind.SHARE_NODE, node=offer.node, text=text, shape=shape, offer=shared)


def _shared(device: DeviceOffer) -> DeviceOffer:
    # A job that declared no memory may take all of it, so its device can't be shared.
    is_held = device.is_held and not device.promised_bytes
    return changed(device, sharing=Sharing.ALWAYS, is_held=is_held)


def _room_text(shape: PlacementShape, offer: NodeOffer) -> str:
    """Return text on how much would be left on the device that the job would share."""
    choice = choose(shape, offer)
    if choice is None or not choice.devices or not choice.devices[0].is_shared:
        return ""
    device = offer.devices[choice.devices[0].at]
    needs, left = format_size(shape.vram_bytes), format_size(room_bytes(device))
    return f" (needs {needs}, {left} left of {format_size(device.shared_bytes)} usable)"


def _on_cpu(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    if shape.wish is DevicePreference.REQUIRE:
        text = f"it does not require a device (on the CPU of {offer.node})"
        yield Change(
            what=ChangeKind.CPU,
            node=offer.node,
            text=text,
            shape=changed(shape, wish=DevicePreference.PREFER),
            offer=offer,
        )


def _one_more_slot(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    more = changed(offer, slots=offer.slots + 1)
    text = f"{offer.node} has {more.slots} slots instead of {offer.slots}"
    yield Change(what=ChangeKind.SLOTS, node=offer.node, text=text, shape=shape, offer=more)


def _other_hosts(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    if shape.allowed_hosts and offer.node not in shape.allowed_hosts:
        wider = changed(shape, allowed_hosts=shape.allowed_hosts | {offer.node})
        text = f"allowed_hosts has {offer.node}"
        yield Change(what=ChangeKind.HOSTS, node=offer.node, text=text, shape=wider, offer=offer)


def _other_lists(shape: PlacementShape, offer: NodeOffer) -> Iterator[Change | None]:
    denied = shape.words.intersection(offer.deny_jobs)
    is_unlisted = bool(offer.allow_jobs) and shape.words.isdisjoint(offer.allow_jobs)
    if (not denied and not is_unlisted) or why_unable(shape, offer):
        return
    parts = [f"{offer.node} does not deny {', '.join(sorted(denied))}"] if denied else []
    if is_unlisted:
        parts.append(f"the allow list of {offer.node} has it")
    allowing = changed(
        offer,
        deny_jobs=tuple(word for word in offer.deny_jobs if word not in denied),
        allow_jobs=() if is_unlisted else offer.allow_jobs,
    )
    yield Change(what=ChangeKind.LISTS, node=offer.node, text=" and ".join(parts), shape=shape, offer=allowing)


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes // MIB} MiB"


def _device_at_best(device: DeviceOffer) -> DeviceOffer:
    unmeasured = changed(device, free_bytes=None, closed="")
    # On a unified device more may be measured free than counts without a measurement.
    is_more = device.free_bytes is not None and device.whole_bytes > unmeasured.whole_bytes
    return changed(device, closed="") if is_more else unmeasured


def _lacks_devices(shape: PlacementShape, offers: Sequence[NodeOffer]) -> str:
    by_node = [
        sorted(
            (_most_bytes(shape, device) for device in offer.devices if device.backend is shape.backend), reverse=True
        )
        for offer in offers
    ]
    largest = max((sizes[0] for sizes in by_node if sizes), default=None)
    if largest is None:
        others = sorted({device.backend for offer in offers for device in offer.devices})
        instead = f" (there are devices of {', '.join(others)}: set gpu_backend)" if others else ""
        return f"needs a {shape.backend} device, no machine has one{instead}"
    if largest < shape.vram_bytes:
        return f"needs {format_size(shape.vram_bytes)}, the largest device has {format_size(largest)}"
    count = shape.device_count
    most = max(len(sizes) for sizes in by_node)
    if most < count:
        return f"needs {count} devices on one machine, none has more than {most}"
    if not any(len(sizes) >= count and sizes[count - 1] >= shape.vram_bytes for sizes in by_node):
        return f"needs {count} devices of {format_size(shape.vram_bytes)} on one machine, none has so many"
    return ""


def _most_bytes(shape: PlacementShape, device: DeviceOffer) -> int:
    return device.shared_bytes if shares(shape, device) else device.whole_bytes


def _lacks_capacity(shape: PlacementShape, offers: Sequence[NodeOffer]) -> str:
    ram = max((offer.ram_bytes for offer in offers if offer.ram_bytes is not None), default=0)
    if all(offer.ram_bytes is not None and offer.ram_bytes < shape.ram_bytes for offer in offers):
        return f"needs {format_size(shape.ram_bytes)} RAM, the largest machine has {format_size(ram)}"
    cores = max((offer.cores for offer in offers if offer.cores is not None), default=0)
    if all(offer.cores is not None and offer.cores < shape.cores for offer in offers):
        return f"needs {shape.cores} cores, no machine has more than {cores}"
    return "no single machine has all required resources"


_PROPOSALS: tuple[tuple[ChangeKind, Callable[[PlacementShape, NodeOffer], Iterable[Change | None]]], ...] = (
    (ChangeKind.VRAM, _less_vram),
    (ChangeKind.RAM, _less_ram),
    (ChangeKind.CORES, _fewer_cores),
    (ChangeKind.DEVICES, _fewer_devices),
    (ChangeKind.SHARE_JOB, _job_shares),
    (ChangeKind.SHARE_NODE, _node_shares),
    (ChangeKind.CPU, _on_cpu),
    (ChangeKind.SLOTS, _one_more_slot),
    (ChangeKind.HOSTS, _other_hosts),
    (ChangeKind.LISTS, _other_lists),
)
