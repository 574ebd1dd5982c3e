"""Background threads that live as long as a with-block."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from stoker.core.errors import InternalError, StokerError

LOG = logging.getLogger("stoker.serve")


class BackgroundThread(ABC):
    """Starts with a with-block and has ended when the block ends: leaving the block waits for work under way.

    `_over` is set when the thread must end. A thread that waits for anything else is woken by its own `_let_go`.
    Repeated work runs within `_one_try`: a thread that died would go unnoticed.
    """

    def __init__(self, name: str) -> None:
        self._over = threading.Event()
        self._last_bug = ""
        self._thread = threading.Thread(target=self._run, name=f"stoker-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._let_go()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Run until `_over` is set."""

    @contextmanager
    def _one_try(self) -> Iterator[None]:
        """Survive any error in the block; log an internal error of ours once."""
        try:
            yield
        except InternalError as error:
            self._tell_bug(error)
        except StokerError:
            # Errors of a database or a disk are reported elsewhere, and the next try continues.
            return
        except Exception as error:  # noqa: BLE001 - the next try may succeed
            self._tell_bug(error)

    def _tell_bug(self, error: Exception) -> None:
        problem_text = f"{type(error).__name__}: {error}"
        if problem_text != self._last_bug:
            self._last_bug = problem_text
            LOG.error("%s: internal error, continuing: %s", self._thread.name, problem_text, exc_info=error)

    def _let_go(self) -> None:  # noqa: B027 - most wait for `_over` alone
        """Wake the thread from what it waits for."""


class RecurringTask(ABC):
    """Acts repeatedly in its own thread until closed; each run returns the delay to the next. No error ends it."""

    def __init__(self, name: str, *, first_s: float = 0.0) -> None:
        self._first_s = first_s
        self._is_closed = threading.Event()
        self._is_due = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"stoker-{name}", daemon=True)

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

    @abstractmethod
    def _after(self, problem: Exception) -> float:
        """Return the seconds until the next time, after an internal error."""

    def _work(self) -> None:
        pause_s = self._first_s
        while True:
            self._is_due.wait(pause_s)
            self._is_due.clear()
            if self._is_closed.is_set():
                return
            try:
                pause_s = self.act()
            except Exception as problem:  # noqa: BLE001 - nothing would notice that the thread died
                pause_s = self._after(problem)
