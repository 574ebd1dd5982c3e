"""Who is believed, written down once: the order of witnesses, and the fields for which another order is right.

Only data. `merging` goes by it, and tests check that every witness has its place.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.devices import MIB

WITNESSES = (
    "nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kfd", "torch", "kernel", "pci",
)  # fmt: skip
"""Whoever names devices, the most trusted first."""

BY_FIELD: Mapping[str, tuple[str, ...]] = {
    # A board's name says more than that of the GPU inside it; the compute driver and the bus know only numbers.
    "name": (
        "jetson", "nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "torch", "kernel", "kfd", "pci",
    ),
    # ROCm counts as its driver does. What torch calls 0 depends on what is hidden from it.
    "index": ("nvml", "nvidia-smi", "kfd", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kernel"),
    # torch sees less than the whole, and has taken some itself.
    "total_bytes": ("nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kfd", "torch"),
    "free_bytes": ("nvml", "nvidia-smi", "rocm-smi", "kfd", "torch"),
}  # fmt: skip

COMPARED: Mapping[str, tuple[str, ...]] = {
    # Each of these takes the name from the same place in the driver.
    "name": ("nvml", "nvidia-smi", "kernel", "torch"),
    "total_bytes": ("nvml", "nvidia-smi", "amd-smi", "rocm-smi", "kfd", "torch"),
    "count": ("nvml", "nvidia-smi"),
}
"""Between whom a difference means that something is wrong."""

SAME_BYTES = 64 * MIB
"""Two totals that differ by no more are the same."""
UNTOLD_PERCENT = 3
"""How much of the total a driver may keep for itself where nobody says how much it is."""

UNIFIED_FRAGMENTS = ("jetson", "orin", "tegra", "gb10", "digits", "thor")
"""Parts of the names of devices that work in the machine's own memory."""


def order_of(field: str) -> tuple[str, ...]:
    """Give who is believed about a field, the most trusted first."""
    return BY_FIELD.get(field, WITNESSES)
