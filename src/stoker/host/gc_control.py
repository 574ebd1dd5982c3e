"""How often Python's garbage collector searches for reference cycles.

Python searches once for every 700 objects that are new, and now and then through all that there are. A plan of a
hundred thousand stages makes millions of objects that all stay: every search is in vain, and takes longer each time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = 100_000
_lock = threading.Lock()
_open_blocks = 0
_before = gc.get_threshold()


@contextmanager
def searched_seldom() -> Iterator[None]:
    """Search a hundred times less often during a block. Blocks may overlap, in one thread or several.

    A lower frequency that is already set stays.
    """
    global _open_blocks, _before  # noqa: PLW0603 - the setting is the process's, too
    with _lock:
        if not _open_blocks:
            _before = gc.get_threshold()
            if 0 < _before[0] < _SELDOM:
                gc.set_threshold(_SELDOM, *_before[1:])
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if not _open_blocks:
                gc.set_threshold(*_before)
