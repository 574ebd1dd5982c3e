"""Signals: any command may be asked to end, and cleans up first (`ended_on_request`); the rest is about work here.

The first asks the work to stop and waits for its clean-up, a second Ctrl-C ends it now.

    Ctrl-C                 ask the work to stop, clean up, 130
    Ctrl-C once more       kill our children, clean up what can be cleaned up at once, 130
    TERM, or the terminal goes away (HUP)      ask the work to stop, clean up, 143

A signal that this process was started to ignore (nohup, a background job of a script) stays ignored. What stood before
is put back at the end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from stoker.core.errors import Cancelled, StokerError, Terminated
from stoker.host.identity import rows

_LAST_WAIT_S = 2.0
_CONTINUES = "the same command continues where this one stopped"


def say_aside(text: str) -> None:
    """Say something on standard error from a signal's own code: buffered streams may be in the middle of a write."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


class AskedToEnd(KeyboardInterrupt):
    """TERM or HUP, raised where the code stands, as Ctrl-C is."""


@contextmanager
def ended_on_request() -> Iterator[None]:
    """Let a request to end be raised within the block, so that nothing that was started is left behind. Once only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]

    def on_signal(number: int, _frame: FrameType | None) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
        raise AskedToEnd("the terminal went away" if number == signal.SIGHUP else "it was asked to end")

    for number in ours:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class Interruptions:
    """A block in which signals stop the work instead of this process."""

    def __init__(
        self,
        cancel: Callable[[StokerError], None],
        say: Callable[[str], None],
        leave: Callable[[], None],
        *,
        last_wait_s: float = _LAST_WAIT_S,
        hint: str = _CONTINUES,
    ) -> None:
        """Make the block; `hint` says what becomes of the work.

        After a second Ctrl-C the work has `last_wait_s` to end by itself, then `leave` is called.
        """
        self._cancel = cancel
        self._say = say
        self._leave = leave
        self._last_wait_s = last_wait_s
        self._hint = hint
        self._before: dict[signal.Signals, Any] = {}
        self._is_asked = False
        self._is_firm = False

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._is_asked:
            self._is_asked = True
            if number == signal.SIGINT:
                self._say("stopping… (Ctrl-C again ends it at once)")
                self._cancel(Cancelled("interrupted", hint=self._hint))
            else:
                why = "the terminal went away" if number == signal.SIGHUP else "it was asked to end"
                self._say("stopping…")
                self._cancel(Terminated(why, hint=self._hint))
        elif number == signal.SIGINT and not self._is_firm:
            self._is_firm = True
            self._say("ending it now")
            _kill_children()
            if not self._last_wait_s:
                self._leave()
            # Stages in children are gone now and the run ends by itself. Work in our own process may not.
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, self._last_wait_s)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        self._leave()


def _kill_children() -> None:
    """Kill our own children: the warm process, whose end is the end of every stage that it forked."""
    me = os.getpid()
    for row in rows():
        if row.parent_pid == me:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(row.pid, signal.SIGKILL)
