"""For tests of what must not wait: whoever waits fails, and does not hang."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE_S = 5.0


@contextmanager
def at_once() -> Iterator[None]:
    """Fail if the block waits for somebody."""

    def fail(number: int, frame: FrameType | None) -> None:
        message = "it waits"
        raise AssertionError(message)

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
