"""What one run may hand out on this machine: cores, memory, named GPU slots.

Only counts and names, found without any GPU library: devices are the driver's own list, filtered by the visible-device
variable (set but empty means none). What a device really has is the business of probes to come.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stoker.hardware.admission import floor_bytes
from stoker.host.disk import memory_total_bytes, usable_cores
from stoker.model.resources import Capacity

_NVIDIA = "/proc/driver/nvidia/gpus"


def capacity_here(environment: Mapping[str, str], *, driver_folder: str = _NVIDIA) -> Capacity:
    """Give what stages of one run may hold together; memory leaves the floor of min(6 GiB, a tenth) to the machine."""
    total = memory_total_bytes() or 0
    return Capacity(
        cpu=usable_cores(),
        gpus=visible_gpus(environment.get("CUDA_VISIBLE_DEVICES"), driver_folder),
        memory_bytes=total - floor_bytes(total),
    )


def visible_gpus(visible: str | None, driver_folder: str) -> tuple[str, ...]:
    """Name the GPU slots: all of the driver's devices by index, or those that the variable lists."""
    try:
        count = len(os.listdir(driver_folder))
    except OSError:
        count = 0
    if visible is None:
        return tuple(str(index) for index in range(count))
    names: list[str] = []
    for name in (part.strip() for part in visible.split(",") if part.strip()):
        # As CUDA reads it: an index that is none, such as -1, hides itself and everything after it.
        if name.lstrip("-").isdecimal() and not 0 <= int(name) < count:
            break
        if name not in names:
            names.append(name)
    return tuple(names[:count])
