"""Shows that a command is still at work if it has printed nothing for a second; nothing is needed of the command.

The first output, question or display of progress of the command ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stoker.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from stoker.cli.context import CliOutput
    from stoker.cli.screens import Screen

AFTER_S = 1.0
PIPE_AFTER_S = 20.0
"""Without a terminal, where the first line follows ten seconds later: logs need no line about every slow command."""
SESSIONS = frozenset(
    {
        "adapters run",
        "completion",
        "exec",
        "gang run",
        "launch watch",
        "logs",
        "machines memory",
        "run",
        "serve",
        "top",
        "ui",
        "work",
    }
)
"""Commands that show what they do from their beginning, or give the terminal to a program or to their user."""


@contextmanager
def watched_silence(out: CliOutput, words: str, clock: Clock | None = None) -> Iterator[None]:
    """Show the words of a command with the elapsed time during the block, from its second second on."""
    if words in SESSIONS or out.is_quiet:
        yield
        return
    watch = _SilenceWatch(out, words, clock or SystemClock())
    out.on_output = watch.close
    try:
        yield
    finally:
        watch.close()
        out.on_output = None


class _SilenceWatch:
    """Waits in a thread of its own; starting it takes 0.1 ms."""

    def __init__(self, out: CliOutput, words: str, clock: Clock) -> None:
        self._out = out
        self._words = words
        self._clock = clock
        self._is_over = threading.Event()
        self._guard = threading.Lock()
        self._screen: Screen | None = None
        self._began_s = clock.wall_s()
        self._thread = threading.Thread(target=self._wait, name="stoker-silence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the display; returns once the terminal is as it was."""
        if not self._is_over.is_set():
            self._is_over.set()
            with self._guard:
                screen, self._screen = self._screen, None
            if screen is not None:
                screen.close()

    def _wait(self) -> None:
        if self._is_over.wait(AFTER_S if self._out.is_terminal else PIPE_AFTER_S):
            return
        from stoker.cli.screens import elapsed_screen

        with self._guard:
            if not self._is_over.is_set():
                self._screen = elapsed_screen(self._out, f"stoker {self._words}", self._clock, self._began_s)
