"""The variables by which a process sees the devices it was given, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.model.devices import Backend, Device

VRAM_BYTES = "STOKER_VRAM_BYTES"
"""How much of each of its devices a process that shares them may take."""
HIDDEN: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ""}
"""What a process gets that was given no device: HIP reads the same variable."""


def device_variables(
    devices: Sequence[Device], environment: Mapping[str, str], *, vram_bytes: int | None = None
) -> dict[str, str]:
    """Name devices for a process that is about to start; `vram_bytes` is its share of each, if it has no more.

    CUDA's go by UUID, which no other card ever has. HIP takes numbers only, and counts what ROCR_VISIBLE_DEVICES left
    over; where that is set it is set anew, so that the numbers mean the same cards.
    """
    variables = {VRAM_BYTES: str(vram_bytes)} if vram_bytes else {}
    cuda = [device.uuid for device in devices if device.backend is Backend.CUDA]
    hip = [device.uuid if device.index is None else str(device.index) for device in devices if _is_hip(device)]
    if not hip:
        return {**variables, "CUDA_VISIBLE_DEVICES": ",".join(cuda)}
    if "ROCR_VISIBLE_DEVICES" in environment:
        variables["ROCR_VISIBLE_DEVICES"] = ",".join(hip)
        hip = [str(place) for place in range(len(hip))]
    variables["HIP_VISIBLE_DEVICES"] = ",".join(hip)
    if cuda or "CUDA_VISIBLE_DEVICES" in environment:
        # HIP reads it as well: the two must not contradict each other.
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(cuda or hip)
    return variables


def _is_hip(device: Device) -> bool:
    return device.backend is Backend.ROCM
