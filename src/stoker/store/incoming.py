"""Trees on their way here: what nobody went on with is swept, by whoever receives the next one."""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.store.places import Places, names_in

GRACE_S = 7 * 86400.0
"""How long something may rest before nobody is thought to go on with it; whoever does begins it anew."""


def sweep_incoming(places: Places, *, now_s: float, grace_s: float = GRACE_S) -> int:
    """Remove listings, partial files and their locks that nobody touched for so long; give the bytes so freed."""
    freed_bytes = 0
    for name in names_in(places.incoming):
        path = os.path.join(places.incoming, name)
        with suppress(OSError):
            info = os.lstat(path)
            # A file of many hours is written to all the time, its lock and its listing are not: they go with it.
            if now_s - _last_touched_s(places.incoming, name, info) > grace_s:
                os.unlink(path)
                freed_bytes += info.st_size
    return freed_bytes


def _last_touched_s(folder: str, name: str, info: os.stat_result) -> float:
    newest_s = info.st_mtime
    stem = name.partition(".")[0]
    with suppress(OSError):
        newest_s = max(newest_s, os.lstat(os.path.join(folder, f"{stem}.part")).st_mtime)
    return newest_s
