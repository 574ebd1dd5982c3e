"""Something that is done now and then, in a thread of its own, until it is closed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Recurring(ABC):
    """Acts, and is told by what it did when to act again. Nothing that goes wrong ends it."""

    def __init__(self, name: str, *, first_s: float = 0.0) -> None:
        self._first_s = first_s
        self._is_closed = threading.Event()
        self._is_due = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"stoker-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End it; what is under way is not waited for."""
        self._is_closed.set()
        self._is_due.set()

    def hurry(self) -> None:
        """Have it act now, or once more if it is acting."""
        self._is_due.set()

    @abstractmethod
    def act(self) -> float:
        """Do it once; say after how many seconds to do so again."""

    @abstractmethod
    def _after(self, problem: Exception) -> float:
        """Say after how many seconds to act again, after a fault of our own."""

    def _work(self) -> None:
        pause_s = self._first_s
        while True:
            self._is_due.wait(pause_s)
            self._is_due.clear()
            if self._is_closed.is_set():
                return
            try:
                pause_s = self.act()
            except Exception as problem:  # noqa: BLE001 - a thread that died would be silence for ever
                pause_s = self._after(problem)
