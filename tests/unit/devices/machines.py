"""Machines for tests: devices and capabilities of any shape, in a line."""

from __future__ import annotations

from typing import Any

from stoker.core.capability import Capability
from stoker.core.device import GIB, Backend, Device, TriState, TriStateAnswer
from stoker.devices.probes.observations import usable_backends

YES = TriStateAnswer(verdict=TriState.YES)
NO = TriStateAnswer(verdict=TriState.NO, why="CUDA_VISIBLE_DEVICES is empty")
UNKNOWN = TriStateAnswer(verdict=TriState.UNKNOWN)


def device(number: int = 0, *, total_gib: float | None = 24.0, free_gib: float | None = 23.0, **more: Any) -> Device:
    return Device(
        **{
            "uuid": f"GPU-{number}",
            "backend": Backend.CUDA,
            "name": f"Card {number}",
            "index": number,
            "total_bytes": None if total_gib is None else int(total_gib * GIB),
            "free_bytes": None if free_gib is None else int(free_gib * GIB),
            "installed": YES,
            "visible": YES,
            "usable": YES,
            **more,
        }
    )


def capability(*devices: Device, **more: Any) -> Capability:
    return Capability(
        **{
            "hostname": "desk",
            "os": "Linux 6.1",
            "arch": "x86_64",
            "cpu_cores": 8,
            "cpu_threads": 16,
            "ram_total_bytes": 32 * GIB,
            "ram_available_bytes": 20 * GIB,
            "devices": devices,
            "backends": usable_backends({one.backend: "12.4" for one in devices}, devices),
            **more,
        }
    )
