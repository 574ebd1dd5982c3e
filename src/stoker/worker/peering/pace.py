"""How fast bytes leave: so many a second over all connections, or as fast as they go."""

from __future__ import annotations

import threading

from stoker.model.clock import Clock


class Pace:
    """A limit that threads share. Nothing said: no limit."""

    def __init__(self, most_bytes_s: float | None, clock: Clock) -> None:
        self._most_bytes_s = most_bytes_s
        self._clock = clock
        self._turn = threading.Lock()
        self._free_s = 0.0

    def wait(self, size_bytes: int, over: threading.Event) -> None:
        """Wait until so many bytes may leave, or everything is over."""
        if not self._most_bytes_s:
            return
        with self._turn:
            now_s = self._clock.monotonic_s()
            due_s = max(now_s, self._free_s)
            self._free_s = due_s + size_bytes / self._most_bytes_s
        if due_s > now_s:
            over.wait(due_s - now_s)
