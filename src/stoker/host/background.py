"""A task that runs again and again in a thread of its own."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from stoker.core.errors import InternalError, StokerError

LOG = logging.getLogger("stoker.serve")


class RecurringTask(ABC):
    """Acts repeatedly in its own thread until closed. Each run returns the delay to the next; no error ends it.

    A with-block starts it and closes it, and waits at its end for work under way.
    """

    def __init__(self, name: str, *, retry_s: float, first_s: float = 0.0) -> None:
        """`first_s` is the delay before the first run, `retry_s` the delay after a run that raised."""
        self._first_s = first_s
        self._retry_s = retry_s
        self._is_closed = threading.Event()
        self._is_due = threading.Event()
        self._last_bug = ""
        self._thread = threading.Thread(target=self._run, name=f"stoker-{name}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self._thread.join()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; does not wait for work under way."""
        self._is_closed.set()
        self._is_due.set()

    def hurry(self) -> None:
        """Act now, or once more if it is acting."""
        self._is_due.set()

    @abstractmethod
    def act(self) -> float:
        """Act once; return the seconds until the next time."""

    def _on_error(self, error: Exception) -> None:
        """Log an internal error once. Errors of a database or a disk are reported elsewhere."""
        if isinstance(error, StokerError) and not isinstance(error, InternalError):
            return
        problem_text = f"{type(error).__name__}: {error}"
        if problem_text != self._last_bug:
            self._last_bug = problem_text
            LOG.error("%s: internal error, continuing: %s", self._thread.name, problem_text, exc_info=error)

    def _run(self) -> None:
        pause_s = self._first_s
        while not self._is_closed.is_set():
            self._is_due.wait(pause_s)
            self._is_due.clear()
            if not self._is_closed.is_set():
                pause_s = self._try()

    def _try(self) -> float:
        try:
            return self.act()
        except Exception as error:  # noqa: BLE001 - nothing would notice that the thread died
            self._on_error(error)
            return self._retry_s
