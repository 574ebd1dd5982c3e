"""How fast a body comes: whether that is too slow to go on, how long it will still take, when to tell of it.

Of one connection. Silence is not seen here: the transport ends a read that waits too long.
"""

from __future__ import annotations

from collections import deque

from stoker.model.units import format_size
from stoker.store.download.patience import Patience

_SAMPLE_EVERY_S = 1.0
_RATE_OVER_S = 10.0
_TELL_EVERY_S = 0.25


class Pace:
    """The speed of one connection, from what it brought and when."""

    def __init__(self, now_s: float, patience: Patience) -> None:
        self._patience = patience
        self._came_bytes = 0
        self._now_s = now_s
        self._samples: deque[tuple[float, int]] = deque([(now_s, 0)])

    def got(self, size_bytes: int, now_s: float) -> None:
        """Note that bytes came."""
        self._came_bytes += size_bytes
        self._now_s = now_s
        if now_s - self._samples[-1][0] >= _SAMPLE_EVERY_S:
            self._samples.append((now_s, self._came_bytes))
            # One sample from before the window stays: the window is measured from it.
            while len(self._samples) > 1 and now_s - self._samples[1][0] >= self._patience.slow_s:
                self._samples.popleft()

    @property
    def rate_bytes_per_s(self) -> float | None:
        """Over the last seconds; nothing before there is something to measure."""
        start_s, start_bytes = next(
            (sample for sample in self._samples if self._now_s - sample[0] <= _RATE_OVER_S), self._samples[-1]
        )
        passed_s = self._now_s - start_s
        return (self._came_bytes - start_bytes) / passed_s if passed_s > 0 else None

    def eta_s(self, left_bytes: int | None) -> float | None:
        """How long the rest takes at this rate."""
        rate = self.rate_bytes_per_s
        return None if left_bytes is None or not rate else left_bytes / rate

    @property
    def complaint(self) -> str:
        """Why this connection is too slow to go on with; nothing if it is not."""
        start_s, start_bytes = self._samples[0]
        passed_s = self._now_s - start_s
        limit = self._patience.slow_bytes_per_s
        if passed_s < self._patience.slow_s or self._came_bytes - start_bytes >= limit * passed_s:
            return ""
        rate = format_size(int((self._came_bytes - start_bytes) / passed_s))
        return f"too slow: {rate}/s over {passed_s:.0f}s, less than {format_size(limit)}/s"


class Rhythm:
    """When to tell of progress: at most four times a second, the first time at once."""

    def __init__(self) -> None:
        self._next_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether it is time; if so, the next time is a while away."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _TELL_EVERY_S
        return True
