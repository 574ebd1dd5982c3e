"""The search: which node is the best for a shape now, and what a job would get on one.

Routes are tried by the best that they could have, until none left could be better. What a job gets on a node is what
`fit.choose` says, found by what is known of the shape and the node's pools already.
"""

from __future__ import annotations

from stoker.model.requirements import Wish
from stoker.scheduler.fit import DevicePlacement, Placement, choose, slices_left
from stoker.scheduler.layout import Home, Layout
from stoker.scheduler.node_state import DeviceUsage
from stoker.scheduler.routes import Found, Ranks, ShapeRoutes, plan_routes
from stoker.scheduler.score import Key, cpu_score, shared_score


def best_node(ask: ShapeRoutes, layout: Layout) -> int | None:
    """Give the order of the node where a job of this shape had best start now; nothing if there is none."""
    if ask.version != layout.version:
        plan_routes(ask, layout)
    wish = ask.shape.wish
    if wish is Wish.NEVER:
        found = _on_cpu(ask)
    elif wish is Wish.REQUIRE:
        found = _on_devices(ask)
    elif ask.shape.is_advised_against:
        found = _on_cpu(ask) or _on_devices(ask)
    else:
        found = _on_devices(ask) or _on_cpu(ask)
    return None if found is None else found[1]


def choose_on(ask: ShapeRoutes, home: Home, layout: Layout) -> Placement | None:
    """Give what `fit.choose` gives for this shape and node, sooner."""
    shape = ask.shape
    ram, cores = home.gate
    if ram < shape.ram_bytes or cores < shape.cores or home.seat.closed:
        return None
    if len(home.groups) > 1:
        return choose(shape, home.seat)
    ranks = ask.ranks(home.policy, layout.known.host_lists)
    if ranks is None:
        return None
    wish = shape.wish
    on_devices = _devices_on(ask, home, ranks) if wish is not Wish.NEVER and home.groups else None
    if wish is Wish.REQUIRE or (on_devices is not None and not shape.is_advised_against):
        return on_devices
    return _cpu_on(ask, home, ranks) or on_devices


def _on_devices(ask: ShapeRoutes) -> Found | None:
    shape = ask.shape
    best: Found | None = None
    for beside in ask.sharing:
        best = _better(best, beside.find_beside_base(shape))
    for route in ask.devices:
        if best is not None and route.bound < best[0]:
            break
        best = _better(best, route.find(shape))
    return best


def _on_cpu(ask: ShapeRoutes) -> Found | None:
    best: Found | None = None
    for route in ask.cpu:
        if best is not None and route.bound < best[0]:
            break
        best = _better(best, route.find(ask.shape))
    return best


def _better(one: Found | None, other: Found | None) -> Found | None:
    """Give the better of two; of equally good ones the node that comes first."""
    if one is None or other is None:
        return one or other
    if one[0] == other[0]:
        return one if one[1] <= other[1] else other
    return one if one[0] > other[0] else other


def _devices_on(ask: ShapeRoutes, home: Home, ranks: Ranks) -> Placement | None:
    seat = home.seat
    slots = seat.slots - seat.slots_held
    pool, devices = home.groups[0]
    is_shared, score = ask.terms(pool.kind)
    if is_shared:
        return _shared_on(ask, devices, ranks, slots) if slots > 0 or seat.is_slot_per_device else None
    count = ask.shape.device_count
    if not score or (count > slots if seat.is_slot_per_device else slots < 1):
        return None
    need = ask.shape.vram_bytes
    chosen: list[DevicePlacement] = []
    for at, device in enumerate(devices):
        if not device.jobs and device.admits >= need and not device.closed:
            chosen.append(DevicePlacement(at, False, False, score))
            if len(chosen) == count:
                return Placement(tuple(chosen), Key(ranks.on_devices, score))
    return None


def _shared_on(ask: ShapeRoutes, devices: list[DeviceUsage], ranks: Ranks, slots: int) -> Placement | None:
    base, need_alone, increment = ask.base, ask.shape.vram_bytes, ask.increment_bytes
    best_at, best_score, best_resident = -1, -1.0, False
    for at, device in enumerate(devices):
        jobs = device.jobs
        if device.is_held or device.closed or (slots < 1 and not jobs):
            continue
        is_resident = base is not None and base in device.bases
        need, room = increment if is_resident else need_alone, device.shared_bytes - device.promised_bytes
        if need > room or (device.slots is not None and jobs >= device.slots) or best_resident > is_resident:
            continue
        score = shared_score(room, need, device.speed, jobs)
        if score > best_score or is_resident > best_resident:
            best_at, best_score, best_resident = at, score, is_resident
    if best_at < 0:
        return None
    rank = ranks.on_devices_fitting if best_resident else ranks.on_devices
    return Placement((DevicePlacement(best_at, True, best_resident, best_score),), Key(rank, best_score))


def _cpu_on(ask: ShapeRoutes, home: Home, ranks: Ranks) -> Placement | None:
    seat = home.seat
    if seat.slots_held >= seat.slots:
        return None
    score = cpu_score(slices_left(seat), ask.need_slices, seat.jobs)
    return Placement((), Key(ranks.on_cpu if seat.devices else ranks.on_cpu_fitting, score))
