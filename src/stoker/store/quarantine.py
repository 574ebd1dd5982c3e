"""Damaged files, moved aside with their reason: evidence is never deleted, and never served."""

from __future__ import annotations

import contextlib
import itertools
import os

from stoker.model.json_text import dumps

_counter = itertools.count()


def set_aside(path: str, quarantine: str, *, reason: str, now_s: float, seen: os.stat_result | None = None) -> str:
    """Move a damaged file (or whatever lies in its place) into quarantine, its reason beside it; give its new path.

    Gives an empty text if it stays where it is: it vanished, it is no longer the file that was `seen` to be damaged,
    or the store can't be written. That is no error: whoever found the damage does not use the file either way.
    """
    name = f"{os.path.basename(path)}.{int(now_s)}.{os.getpid()}.{next(_counter)}"
    target = os.path.join(quarantine, name)
    try:
        if seen is not None and not os.path.samestat(seen, os.lstat(path)):
            return ""
        os.makedirs(quarantine, exist_ok=True)
        os.rename(path, target)
        if seen is not None and not os.path.samestat(seen, os.lstat(target)):
            # Somebody put a good one there in the last moment: back with it, unless the name is taken again already.
            with contextlib.suppress(FileExistsError):
                os.link(target, path)
            os.unlink(target)
            return ""
    except OSError:
        return ""
    # A full disk still takes the move, and that is what counts.
    with contextlib.suppress(OSError), open(f"{target}.reason.json", "w", encoding="utf-8") as file:
        file.write(dumps({"path": path, "reason": reason, "at": now_s}) + "\n")
    return target
