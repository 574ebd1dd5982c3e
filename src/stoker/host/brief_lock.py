"""A lock held for microseconds around a read-decide-write, by the kernel, and gone with its process.

For anything held longer, `lockfile` names its owner. On a file system whose locks do nothing (some network mounts)
this excludes nobody; callers must only lose time by that, never truth.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from stoker.host.durable import translated


class BriefLocks:
    """Locks by path, their files kept open once used. One thread at a time."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    @contextlib.contextmanager
    def hold(self, path: str) -> Iterator[None]:
        """Hold the lock at `path` (made if missing, never removed) for the length of a with-block."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            with translated(path):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._descriptors[path] = descriptor
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files of all locks."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
