"""How fast data came to this machine when it last did, for whoever wants to know how long more of it takes."""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.host.durable import read_regular, write_file
from stoker.model.errors import StokerError
from stoker.store.local import LocalStore

_WORTH_BYTES = 4 << 20
"""Of less, the rate says nothing."""
_NAME = "rate"
_LARGEST_BYTES = 40


def note_rate(store: LocalStore, size_bytes: int, seconds: float) -> None:
    """Note that so much came in such a time, if that says anything."""
    if size_bytes >= _WORTH_BYTES and seconds > 0:
        with suppress(StokerError):
            write_file(_path(store), f"{int(size_bytes / seconds)}".encode(), mode=0o600)


def read_rate(store: LocalStore) -> int:
    """Give bytes a second; 0 if nobody knows."""
    try:
        return max(0, int(read_regular(_path(store), _LARGEST_BYTES)))
    except (OSError, ValueError, StokerError):
        return 0


def _path(store: LocalStore) -> str:
    return os.path.join(store.places.incoming, _NAME)
