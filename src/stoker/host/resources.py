"""Disk, memory and processors of this computer that we may use.

In a container its limits count, not the machine's. Memory that can't be read is `None`, never a guess. Accelerators
are in `devices`.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from stoker.core.errors import NoSpace
from stoker.core.frozen import frozen
from stoker.core.text import format_size, lazy_pattern
from stoker.host.durable import StrPath, translated

# Limits that a container or a service puts on us, read from the kernel's control groups, versions 1 and 2.
#
# A limit may be set at any level above us; the smallest counts. What is missing or can't be read means "no limit": this
# only narrows what the machine itself has. Reads only; `containment` makes groups and sets limits.

# Version 1 says "no limit" with the largest multiple of a page that fits.
_NO_LIMIT_BYTES = 1 << 62


class MemoryUse(NamedTuple):
    """One level's limit and the memory that can't be reclaimed."""

    limit_bytes: int
    used_bytes: int


def cpu_quota(proc: str = "/proc") -> float | None:
    """Return how many processors' worth of time we may use, or `None` if there is no quota."""
    quotas = [quota for folder, version in _levels("cpu", proc) if (quota := _cpu_quota(folder, version)) is not None]
    return min(quotas, default=None)


def memory_uses(proc: str = "/proc") -> list[MemoryUse]:
    """Return every level above us that limits memory."""
    return [use for folder, version in _levels("memory", proc) if (use := _memory_use(folder, version)) is not None]


def own_group(controller: str, version: int, proc: str = "/proc", *, of: int | str = "self") -> str | None:
    """Return the folder of the group that we, or another process, are in; `None` if it is not visible."""
    folders = (folder for folder, found in _levels(controller, proc, of) if found == version)
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def group_at(path: str, proc: str = "/proc") -> str | None:
    """Return the folder of a version 2 group by a path from elsewhere; `None` if it is not visible."""
    mounts = (mount for mount in _mounts(proc) if mount[0] == 2)
    folders = (next(_upwards(mount_point, _below(root, path))) for _, _, root, mount_point in mounts)
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def _cpu_quota(folder: str, version: int) -> float | None:
    if version == 2:
        quota, period = [*_words(f"{folder}/cpu.max"), "", ""][:2]
    else:
        quota, period = _first_word(f"{folder}/cpu.cfs_quota_us"), _first_word(f"{folder}/cpu.cfs_period_us")
    # "max" or -1 mean none.
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory_use(folder: str, version: int) -> MemoryUse | None:
    limit_name, used_name = _MEMORY_FILES[version]
    limit, used = _first_word(f"{folder}/{limit_name}"), _first_word(f"{folder}/{used_name}")
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
        return None
    words = _words(f"{folder}/memory.stat")
    statistics = dict(zip(words[::2], words[1::2], strict=False))
    # Inactive file pages are reclaimed before a process is killed.
    spare = statistics.get("total_inactive_file" if version == 1 else "inactive_file", "0")
    return MemoryUse(limit_bytes=int(limit), used_bytes=max(0, int(used) - int(spare)))


_MEMORY_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def _levels(controller: str, proc: str, of: int | str = "self") -> Iterator[tuple[str, int]]:
    """Return the folders of a process's group and of those above it, each with its version."""
    mounts = list(_mounts(proc))
    for line in _lines(f"{proc}/{of}/cgroup"):
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_version, options, root, mount_point in mounts:
            if mount_version == version and (version == 2 or controller in options):
                yield from ((folder, version) for folder in _upwards(mount_point, _below(root, path)))


def _mounts(proc: str) -> Iterator[tuple[int, Sequence[str], str, str]]:
    for line in _lines(f"{proc}/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            root, mount_point = before.split(" ")[3:5]
            yield (1 if kind == "cgroup" else 2), options.split(","), root, mount_point


def _below(root: str, path: str) -> str:
    """Return our group relative to what is mounted: a container sees a part of the tree, or gets the host's path."""
    if root == "/":
        return path
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""


def _upwards(mount_point: str, path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
    for count in range(len(parts), -1, -1):
        yield os.path.join(mount_point, *parts[:count])


def _first_word(path: str) -> str:
    return next(iter(_words(path)), "")


def _words(path: str) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


SPARE_BYTES = 50 * 1024 * 1024
"""Disk space that must stay free beside the bytes to come."""


def free_bytes(path: StrPath) -> int:
    """Return what an unprivileged user may still write where `path` is, or will be once its folders are made."""
    with translated(path):
        status = os.statvfs(existing_above(path))
    return status.f_bavail * status.f_frsize


def existing_above(path: StrPath) -> str:
    """Return the path itself, absolute, or the nearest existing folder above it."""
    place = os.path.abspath(path)
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return place


def device_of(path: StrPath) -> int:
    """Return the number of the file system of a path that may not exist yet."""
    return os.stat(existing_above(path)).st_dev


def has_space(coming_bytes: int, free: int, *, spare_bytes: int = SPARE_BYTES) -> bool:
    """Return True if so many bytes fit with a reserve; zero bytes always fit."""
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
    """Raise `NoSpace` if the bytes do not fit where `path` is; of an unknown size only the reserve must be free."""
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


def folder_bytes(path: StrPath, *, counts_shared: bool = True) -> int:
    """Add up the files at or below a path; links are not followed, and a file with several names counts once.

    Without `counts_shared` it does not count at all: another folder has its bytes, too.
    """
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
            # Removed meanwhile, or not readable.
            continue
        with entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    info = entry.stat(follow_symlinks=False)
                    if info.st_nlink > 1:
                        if not counts_shared or (info.st_dev, info.st_ino) in seen:
                            continue
                        seen.add((info.st_dev, info.st_ino))
                    total += info.st_size
    return total


def memory_total_bytes(proc: str = "/proc") -> int | None:
    """Return the memory of this machine, or of the container we are in."""
    totals = [use.limit_bytes for use in memory_uses(proc)]
    machine = _meminfo("MemTotal", proc) or _physical_bytes()
    return min([machine, *totals]) if machine is not None else None


def memory_available_bytes(proc: str = "/proc") -> int | None:
    """Return the memory that can be used now without swapping."""
    rooms = [max(0, use.limit_bytes - use.used_bytes) for use in memory_uses(proc)]
    machine = _meminfo("MemAvailable", proc)
    if machine is None:
        # Kernels before 3.14 do not report it; unused memory is the least that can be used.
        machine = _meminfo("MemFree", proc)
    if machine is None and sys.platform == "darwin":
        machine = mac_available_bytes()
    return min([machine, *rooms]) if machine is not None else None


def usable_cores(proc: str = "/proc") -> int:
    """Return how many processors we may keep busy: those of our affinity, less a quota; at least one."""
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


_OCTAL = lazy_pattern(r"\\([0-7]{3})")


@frozen
class FileSystem:
    """The file system of a path: its type, free space, whether it is writable.

    Nothing is created: for a missing folder, the nearest existing one above it counts.
    """

    type: str
    """Empty if unknown."""
    mount_point: str
    total_bytes: int
    free_bytes: int
    """For an ordinary user."""
    is_read_only: bool
    is_writable: bool
    """We may make files where the path is, or will be."""


NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "glusterfs", "gpfs", "fuse.sshfs", "beegfs"}
)
"""Their locks, renames and devices belong to another machine."""


def file_system_of(path: str, proc: str = "/proc") -> FileSystem:
    """Return the file system of a path. Raises `OSError`."""
    place = os.path.realpath(existing_above(path))
    status = os.statvfs(place)
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mount_point, kind = mount_of(file.read(), place)
    except OSError:
        mount_point, kind = "", ""
    return FileSystem(
        type=kind,
        mount_point=mount_point,
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
        is_writable=os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK),
    )


def mount_of(mountinfo: str, path: str) -> tuple[str, str]:
    """Return mount point and type for a path, from the kernel's list: the deepest, of several the latest."""
    found = ("", "")
    for line in mountinfo.splitlines():
        before, _, behind = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not behind:
            continue
        point = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(found[0]):
            found = (point, behind.split(" ")[0])
    return found


# Free memory of a Mac, as its vm_stat counts it. Written from published outputs; untested on a Mac.

_PROGRAM = "/usr/bin/vm_stat"
_LIMIT_S = 2.0
_PAGE = lazy_pattern(r"page size of (\d{1,9}) bytes")
_COUNT = lazy_pattern(r"^Pages (free|inactive|speculative):\s+(\d{1,15})\.?\s*$", re.MULTILINE)


def mac_available_bytes() -> int | None:
    """Return the memory that can be used now without swapping; nothing without a reply within 2 s."""
    import subprocess  # noqa: PLC0415 - on a Mac only

    try:
        result = subprocess.run([_PROGRAM], capture_output=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return read_vm_stat(result.stdout.decode("utf-8", "replace"))


def read_vm_stat(text: str) -> int | None:
    """Return the bytes in free, speculative and inactive pages; nothing if the output is cut off.

    Speculative pages are counted apart from free ones, and both can be used.
    """
    page = _PAGE.search(text)
    counts = dict(_COUNT.findall(text))
    if page is None or not counts.keys() >= {"free", "inactive"}:
        return None
    return sum(map(int, counts.values())) * int(page[1])
