"""Meters: how much of a device's memory is free right now, and which processes hold the rest.

`None` means that nobody could say; zero means zero. A meter may be asked from any thread, and never raises.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol


class Meter(Protocol):
    """Whoever can measure devices' memory now."""

    def free_bytes(self, uuid: str) -> int | None:
        """Return what is free on a device now."""

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        """Return what each process holds on a device now: bytes by process number.

        A process whose share the driver does not tell is left out.
        """

    def close(self) -> None:
        """Let go of whatever the meter keeps running; a later question starts it again."""


class NoMeter:
    """Knows nothing of any device."""

    def free_bytes(self, uuid: str) -> int | None:
        return None

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        return None

    def close(self) -> None:
        pass


class FakeMeter:
    """Measures invented devices: what was said to be in use is in use, the rest is free."""

    def __init__(self, total_bytes: Mapping[str, int]) -> None:
        self._totals = dict(total_bytes)
        self._used: dict[str, dict[int, int]] = {uuid: {} for uuid in total_bytes}
        self._lock = threading.Lock()

    def use(self, uuid: str, pid: int, size_bytes: int) -> None:
        """Say that a process holds so much of a device from now on; zero ends it."""
        with self._lock:
            holders = self._used[uuid]
            holders.pop(pid, None)
            if size_bytes:
                holders[pid] = size_bytes

    def free_bytes(self, uuid: str) -> int | None:
        with self._lock:
            if uuid not in self._totals:
                return None
            return max(0, self._totals[uuid] - sum(self._used[uuid].values()))

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        with self._lock:
            return dict(self._used[uuid]) if uuid in self._used else None

    def close(self) -> None:
        pass
