"""What a job that waits for a machine keeps from jobs of lower priority there.

A job waits for a machine if it would fit there with nothing else running and no machine could take it now, but for
those that have just declined something. Of what is free it keeps as much as it needs, of every amount: a lower one may
only use the rest. If it lacks devices, it keeps every device that it could have, free or not; if it lacks a slot, it
keeps the whole machine, since each job that ends may be the one that it waits for.

This takes from a copy of the machine. Whether a lower one fits the rest is again asked of the rule.
"""

from __future__ import annotations

from stoker.model.frozen import changed
from stoker.scheduler.fit import choose, device_block, slots_left
from stoker.scheduler.node_state import NodeUsage
from stoker.scheduler.shapes import Shape

KEPT = "kept"
"""Why a job does not start that would fit: somebody of higher priority waits for what it would take."""


def reserve(shape: Shape, scratch: NodeUsage, idle: NodeUsage) -> None:
    """Take from a copy of a machine what a job keeps there; `idle` is the machine with no job of ours on it."""
    choice = choose(changed(shape, ram_bytes=0, cores=0), scratch)
    if choice is not None:
        # It lacks RAM or cores: all there is of them, and the place that it would have.
        scratch.take(shape, choice)
        return
    if not _has_slots(shape, scratch):
        scratch.closed = KEPT
        return
    scratch.ram_held_bytes += shape.ram_bytes
    scratch.cores_held += shape.cores
    scratch.slots_held += not scratch.is_slot_per_device
    for device, free in zip(scratch.devices, idle.devices, strict=True):
        if device_block(shape, free) is None:
            device.closed = KEPT
            # Those that are in use bring their slot with them when they are free.
            scratch.slots_held += scratch.is_slot_per_device and not device.jobs


def _has_slots(shape: Shape, scratch: NodeUsage) -> bool:
    """Say whether slots are what is not lacking."""
    left = slots_left(scratch)
    if shape.takes_cpu or not scratch.is_slot_per_device:
        return left > 0
    able = [device for device in scratch.devices if device_block(shape, device) is None]
    return len(able) < shape.device_count or left >= shape.device_count - sum(1 for device in able if device.jobs)
