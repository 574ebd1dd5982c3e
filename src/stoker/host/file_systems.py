"""Which file system a path lies on, or will: its type, its room, whether it can be written to.

Nothing is made on the way: of a folder that is not there yet, the nearest one above it that is answers.
"""

from __future__ import annotations

import os
import re

from stoker.host.disk import existing_above
from stoker.model.frozen import frozen

_OCTAL = re.compile(r"\\([0-7]{3})")


@frozen
class FileSystem:
    """Where a path lies."""

    type: str
    """Empty: nobody says."""
    mount_point: str
    total_bytes: int
    free_bytes: int
    """For an ordinary user."""
    is_read_only: bool
    is_writable: bool
    """We may make files where the path is, or will be."""


def file_system_of(path: str, proc: str = "/proc") -> FileSystem:
    """Look at where a path lies. Raises `OSError`."""
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
    """Give mount point and type of what a path lies on, from the kernel's list: the deepest, of several the latest."""
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
