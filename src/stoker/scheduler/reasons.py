"""Why a job can't start on a node or a device now, and the terms of its score where it can.

Every `Obstacle` is an answer of the rule (`fit.UnfitReason`) as a sentence with both numbers: none where the rule says
yes, one or more where it says no. The order is system A's: policy, devices, RAM, cores, slots.
"""

from __future__ import annotations

from math import inf

from stoker.core.device import MIB
from stoker.core.frozen import frozen
from stoker.core.text import counted, format_size
from stoker.scheduler.fit import (
    AnyNode,
    DevicePlacement,
    Placement,
    PlacementShape,
    UnfitReason,
    choose,
    cores_left,
    device_block,
    needed_bytes,
    policy_block,
    ram_left,
    room_bytes,
    shares,
    slices_left,
    slots_left,
)
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.scheduler.score import CPU_SPEED, slices_needed


@frozen
class Obstacle:
    """One reason why a job can't start on a node or a device."""

    code: UnfitReason
    why: str
    needed: int | None = None
    """How much it needs, in bytes, cores, devices or slots; `None` if the reason is not an amount."""
    left: int | None = None
    """How much is available now."""
    device: str = ""
    """The UUID, if it concerns one device."""

    @property
    def missing(self) -> int | None:
        return None if self.needed is None or self.left is None else max(0, self.needed - self.left)

    def to_dict(self) -> dict[str, object]:
        return {
            "code": str(self.code),
            "why": self.why,
            "needed": self.needed,
            "left": self.left,
            "missing": self.missing,
            "device": self.device or None,
        }


@frozen
class ScoreTerm:
    """One factor of a score."""

    name: str
    value: float
    text: str = ""
    """How it was computed, if that is not obvious."""

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "value": self.value, "text": self.text}


def obstacles(shape: PlacementShape, offer: NodeOffer) -> tuple[Obstacle, ...]:
    """Return every reason why a job can't start on this node now; empty if it can."""
    if choose(shape, offer) is not None:
        return ()
    found = [_policy_obstacle(shape, offer)]
    if not shape.takes_cpu:
        found.append(_devices_obstacle(shape, offer))
    found += [_ram_obstacle(shape, offer), _cores_obstacle(shape, offer), _slots_obstacle(shape, offer)]
    return tuple(one for one in found if one is not None)


def first_block(shape: PlacementShape, node: AnyNode) -> UnfitReason:
    """Return the first reason why a job can't start on this node, without amounts. Call only if it can't."""
    block = policy_block(shape, node)
    if block is None and not shape.takes_cpu:
        block = _devices_block(shape, node)
    if block is None:
        block = UnfitReason.RAM if ram_left(node) < shape.ram_bytes else None
    return block or (UnfitReason.CORES if cores_left(node) < shape.cores else UnfitReason.SLOTS)


def device_obstacle(shape: PlacementShape, device: DeviceOffer) -> Obstacle | None:
    """Return why a job can't use this device now; `None` if it can."""
    block = device_block(shape, device)
    return None if block is None else _obstacle_of(shape, device, block)


def why_unable(shape: PlacementShape, offer: NodeOffer) -> str:
    """Return why a node can't run the job even if its owner allows it (it can't build the environment); else empty."""
    return next((why for word, why in offer.denied_for if word in shape.words), "")


def device_terms(shape: PlacementShape, device: DeviceOffer, choice: DevicePlacement) -> tuple[ScoreTerm, ...]:
    """Return the terms of a device's score; their product is the score."""
    if choice.is_shared:
        need, room = needed_bytes(shape, device), room_bytes(device)
        beside = ", its base is there" if choice.is_resident else ""
        value = choice.score / device.speed * (1 + device.jobs)
        first = ScoreTerm(name="room", value=value, text=f"{format_size(room)} / {format_size(need)}{beside}")
    else:
        used = shape.vram_bytes or device.total_bytes
        text = f"1 + {format_size(used)} / {format_size(device.total_bytes)}, alone on it"
        first = ScoreTerm(name="use", value=choice.score / device.speed, text=text)
    return first, _speed_term(device.speed), _load_term(device.jobs if choice.is_shared else 0)


def cpu_terms(shape: PlacementShape, offer: NodeOffer, choice: Placement) -> tuple[ScoreTerm, ...]:
    """Return the terms of a node's score for a job on its CPU."""
    left, need = slices_left(offer), slices_needed(shape.ram_bytes, shape.cores)
    value = choice.key.score / CPU_SPEED * (1 + offer.jobs)
    text = "assumed to be just enough" if left is None else f"{left:.4g} / {need:.4g} slices of 4 GiB and a core"
    return ScoreTerm(name="room", value=value, text=text), _speed_term(CPU_SPEED), _load_term(offer.jobs)


def _devices_block(shape: PlacementShape, node: AnyNode) -> UnfitReason | None:
    of_backend = [device for device in node.devices if device.backend is shape.backend]
    if not of_backend:
        return UnfitReason.NO_DEVICE
    blocks = [block for device in of_backend if (block := device_block(shape, device)) is not None]
    if len(of_backend) - len(blocks) >= shape.device_count:
        return None
    return blocks[0] if shape.device_count == 1 else UnfitReason.FEW_DEVICES


def _policy_obstacle(shape: PlacementShape, offer: NodeOffer) -> Obstacle | None:
    block = policy_block(shape, offer)
    if block is None:
        return None
    whys = {
        UnfitReason.CLOSED: f"takes no jobs: {offer.closed}",
        UnfitReason.HOST: f"not one of the job's hosts ({_listed(shape.allowed_hosts)})",
        UnfitReason.DENIED: why_unable(shape, offer) or f"denies {_listed(shape.words.intersection(offer.deny_jobs))}",
        UnfitReason.NOT_ALLOWED: f"allows only {_listed(offer.allow_jobs)}",
    }
    return Obstacle(code=block, why=whys[block])


def _devices_obstacle(shape: PlacementShape, offer: NodeOffer) -> Obstacle | None:
    """Return what the devices lack, regardless of everything else."""
    count, backend = shape.device_count, shape.backend
    of_backend = [device for device in offer.devices if device.backend is backend]
    if len(of_backend) < count:
        code = UnfitReason.FEW_DEVICES if of_backend else UnfitReason.NO_DEVICE
        has = f"has {len(of_backend)}" if of_backend else "has none"
        why = f"needs {counted(count, f'{backend} device')}, {has}"
        return Obstacle(code=code, why=why, needed=count, left=len(of_backend))
    blocked = [one for device in of_backend if (one := device_obstacle(shape, device)) is not None]
    fitting = len(of_backend) - len(blocked)
    if fitting >= count:
        return None
    if count > 1:
        why = f"needs {count} devices at once, {fitting} are suitable now"
        return Obstacle(code=UnfitReason.FEW_DEVICES, why=why, needed=count, left=fitting)
    return min(blocked, key=_distance)


def _obstacle_of(shape: PlacementShape, device: DeviceOffer, block: UnfitReason) -> Obstacle:
    match block:
        case UnfitReason.CLOSED:
            return Obstacle(code=block, why=f"takes no jobs: {device.closed}", device=device.uuid)
        case UnfitReason.BACKEND:
            return Obstacle(code=block, why=f"is {device.backend}, not {shape.backend}", device=device.uuid)
        case UnfitReason.HELD:
            return Obstacle(code=block, why=_held_text(device), device=device.uuid)
        case UnfitReason.IN_USE:
            doing = "is on it" if device.jobs == 1 else "are on it"
            alone = f"and this job would need it exclusively: {_why_alone(shape, device)}"
            why = f"{counted(device.jobs, 'job')} {doing}, {alone}"
            return Obstacle(code=block, why=why, device=device.uuid)
        case UnfitReason.DEVICE_SLOTS:
            most = device.slots or 0
            why = f"all its slots are taken ({counted(device.jobs, 'job')})"
            left = max(0, most - device.jobs)
            return Obstacle(code=block, why=why, needed=1, left=left, device=device.uuid)
        case _:
            return _memory_obstacle(shape, device, block)


def _memory_obstacle(shape: PlacementShape, device: DeviceOffer, block: UnfitReason) -> Obstacle:
    if block is UnfitReason.ROOM:
        need, left = needed_bytes(shape, device), max(0, room_bytes(device))
        bound, kind = device.shared_bytes, "usable" if device.shared_bytes == device.usable_bytes else "measured free"
        needs, has, of = _sizes(need, left, bound)
        held = f"{format_size(device.promised_bytes)} promised to {counted(device.jobs, 'job')}"
        why = f"needs {needs}, {has} left of {of} {kind} ({held})"
        return Obstacle(code=block, why=why, needed=need, left=left, device=device.uuid)
    need, left = shape.vram_bytes, device.shared_bytes if shares(shape, device) else device.whole_bytes
    needs, has, of = _sizes(need, left, device.total_bytes)
    if left == device.total_bytes:
        why = f"needs {needs}, has {has}"
    elif device.free_bytes is not None:
        why = f"needs {needs}, {has} of {of} measured free"
    else:
        why = f"needs {needs}, {has} of {of} available: the system uses the same memory"
    return Obstacle(code=block, why=why, needed=need, left=left, device=device.uuid)


def _held_text(device: DeviceOffer) -> str:
    promised = f" ({format_size(device.promised_bytes)} promised)" if device.promised_bytes else ""
    return f"another job uses it exclusively{promised}"


def _why_alone(shape: PlacementShape, device: DeviceOffer) -> str:
    if shape.device_count > 1:
        return "jobs with several devices share none"
    if not shape.vram_bytes:
        return "the job has no memory requirement"
    if shape.vram_bytes > device.usable_bytes:
        return f"at most {format_size(device.usable_bytes)} of it can be shared"
    return "neither the job nor the machine allows sharing"


def _ram_obstacle(shape: PlacementShape, offer: NodeOffer) -> Obstacle | None:
    left = ram_left(offer)
    if left >= shape.ram_bytes or offer.ram_bytes is None:
        return None
    needs, has, of = _sizes(shape.ram_bytes, int(left), offer.ram_bytes)
    why = f"needs {needs} RAM, {has} left of {of}"
    return Obstacle(code=UnfitReason.RAM, why=why, needed=shape.ram_bytes, left=max(0, int(left)))


def _cores_obstacle(shape: PlacementShape, offer: NodeOffer) -> Obstacle | None:
    left = cores_left(offer)
    if left >= shape.cores or offer.cores is None:
        return None
    why = f"needs {counted(shape.cores, 'core')}, {int(left)} left of {offer.cores}"
    return Obstacle(code=UnfitReason.CORES, why=why, needed=shape.cores, left=max(0, int(left)))


def _slots_obstacle(shape: PlacementShape, offer: NodeOffer) -> Obstacle | None:
    left = max(0, slots_left(offer))
    if shape.takes_cpu or not offer.is_slot_per_device:
        if left:
            return None
        taken = "its slot is taken" if offer.slots == 1 else f"all {offer.slots} slots are taken"
        return Obstacle(code=UnfitReason.SLOTS, why=f"{taken} ({counted(offer.jobs, 'job')})", needed=1, left=0)
    # A slot for each idle device that would be used; devices in use have their slots.
    able = [device for device in offer.devices if device_block(shape, device) is None]
    needed = shape.device_count - sum(1 for device in able if device.jobs)
    if len(able) < shape.device_count or needed <= left:
        return None
    why = f"needs {counted(needed, 'slot')}, {left} left of {offer.slots} ({counted(offer.cpu_jobs, 'job')} on the CPU)"
    return Obstacle(code=UnfitReason.SLOTS, why=why, needed=needed, left=left)


def _distance(obstacle: Obstacle) -> tuple[float, bool]:
    """Return the sort key of obstacles of one job: the smallest missing part first."""
    if obstacle.missing is None or not obstacle.needed:
        return inf, obstacle.code is UnfitReason.CLOSED
    return obstacle.missing / obstacle.needed, False


def _sizes(needed: int, left: int, whole: int) -> tuple[str, str, str]:
    """Return sizes as text that shows the difference: in MiB where tenths of a GiB would be equal."""
    if format_size(needed) != format_size(left):
        return format_size(needed), format_size(left), format_size(whole)
    return f"{-(-needed // MIB)} MiB", f"{left // MIB} MiB", f"{whole // MIB} MiB"


def _listed(names: object) -> str:
    return ", ".join(sorted(names)) if isinstance(names, frozenset | set | tuple) else str(names)


def _speed_term(speed: float) -> ScoreTerm:
    return ScoreTerm(name="speed", value=speed)


def _load_term(jobs: int) -> ScoreTerm:
    return ScoreTerm(name="load", value=1 / (1 + jobs), text=f"1 / (1 + {jobs})" if jobs else "")
