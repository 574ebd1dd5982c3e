"""Limits that a container or a service puts on us, read from the kernel's control groups, versions 1 and 2.

A limit may stand at any level above us and the smallest counts. Anything that is missing or can't be read means "no
limit": this only narrows what the machine itself has. Reads only; `containment` makes groups and sets limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Version 1 says "no limit" with the largest multiple of a page that fits.
_NO_LIMIT_BYTES = 1 << 62


class MemoryUse(NamedTuple):
    """One level's limit and how much of it can't be given back."""

    limit_bytes: int
    used_bytes: int


def cpu_quota(proc: str = "/proc") -> float | None:
    """Give how many processors' worth of time we may use, or `None` if nobody says."""
    quotas = [quota for folder, version in _levels("cpu", proc) if (quota := _cpu_quota(folder, version)) is not None]
    return min(quotas, default=None)


def memory_uses(proc: str = "/proc") -> list[MemoryUse]:
    """Give every level above us that limits memory."""
    return [use for folder, version in _levels("memory", proc) if (use := _memory_use(folder, version)) is not None]


def own_group(controller: str, version: int, proc: str = "/proc", *, of: int | str = "self") -> str | None:
    """Give the folder of the group that we, or another process, are in; `None` if it is not there to be seen."""
    folders = (folder for folder, found in _levels(controller, proc, of) if found == version)
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def group_at(path: str, proc: str = "/proc") -> str | None:
    """Give the folder of a version 2 group that somebody else calls by its path; `None` if it is not to be seen."""
    mounts = (mount for mount in _mounts(proc) if mount[0] == 2)
    folders = (next(_upwards(mount_point, _below(root, path))) for _, _, root, mount_point in mounts)
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def _cpu_quota(folder: str, version: int) -> float | None:
    if version == 2:
        quota, period = [*_words(f"{folder}/cpu.max"), "", ""][:2]
    else:
        quota, period = _first_word(f"{folder}/cpu.cfs_quota_us"), _first_word(f"{folder}/cpu.cfs_period_us")
    # "max" or -1 stand for none.
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory_use(folder: str, version: int) -> MemoryUse | None:
    limit_name, used_name = _MEMORY_FILES[version]
    limit, used = _first_word(f"{folder}/{limit_name}"), _first_word(f"{folder}/{used_name}")
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
        return None
    words = _words(f"{folder}/memory.stat")
    statistics = dict(zip(words[::2], words[1::2], strict=False))
    # File pages that nobody has touched lately are given back before anybody is killed.
    spare = statistics.get("total_inactive_file" if version == 1 else "inactive_file", "0")
    return MemoryUse(limit_bytes=int(limit), used_bytes=max(0, int(used) - int(spare)))


_MEMORY_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def _levels(controller: str, proc: str, of: int | str = "self") -> Iterator[tuple[str, int]]:
    """Give the folders of a process's group and of those above it, each with its version."""
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
    """Give our group relative to what is mounted: a container sees a part of the tree, or gets the host's path."""
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
