"""This machine's name, its user, and the devices that programs started here may use, found with few commands.

Every command imports this module, so what it needs for devices is imported when it is used. Where nothing indicates a
device, no program is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.core.device import Device
    from stoker.host.command_runner import CommandRunner

HOST_VARIABLE = "FLEET_HOST_ID"


def host_name(environment: Mapping[str, str], override: str = "") -> tuple[str, str]:
    """Return this machine's name and its source: the override, else FLEET_HOST_ID, else the host name."""
    if override:
        return override, "as asked"
    if named := environment.get(HOST_VARIABLE, "").strip():
        return named, HOST_VARIABLE
    # What `socket.gethostname` returns, without the 4 ms that importing `socket` takes.
    return os.uname().nodename, "hostname"


def submitter_name(environment: Mapping[str, str]) -> str:
    """Return `user@host` of this process, as the coordinator records it. Not authenticated."""
    return f"{user_name()}@{host_name(environment)[0]}"


def user_name() -> str:
    """Return this user's name; a placeholder if the system has none."""
    import getpass  # noqa: PLC0415 - see above

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def devices_here(
    environment: Mapping[str, str], *, ask: Callable[[], CommandRunner], files: str = "/"
) -> tuple[Device, ...]:
    """Return the devices; `files` is the root below which the kernel's files are looked up.

    Raises what a bad or forbidden `STOKER_GPU_FAKE` raises, and nothing else.
    """
    from stoker.devices.probes.readers import KernelFiles, look  # noqa: PLC0415 - see above

    if not look(KernelFiles(files), environment, {}).is_of_devices:
        return ()
    from stoker.devices.probes.inventory import QUICK_PROBES, find_devices  # noqa: PLC0415 - see above
    from stoker.devices.probes.nvidia import NVIDIA_SMI  # noqa: PLC0415 - see above

    found = find_devices(environment, ask=ask(), files=files, probes=QUICK_PROBES)
    if any(one.total_bytes is None for one in found.devices):
        found = find_devices(environment, ask=ask(), files=files, probes=QUICK_PROBES | {NVIDIA_SMI})
    return tuple(one for one in found.devices if one.may_be_used)
