"""The devices that programs started from here may use, found with as few questions as will do.

Where nothing speaks for a device, nobody is asked and next to nothing imported: every run of a program pays for this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stoker.core.device import Device
from stoker.devices.probes.readers import KernelFiles, look

if TYPE_CHECKING:
    from stoker.host.command_runner import CommandRunner


def devices_here(
    environment: Mapping[str, str], *, ask: Callable[[], CommandRunner], files: str = "/"
) -> tuple[Device, ...]:
    """Return them; `files` is the root below which the kernel's files are looked up.

    Raises what a bad or forbidden `STOKER_GPU_FAKE` raises, and nothing else.
    """
    if not look(KernelFiles(files), environment, {}).is_of_devices:
        return ()
    from stoker.devices.probes import amd, nvidia, others  # noqa: PLC0415 - see above
    from stoker.devices.probes.inventory import find_devices  # noqa: PLC0415 - see above

    quick = frozenset({nvidia.NVML, amd.AMD_SMI, amd.ROCM_SMI, others.SYSTEM_PROFILER})
    found = find_devices(environment, ask=ask(), files=files, witnesses=quick)
    if any(one.total_bytes is None for one in found.devices):
        found = find_devices(environment, ask=ask(), files=files, witnesses=quick | {nvidia.NVIDIA_SMI})
    return tuple(one for one in found.devices if one.may_be_used)
