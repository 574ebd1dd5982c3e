"""Devices and RAM in a few words: what there is, and how much of it is free."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.capability import Capability
from stoker.model.devices import Device
from stoker.model.resources import GIB
from stoker.model.units import format_size

# What every card of a maker is called says nothing.
_NOISE = ("NVIDIA GeForce ", "NVIDIA ", "AMD Radeon ", "AMD ")
_MOST_LISTED = 3


def devices_text(devices: Sequence[Device]) -> str:
    """Say which devices there are: `RTX 4090, 23.1 of 24.0 GiB free`; equal ones together."""
    kinds: dict[tuple[str, int | None], list[Device]] = {}
    for device in devices:
        kinds.setdefault((short_name(device), device.total_bytes), []).append(device)
    return ", ".join(_kind_text(name, total, alike) for (name, total), alike in kinds.items())


def ram_text(capability: Capability) -> str:
    """Say how much RAM a machine has: `20.0 GiB of 32.0 GiB free`, as far as anybody knows."""
    total, available = capability.ram_total_bytes, capability.ram_available_bytes
    if total is None:
        return "unknown"
    return format_size(total) if available is None else f"{format_size(available)} of {format_size(total)} free"


def short_name(device: Device) -> str:
    """Give a device's name without its maker's."""
    for noise in _NOISE:
        if device.name.startswith(noise):
            return device.name.removeprefix(noise)
    return device.name or str(device.backend)


def _kind_text(name: str, total_bytes: int | None, alike: Sequence[Device]) -> str:
    what = f"{len(alike)} x {name}" if len(alike) > 1 else name
    if total_bytes is None:
        return what
    free = [device.free_bytes for device in alike if device.free_bytes is not None]
    if len(free) < len(alike):
        return f"{what}, {_gib(total_bytes)} GiB"
    shown = [_gib(one) for one in free]
    if len(set(shown)) == 1:
        told = shown[0]
    elif len(shown) <= _MOST_LISTED:
        told = f"{', '.join(shown[:-1])} and {shown[-1]}"
    else:
        told = f"{_gib(min(free))} to {_gib(max(free))}"
    return f"{what}, {told} of {_gib(total_bytes)} GiB free"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f}"
