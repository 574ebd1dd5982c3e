"""What fits on one device: the only rule for it. Pure.

The scheduler (`scheduler.fit`), the ledger of a machine (`ledger.ledger_rules`), the check of a plan before it starts
(`engine.ledger_gate`) and a worker's second look, which both ask the ledger, call these functions. They know
different things, and what they know is an argument: a coordinator knows what it promised and what was measured last, a
ledger knows what all processes of the machine were promised and what the driver measures now.

A job has a device alone unless sharing is allowed, the job declares its memory, and that much of the device may be
shared. Jobs that share are promised at most the usable part of a device together; a base model counts once.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.core.device import MemoryType, usable_bytes


class DeviceBlock(StrEnum):
    """Why a job can't use a device."""

    TOO_SMALL = "too_small"
    """It needs more than the device has for it, whatever our jobs hold."""
    HELD = "held_alone"
    """Another job has the device alone."""
    IN_USE = "in_use"
    """The job would have it alone, and other jobs are on it."""
    DEVICE_SLOTS = "device_slots"
    """As many jobs share it as may."""
    ROOM = "room"
    """What is promised to the jobs on it leaves too little."""


def block_on(  # noqa: PLR0913 - a record of them would be made for every device of every machine
    vram_bytes: int,
    added_bytes: int,
    *,
    is_shared: bool,
    most_bytes: int,
    promised_bytes: int,
    jobs: int,
    is_held: bool,
    slots: int | None,
) -> DeviceBlock | None:
    """Return why a job can't use a device; `None` if it can.

    Args:
        vram_bytes: What the job declares; 0 if it declares nothing.
        added_bytes: What it would add to a shared device (`added_bytes`).
        is_shared: Whether it would share the device (`shares`).
        most_bytes: What the device has for it: `shared_bytes` or `alone_bytes`.
        promised_bytes: What the jobs on the device were promised together.
        jobs: How many they are.
        is_held: Whether one of them has it alone.
        slots: How many jobs may share it; `None`: as many as its memory takes.

    """
    if vram_bytes > most_bytes:
        return DeviceBlock.TOO_SMALL
    if is_held:
        return DeviceBlock.HELD
    if not is_shared:
        return DeviceBlock.IN_USE if jobs else None
    if slots is not None and jobs >= slots:
        return DeviceBlock.DEVICE_SLOTS
    return DeviceBlock.ROOM if added_bytes > most_bytes - promised_bytes else None


def shares(vram_bytes: int, usable_bytes: int, *, is_allowed: bool) -> bool:
    """Return whether a job shares a device on which sharing is allowed to it; else it has the device alone.

    A job that is too large to share has it alone, and so has one that does not declare its memory.
    """
    return is_allowed and 0 < vram_bytes <= usable_bytes


def alone_bytes(total_bytes: int, memory_type: MemoryType, free_bytes: int | None) -> int:
    """Return what a device has for a job that has it alone.

    `free_bytes` is the measured free memory, with what our own jobs hold counted as free. If it is `None`, not
    measured, that is all of the device, or the usable part where the machine works in the same memory.
    """
    if free_bytes is not None:
        return min(total_bytes, free_bytes)
    return total_bytes if memory_type is MemoryType.DISCRETE else usable_bytes(total_bytes, memory_type)


def shared_bytes(total_bytes: int, memory_type: MemoryType, free_bytes: int | None) -> int:
    """Return what a device has for all jobs that share it together; `free_bytes` as in `alone_bytes`."""
    return min(usable_bytes(total_bytes, memory_type), alone_bytes(total_bytes, memory_type, free_bytes))


def added_bytes(vram_bytes: int, base_bytes: int, resident_bytes: int) -> int:
    """Return what a job adds to what the jobs on a shared device were promised together.

    `base_bytes` of its memory are its base model, of which `resident_bytes` are there already. The largest size that
    any job states for a base model counts.
    """
    return vram_bytes - min(vram_bytes, base_bytes, resident_bytes)
