"""Which machines belong to the fleet now, as its coordinator says: one that was forgotten gets no tree from anybody.

A certificate holds for weeks; who may still show it is asked when somebody shows one, and remembered for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from stoker.model.clock import Clock
from stoker.model.errors import StokerError, Unavailable

FRESH_S = 30.0
"""So long an answer counts without being asked again: a machine that was forgotten gets things for no longer."""
STALE_S = 300.0
"""So long it counts while the coordinator can't be asked: a copy that is under way goes on over a short cut."""
AGAIN_S = 2.0
"""Between two questions: a stranger's certificate must not have the coordinator asked with every connection."""


class Admitting:
    """What one worker knows. `ask` gives the numbers of all certificates that count; it may raise `StokerError`."""

    def __init__(self, ask: Callable[[], Iterable[str]], *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._asking = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._heard_s: float | None = None
        self._asked_s: float | None = None

    def admits(self, serial: str) -> bool:
        """Say whether a certificate counts now. `Unavailable` where nobody can say."""
        if not self._is_known(serial):
            # One asks; nobody who is known waits for the answer.
            with self._asking:
                if not self._is_known(serial):
                    self._look()
        if self._heard_s is None or self._clock.monotonic_s() - self._heard_s > STALE_S:
            raise Unavailable("the coordinator can't be asked which machines belong to the fleet")
        return serial in self._known

    def _is_known(self, serial: str) -> bool:
        is_fresh = self._heard_s is not None and self._clock.monotonic_s() - self._heard_s < FRESH_S
        return is_fresh and serial in self._known

    def _look(self) -> None:
        if self._asked_s is not None and self._clock.monotonic_s() - self._asked_s < AGAIN_S:
            return
        try:
            self._known = frozenset(self._ask())
            self._heard_s = self._clock.monotonic_s()
        except StokerError:
            # What was heard last counts for a while.
            pass
        self._asked_s = self._clock.monotonic_s()
