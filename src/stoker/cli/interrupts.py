"""Signals: every command cleans up on SIGTERM and SIGHUP (`ended_on_request`); `Interruptions` stops local work.

    Ctrl-C                 request a stop, clean up, 130
    Ctrl-C again           kill child processes, clean up what is possible at once, 130
    SIGTERM, or SIGHUP (terminal closed)      request a stop, clean up, 143

A signal that was ignored at the start (nohup, a background job of a script) stays ignored. The earlier handlers are
restored at the end.
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
    """Write to standard error from a signal handler: buffered streams may be in the middle of a write."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


class AskedToEnd(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised like KeyboardInterrupt."""


@contextmanager
def ended_on_request() -> Iterator[None]:
    """Raise `AskedToEnd` within the block on SIGTERM or SIGHUP, once, so that the command cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]

    def on_signal(number: int, _frame: FrameType | None) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
        raise AskedToEnd("terminal closed (SIGHUP)" if number == signal.SIGHUP else "terminated (SIGTERM)")

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
        """`hint` goes into the error. `last_wait_s` after a second Ctrl-C, `leave` is called."""
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
                self._say("stopping… (press Ctrl-C again to stop now)")
                self._cancel(Cancelled("interrupted", hint=self._hint))
            else:
                why = "terminal closed (SIGHUP)" if number == signal.SIGHUP else "terminated (SIGTERM)"
                self._say("stopping…")
                self._cancel(Terminated(why, hint=self._hint))
        elif number == signal.SIGINT and not self._is_firm:
            self._is_firm = True
            self._say("stopping now")
            _kill_children()
            if not self._last_wait_s:
                self._leave()
            # The run ends now that its child processes are gone. Work in this process may not.
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, self._last_wait_s)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        self._leave()


def _kill_children() -> None:
    """Kill the child processes: the warm process and with it every stage that it forked."""
    me = os.getpid()
    for row in rows():
        if row.parent_pid == me:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(row.pid, signal.SIGKILL)
