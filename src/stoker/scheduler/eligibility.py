"""Whether one machine can run one job at all, as its capability says: yes or no, with the reason and both numbers.

Pure. The rule is placement's (`fit`), asked of the machine alone and idle; here it is put into words. The checks come
in a fixed order and the first that fails is the reason: a device, its memory, RAM, cores. What a job *prefers* never
refuses it: it goes to the CPU, and the answer says why. RAM that can't be read refuses nobody. What others hold, and
which machine is best, is not asked here.
"""

from __future__ import annotations

from stoker.model.capability import Capability
from stoker.model.frozen import frozen
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.model.units import format_size
from stoker.scheduler.fit import cores_left, device_block, ram_left
from stoker.scheduler.offers import DeviceOffer, NodeOffer, agree
from stoker.scheduler.shapes import Shape, shape_of

_UNMEASURED = "nobody could say how much RAM is available"


@frozen
class Eligible:
    """The answer. Where a job may run, the reason says on what."""

    ok: bool
    reason: str
    devices: tuple[str, ...] = ()
    """The devices it would get, the most free memory first; none if it computes on the CPU."""

    @property
    def uses_gpu(self) -> bool:
        return bool(self.devices)


def can_run(capability: Capability, requirements: Requirements) -> Eligible:
    """Say whether the machine can run it. Memory of a device counts whenever the job will use one."""
    offer = agree(None, capability).offer
    shape = shape_of(WantedJob(name="", requirements=requirements))
    chosen: tuple[DeviceOffer, ...] = ()
    against_devices = ""
    if shape.takes_devices:
        chosen, against_devices = _choose(capability, offer, shape)
        if against_devices and shape.wish is Wish.REQUIRE:
            return Eligible(ok=False, reason=against_devices)
    is_measured = capability.ram_available_bytes is not None
    against = _short_of_ram(offer, shape, is_measured=is_measured) or _short_of_cores(offer, shape)
    if against:
        return Eligible(ok=False, reason=against)
    unsaid = "" if is_measured or not shape.ram_bytes else f"; {_UNMEASURED}"
    if not chosen:
        told = f": {against_devices}" if against_devices else ""
        return Eligible(ok=True, reason=f"runs on the CPU{told}{unsaid}")
    names = {one.uuid: one.name for one in capability.devices}
    uuids = tuple(one.uuid for one in chosen)
    return Eligible(ok=True, reason=f"runs on {', '.join(names[uuid] for uuid in uuids)}{unsaid}", devices=uuids)


def _choose(capability: Capability, offer: NodeOffer, shape: Shape) -> tuple[tuple[DeviceOffer, ...], str]:
    """Give the devices with the most room, or what is against all of them."""
    count = shape.device_count
    there = [one for one in offer.devices if one.backend is shape.backend and not one.closed]
    if not there:
        return (), _none_usable(capability, shape)
    if len(there) < count:
        return (), f"needs {count} {shape.backend} devices, {len(there)} can be used here"
    there.sort(key=lambda one: (-one.whole_bytes, one.uuid))
    with_room = [one for one in there if device_block(shape, one) is None]
    if len(with_room) >= count:
        return tuple(with_room[:count]), ""
    tightest = there[len(with_room)]
    which = "the best device has" if not with_room else f"{_have(len(with_room))} that; the next has"
    each = f" on each of {count} devices" if count > 1 else ""
    free = "free" if tightest.free_bytes is not None else "in all (nobody measured how much of it is free)"
    short = _shortfall(shape.vram_bytes, tightest.whole_bytes)
    need, has = _gib(shape.vram_bytes), _gib(tightest.whole_bytes)
    return (), f"needs {need} of GPU memory{each}, {which} {has} {free}{short}"


def _none_usable(capability: Capability, shape: Shape) -> str:
    there = [one for one in capability.devices if one.backend is shape.backend]
    if not there:
        return f"needs {shape.backend}, and there is no such device"
    first = there[0]
    why = first.visible.why if first.visible.is_no else first.usable.why if first.usable.is_no else ""
    if not why and first.total_bytes is None:
        why = f"nobody could say how much memory {first.name} has"
    return f"needs {shape.backend}, and no such device can be used{f': {why}' if why else ''}"


def _short_of_ram(offer: NodeOffer, shape: Shape, *, is_measured: bool) -> str:
    need, left = shape.ram_bytes, ram_left(offer)
    if left >= need:
        return ""
    which = "are available" if is_measured else f"are there in all ({_UNMEASURED})"
    return f"needs {_gib(need)} of RAM, {_gib(int(left))} {which}{_shortfall(need, int(left))}"


def _short_of_cores(offer: NodeOffer, shape: Shape) -> str:
    return f"needs {shape.cores} cores, has {offer.cores}" if cores_left(offer) < shape.cores else ""


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


def _have(count: int) -> str:
    return "1 has" if count == 1 else f"{count} have"


def _shortfall(need_bytes: int, there_bytes: int) -> str:
    """Say by how much, where one decimal shows two equal numbers."""
    is_alike = _gib(need_bytes) == _gib(there_bytes)
    return f" ({format_size(need_bytes - there_bytes)} short)" if is_alike else ""
