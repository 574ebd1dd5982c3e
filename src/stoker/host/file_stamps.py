"""How a file looks from outside: equal stamps mean equal bytes, once the last change is a moment ago."""

from __future__ import annotations

import os

SETTLED_NS = 2_000_000_000
"""A file that changed more recently than this may change again without its times showing it."""

Stamp = tuple[int, int, int, int]


def stamp_of(info: os.stat_result) -> Stamp:
    """Return what must not change while something stays known of a file: size, inode, mtime and ctime."""
    return (info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
