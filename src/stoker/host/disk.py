"""How much of this computer there is for us: disk, memory, processors.

Within a container its limits count, not the machine's. Memory that can't be read is `None`, never a guess.
Accelerators are the affair of `hardware`.
"""

from __future__ import annotations

import os
import sys

from stoker.host.cgroup import cpu_quota, memory_uses
from stoker.host.durable import StrPath, translated


def free_bytes(path: StrPath) -> int:
    """Give what an ordinary user may still write where `path` is, or will be once its folders are made."""
    place = os.path.abspath(path)
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    with translated(path):
        status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def memory_total_bytes(proc: str = "/proc") -> int | None:
    """Give the memory of this machine, or of the container we are in."""
    totals = [use.limit_bytes for use in memory_uses(proc)]
    machine = _meminfo("MemTotal", proc) or _physical_bytes()
    return min([machine, *totals]) if machine is not None else None


def memory_available_bytes(proc: str = "/proc") -> int | None:
    """Give what can be used now without pushing anybody out; on macOS (untested) it is not known."""
    rooms = [max(0, use.limit_bytes - use.used_bytes) for use in memory_uses(proc)]
    machine = _meminfo("MemAvailable", proc)
    return min([machine, *rooms]) if machine is not None else None


def usable_cores(proc: str = "/proc") -> int:
    """Give how many processors we may keep busy: those we are bound to, less what a quota takes away; at least one."""
    cores = _bound_cores()
    quota = cpu_quota(proc)
    # Rounded down: half a processor slows down whatever shares it.
    return max(1, cores if quota is None else min(cores, int(quota)))


if sys.platform == "linux":

    def _bound_cores() -> int:
        return len(os.sched_getaffinity(0))

else:

    def _bound_cores() -> int:
        return os.cpu_count() or 1


def _meminfo(name: str, proc: str) -> int | None:
    try:
        with open(f"{proc}/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
