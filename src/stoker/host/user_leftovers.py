"""What a user's programs left where everybody may write: removed, so that its next program finds none of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from stoker.host.durable import remove_tree
from stoker.model.errors import StokerError

SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - others write there, we only clear


def remove_leftovers(uid: int, places: Sequence[str] = SHARED) -> tuple[str, ...]:
    """Remove what belongs to a user right in these places; nothing of that user runs. Links are removed, not followed.

    Gives what was removed. What can't be stays: it is readable to that user alone, if it was careful.
    """
    removed = []
    for place in places:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError, StokerError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        remove_tree(entry.path)
                        removed.append(entry.path)
    return tuple(removed)
