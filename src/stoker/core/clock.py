"""Time as a parameter, so that no test has to sleep."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self


class Clock(Protocol):
    """Source of the time."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def wall_s(self) -> float:
        """Return the wall time as seconds since 1970."""

    def monotonic_s(self) -> float:
        """Return seconds on a scale that never goes back; only differences have a meaning."""

    def boottime_s(self) -> float:
        """Return seconds on a scale that never goes back and also counts suspend."""

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""


# The same for every process of a boot. Systems without it use the monotonic clock.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The computer's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def wall_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only by `advance`, `suspend`, `jump` and `sleep`."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._wall_s = start_s
        self._monotonic_s = 0.0
        self._suspended_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_s, UTC)

    def wall_s(self) -> float:
        return self._wall_s

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def boottime_s(self) -> float:
        return self._monotonic_s + self._suspended_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance all scales."""
        if seconds < 0:
            message = "time does not go back; `jump` moves the wall clock alone"
            raise ValueError(message)
        self._wall_s += seconds
        self._monotonic_s += seconds

    def suspend(self, seconds: float) -> None:
        """Advance all scales except the monotonic one, as suspend does."""
        self._wall_s += seconds
        self._suspended_s += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic scale does not change."""
        self._wall_s += seconds


class Closable(ABC):
    """Has `close`, and works as a context manager."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what it holds. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
