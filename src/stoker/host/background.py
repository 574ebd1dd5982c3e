"""Work that goes on in a thread of its own, beside everything else, for the length of a with-block."""

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
    """Begins with a with-block and has ended with it: whoever leaves the block waits for what is under way.

    `_over` is set when it is to end. One that waits for anything else is woken by its own `_let_go`. What it does again
    and again it does within `_one_try`: a thread that died would be missed by nobody.
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
        """Do what is to be done until `_over` is set."""

    @contextmanager
    def _one_try(self) -> Iterator[None]:
        """Survive what goes wrong in the block; a bug of ours is told in the log, the same one once."""
        try:
            yield
        except InternalError as error:
            self._tell_bug(error)
        except StokerError:
            # A database or a disk in trouble tells of itself elsewhere, and the next try finds what is left.
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try may do better
            self._tell_bug(error)

    def _tell_bug(self, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        if told != self._last_bug:
            self._last_bug = told
            LOG.error("%s goes on after a bug: %s", self._thread.name, told, exc_info=error)

    def _let_go(self) -> None:  # noqa: B027 - most wait for `_over` alone
        """End what the thread waits for."""


# Something that is done now and then, in a thread of its own, until it is closed.


class RecurringTask(ABC):
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
        """Return after how many seconds to act again, after a fault of our own."""

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
