"""The GPUs of this machine under the numbers that a rank's process has for them, found without touching one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.core.device import Backend, Device
from stoker.devices.devices_here import devices_here
from stoker.host.command_runner import SubprocessRunner


def cuda_here(environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Return them; the place in the answer is the number. Asks the driver in a throwaway child."""
    found = devices_here(environment, ask=lambda: SubprocessRunner(environment))
    return as_numbered(found, environment.get("CUDA_VISIBLE_DEVICES"))


def as_numbered(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """Put CUDA's devices into the order in which a program sees them under `CUDA_VISIBLE_DEVICES`."""
    mine = sorted(
        (device for device in devices if device.backend is Backend.CUDA),
        key=lambda device: (device.index is None, device.index),
    )
    if visible is None:
        return tuple(mine)
    named = [word.strip() for word in visible.split(",")]
    chosen = []
    for word in named:
        match = next((device for device in mine if _is_meant(device, word)), None)
        if match is None:
            # CUDA stops at the first that it does not know.
            break
        chosen.append(match)
    return tuple(chosen)


def _is_meant(device: Device, word: str) -> bool:
    return str(device.index) == word or (len(word) > len("GPU-") and device.uuid.startswith(word))
