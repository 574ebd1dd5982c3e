"""Requests of the cockpit, carried out in threads so that the screen never waits for one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stoker.core.errors import StokerError
from stoker.core.text import first_line, one_line

_LONGEST = 300


def failure_text(error: Exception) -> str:
    """Return an error of a request in one line, with its hint."""
    if isinstance(error, StokerError):
        return one_line(f"{error.message}; {error.hint}" if error.hint else error.message, _LONGEST)
    return one_line(f"internal error: {type(error).__name__}: {first_line(error)}", _LONGEST)


class RequestThreads:
    """Carries out requests in turn. Of two with the same name the later one replaces the earlier. Thread-safe."""

    def __init__(self, count: int = 2) -> None:
        self._count = count
        self._condition = threading.Condition()
        self._queue: dict[str, Callable[[], None]] = {}
        self._busy: set[str] = set()
        self._is_closed = False

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._count):
            threading.Thread(target=self._work, name=f"cockpit-request-{number}", daemon=True).start()

    def close(self) -> None:
        """Stop the threads after their current request. Does not wait: a request may take long."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def put(self, name: str, act: Callable[[], None]) -> None:
        """Carry out a request soon."""
        with self._condition:
            self._queue[name] = act
            self._condition.notify()

    def is_pending(self, name: str) -> bool:
        """Return True if a request with this name is queued or under way."""
        with self._condition:
            return name in self._queue or name in self._busy

    def run_queued(self) -> None:
        """Carry out everything that is queued, in the caller's thread."""
        while self._run_next(is_waiting=False):
            pass

    def _work(self) -> None:
        while self._run_next(is_waiting=True):
            pass

    def _run_next(self, *, is_waiting: bool) -> bool:
        with self._condition:
            while is_waiting and not self._queue and not self._is_closed:
                self._condition.wait()
            if self._is_closed or not self._queue:
                return False
            name = next(iter(self._queue))
            act = self._queue.pop(name)
            self._busy.add(name)
        try:
            act()
        finally:
            with self._condition:
                self._busy.discard(name)
        return True
