"""A stretch of work that a request to end does not interrupt: what it leaves behind is whole, and can be kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back SIGTERM within; what it does otherwise (raise, most of all) it does at the end of the block."""
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGTERM, lambda *told: came.append(told))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            before(*came[0])
