"""What a process has open, so that a test can tell what was left open from what is open for a moment."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress

_PATIENCE_S = 10.0


def open_files(pid: int | None = None) -> set[tuple[str, str]]:
    """Return every descriptor of a process, of this one by default, with what it refers to."""
    # What earlier tests have dropped is not counted.
    gc.collect()
    folder = f"/proc/{'self' if pid is None else pid}/fd"
    found = set()
    for name in os.listdir(folder):
        # The descriptor that the list was read with is gone by now, and so may be those of other threads.
        with suppress(FileNotFoundError):
            found.add((name, os.readlink(f"{folder}/{name}")))
    return found


def left_open(before: set[tuple[str, str]], pid: int | None = None) -> set[tuple[str, str]]:
    """Return what a process has open that it had not before, and does not close in a while: what leaks stays."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while (left := open_files(pid) - before) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left
