"""The kernel's own files below a root that is handed in, read so that nothing about them can raise or take long."""

from __future__ import annotations

import os
import re

_MOST_BYTES = 1 << 16


class KernelFiles:
    """Files below /proc, /sys and /dev, named by their absolute paths and looked up below a root."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def text(self, path: str) -> str:
        """Give what a file holds, without NULs and surrounding space; empty if it can't be read."""
        try:
            descriptor = os.open(self.place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return ""
        try:
            data = os.read(descriptor, _MOST_BYTES)
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        return data.decode("utf-8", "replace").replace("\0", " ").strip()

    def names(self, path: str, pattern: str = ".*") -> list[str]:
        """Give the entries of a folder whose whole name fits, numbers in their order; none if it can't be read."""
        try:
            found = [name for name in os.listdir(self.place(path)) if re.fullmatch(pattern, name)]
        except (OSError, ValueError):
            return []
        return sorted(found, key=lambda name: [int(part) if part.isdecimal() else part for part in _runs(name)])

    def has(self, path: str) -> bool:
        """Whether there is anything of that name."""
        return os.path.lexists(self.place(path))

    def may_use(self, path: str) -> bool:
        """Whether we may read and write a device file."""
        return os.access(self.place(path), os.R_OK | os.W_OK)

    def target_name(self, path: str) -> str:
        """Give the last part of what a link leads to; empty if it is none."""
        try:
            return os.path.basename(os.readlink(self.place(path)))
        except OSError:
            return ""

    def place(self, path: str) -> str:
        """Give where a file really lies."""
        return os.path.join(self._root, path.lstrip("/"))


def _runs(name: str) -> list[str]:
    # Text and numbers take turns, beginning with text, so that two names can always be compared.
    return re.split(r"(\d+)", name)
