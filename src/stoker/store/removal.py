"""Taking a blob away under the eyes of those who may be about to count on it."""

from __future__ import annotations

import os

from stoker.host.durable import remove_tree


def remove_untouched(path: str, seen: os.stat_result) -> bool:
    """Remove a blob unless somebody made it young again since it was `seen`. False: it stays, or was gone already.

    Raises `OSError` or our own errors where it can't be removed.
    """
    away = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        os.rename(path, away)
        if os.lstat(away).st_mtime_ns != seen.st_mtime_ns:
            # A writer counted on it after we looked. Had it come later, it would have missed it.
            os.rename(away, path)
            return False
        return remove_tree(away)
    except FileNotFoundError:
        return False
