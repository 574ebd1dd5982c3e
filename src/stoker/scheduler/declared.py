"""What was declared of a machine beside what was found on it: the smaller counts, and differences are told.

Pure. Devices are matched by UUID. A machine that nobody declared offers what was found. `node_of` goes the other way:
the declaration that a snapshot gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.model.capability import Capability
from stoker.model.devices import MIB, Device, MemoryType
from stoker.model.frozen import changed, frozen
from stoker.model.names import LONGEST_NAME, is_node_name
from stoker.model.nodes import Gpu, Node
from stoker.model.units import format_size
from stoker.scheduler.offers import DeviceOffer, NodeOffer, offer_of

DRIFT_PERCENT = 5
"""Sizes that differ by more are worth a note: tools round, drivers reserve."""
_MAKERS = frozenset({"nvidia", "geforce"})
_WORD = re.compile(r"[a-z0-9.]+")
_BAD_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@frozen
class Drift:
    """One difference between a declaration and the machine."""

    what: str
    """`cores`, `RAM`, or a device's UUID."""
    message: str
    declared: int | None = None
    """In bytes, but for cores; nothing: not declared."""
    found: int | None = None

    def to_dict(self) -> dict[str, object]:
        return {"what": self.what, "message": self.message, "declared": self.declared, "found": self.found}


@frozen
class Agreed:
    """What both say."""

    offer: NodeOffer
    drift: tuple[Drift, ...] = ()


def agree(node: Node | None, capability: Capability) -> Agreed:
    """Lay a declaration beside a snapshot. Without one, the machine offers what was found."""
    if node is None:
        node = node_of(capability)
    by_uuid = {one.uuid.casefold(): one for one in capability.devices}
    pairs = [_agree_device(device, by_uuid) for device in offer_of(node).devices]
    declared = {gpu.uuid.casefold() for gpu in node.gpus}
    cores, cores_drift = _smaller_cores(node, capability)
    ram_bytes, ram_drift = _smaller_ram(node, capability)
    offer = changed(
        offer_of(node),
        devices=tuple(device for device, _ in pairs),
        ram_bytes=ram_bytes,
        cores=cores,
        is_fake=capability.is_fake,
    )
    drift = [*cores_drift, *ram_drift, *(note for _, notes in pairs for note in notes)]
    drift += [_undeclared(one) for uuid, one in by_uuid.items() if uuid not in declared and one.total_bytes is not None]
    return Agreed(offer=offer, drift=tuple(drift))


def node_of(capability: Capability) -> Node:
    """Declare a machine as it was found: this machine, every device whose size is known, by UUID."""
    return Node(
        name=node_name(capability.hostname),
        host="localhost",
        gpus=tuple(
            Gpu(
                uuid=one.uuid,
                type=type_of(one.name),
                vram_mb=one.total_bytes // MIB,
                memory_type=one.memory_type,
            )
            for one in capability.devices
            if one.total_bytes is not None and one.total_bytes >= MIB
        ),
        cpu_cores=capability.cpu_cores,
        ram_mb=(capability.ram_total_bytes or 0) // MIB or None,
    )


def type_of(name: str) -> str:
    """Give the type of a device by its vendor's name for it: `NVIDIA GeForce RTX 4090` is `rtx-4090`."""
    words = _WORD.findall(name.lower())
    return "-".join([word for word in words if word not in _MAKERS] or words) or "unknown"


def node_name(hostname: str) -> str:
    """Give the name that a machine goes by in files: its host id, without what a name may not have."""
    name = _BAD_IN_NAME.sub("-", hostname).strip("-._")[:LONGEST_NAME]
    return name if is_node_name(name) else "machine"


def _agree_device(declared: DeviceOffer, found_by: Mapping[str, Device]) -> tuple[DeviceOffer, list[Drift]]:
    found = found_by.get(declared.uuid.casefold())
    if found is None:
        why = "declared, and not found on the machine"
        note = Drift(
            what=declared.uuid, message=f"{declared.type} {declared.uuid}: {why}", declared=declared.total_bytes
        )
        return changed(declared, closed=why), [note]
    notes = []
    total_bytes = declared.total_bytes
    if found.total_bytes is not None:
        total_bytes = min(total_bytes, found.total_bytes)
        if _is_apart(declared.total_bytes, found.total_bytes):
            notes.append(_of_size(f"{declared.type} {declared.uuid}", declared.total_bytes, found.total_bytes))
    is_unified = MemoryType.UNIFIED in (declared.memory_type, found.memory_type)
    if declared.memory_type is not found.memory_type:
        told = f"declared {declared.memory_type} memory, found {found.memory_type}: unified, the more careful, counts"
        notes.append(Drift(what=declared.uuid, message=f"{declared.type} {declared.uuid}: {told}"))
    agreed = changed(
        declared,
        backend=found.backend,
        memory_type=MemoryType.UNIFIED if is_unified else MemoryType.DISCRETE,
        total_bytes=total_bytes,
        free_bytes=None if found.free_bytes is None else min(found.free_bytes, total_bytes),
        closed=_closed(found),
    )
    return agreed, notes


def _closed(found: Device) -> str:
    if found.visible.is_no:
        return f"not visible{f': {found.visible.why}' if found.visible.why else ''}"
    if found.usable.is_no:
        return f"not usable{f': {found.usable.why}' if found.usable.why else ''}"
    return ""


def _smaller_cores(node: Node, capability: Capability) -> tuple[int, list[Drift]]:
    declared, found = node.cpu_cores, capability.cpu_cores
    if declared is None or not _is_apart(declared, found):
        return found if declared is None else min(declared, found), []
    message = f"declared {declared} cores, found {found}: the smaller counts"
    return min(declared, found), [Drift(what="cores", message=message, declared=declared, found=found)]


def _smaller_ram(node: Node, capability: Capability) -> tuple[int | None, list[Drift]]:
    """Give what jobs may hold: what is available, never more than was declared.

    What can't be read refuses nobody: where nobody knows how much is available, the machine's whole memory counts.
    """
    declared = None if node.ram_mb is None else node.ram_mb * MIB
    total, available = capability.ram_total_bytes, capability.ram_available_bytes
    known = [size for size in (declared, total, available) if size is not None]
    drift = []
    if declared is not None and total is not None and _is_apart(declared, total):
        drift = [_of_size("RAM", declared, total)]
    return min(known, default=None), drift


def _undeclared(found: Device) -> Drift:
    message = f"{found.name} {found.uuid}: found on the machine, and not declared: no job gets it"
    return Drift(what=found.uuid, message=message, found=found.total_bytes)


def _of_size(what: str, declared: int, found: int) -> Drift:
    message = f"{what}: declared {format_size(declared)}, found {format_size(found)}: the smaller counts"
    return Drift(what=what.rpartition(" ")[2], message=message, declared=declared, found=found)


def _is_apart(declared: int, found: int) -> bool:
    return abs(declared - found) * 100 > DRIFT_PERCENT * max(declared, found)
