"""Ends an attempt whose lease is over: its own look at the lease file, whatever became of its keeper."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from stoker.model.clock import Clock
from stoker.worker.attempt.assignment import LeaseFile

LOOK_EVERY_S = 0.5


class LeaseWatch:
    """A block beside which the lease is watched; `on_over` is called once, from a thread, with the reason."""

    def __init__(
        self, lease: LeaseFile, *, clock: Clock, on_over: Callable[[str], None], every_s: float = LOOK_EVERY_S
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._on_over = on_over
        self._every_s = every_s
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-lease-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_done.wait(self._every_s):
            why = self._lease.why_over(self._clock.boottime_s())
            if why:
                self._on_over(why)
                return
