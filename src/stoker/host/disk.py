"""How much of this computer there is for us: disk, memory, processors.

Within a container its limits count, not the machine's. Memory that can't be read is `None`, never a guess.
Accelerators are the affair of `hardware`.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress

from stoker.host.cgroup import cpu_quota, memory_uses
from stoker.host.durable import StrPath, translated
from stoker.model.errors import NoSpace
from stoker.model.units import format_size

SPARE_BYTES = 50 * 1024 * 1024
"""What must stay free on the disk beside the bytes that are still to come."""


def free_bytes(path: StrPath) -> int:
    """Give what an ordinary user may still write where `path` is, or will be once its folders are made."""
    with translated(path):
        status = os.statvfs(existing_above(path))
    return status.f_bavail * status.f_frsize


def existing_above(path: StrPath) -> str:
    """Give the path itself, absolute, or the nearest folder above it that is there."""
    place = os.path.abspath(path)
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return place


def has_space(coming_bytes: int, free: int, *, spare_bytes: int = SPARE_BYTES) -> bool:
    """Say whether so many bytes fit with something to spare; nothing to come always fits."""
    return coming_bytes == 0 or coming_bytes + spare_bytes <= free


def check_space(
    what: str,
    path: StrPath,
    *,
    coming_bytes: int | None,
    free: int,
    spare_bytes: int = SPARE_BYTES,
    hint: str = "free some space there, or choose another place",
) -> None:
    """Refuse what has no room where `path` is. Raises `NoSpace`; of an unknown size only the spare must be free."""
    fits = free >= spare_bytes if coming_bytes is None else has_space(coming_bytes, free, spare_bytes=spare_bytes)
    if fits:
        return
    needed_bytes = (coming_bytes or 0) + spare_bytes
    spare = f" with {format_size(spare_bytes)} to spare" if spare_bytes else ""
    name = os.fspath(path)
    raise NoSpace(
        f"no space for {what}: {format_size(needed_bytes)} needed{spare}, {format_size(free)} free in {name}",
        hint=hint,
        path=name,
        needed_bytes=needed_bytes,
        free_bytes=free,
    )


def folder_bytes(path: StrPath) -> int:
    """Add up the files at or below a path; links are not followed, and a file with several names counts once."""
    try:
        info = os.lstat(path)
    except OSError:
        return 0
    if not stat.S_ISDIR(info.st_mode):
        return info.st_size
    total = 0
    seen: set[tuple[int, int]] = set()
    waiting = [os.fspath(path)]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:
            # Gone meanwhile, or not for us to look into.
            continue
        with entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    info = entry.stat(follow_symlinks=False)
                    if info.st_nlink > 1:
                        if (info.st_dev, info.st_ino) in seen:
                            continue
                        seen.add((info.st_dev, info.st_ino))
                    total += info.st_size
    return total


def memory_total_bytes(proc: str = "/proc") -> int | None:
    """Give the memory of this machine, or of the container we are in."""
    totals = [use.limit_bytes for use in memory_uses(proc)]
    machine = _meminfo("MemTotal", proc) or _physical_bytes()
    return min([machine, *totals]) if machine is not None else None


def memory_available_bytes(proc: str = "/proc") -> int | None:
    """Give what can be used now without pushing anybody out."""
    rooms = [max(0, use.limit_bytes - use.used_bytes) for use in memory_uses(proc)]
    machine = _meminfo("MemAvailable", proc)
    if machine is None:
        # Kernels before 3.14 do not say; what nobody uses at all is the least that can be used.
        machine = _meminfo("MemFree", proc)
    if machine is None and sys.platform == "darwin":
        from stoker.host.mac_memory import mac_available_bytes  # noqa: PLC0415 - it loads subprocess

        machine = mac_available_bytes()
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
