"""Where lines go while work is under way: one after the other, or nowhere. The live one is in `live`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from stoker.cli.output import CliOutput
from stoker.core.clock import Clock
from stoker.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text


HEARTBEAT_S = 10.0


Running = Callable[[float, float], list[str]]
"""Gives a line for each stage that runs, from the time now and for how long at least it has run."""


class Screen(Protocol):
    """Where lines go while a run is under way."""

    def begin(self, running: Running) -> None:
        """Something runs from now on; `running` tells what."""

    def lasting(self, line: str) -> None:
        """Write a line that stays."""

    def close(self) -> None:
        """Write what is left and let go."""


class PlainScreen:
    """Lines as they come, without control codes; what runs long is mentioned every so often, if it has changed."""

    def __init__(self, out: CliOutput, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, running: Running) -> None:
        self._thread = threading.Thread(target=self._beat, args=(running,), name="stoker-progress", daemon=True)
        self._thread.start()

    def lasting(self, line: str) -> None:
        self._out.line(line)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self, running: Running) -> None:
        said: list[str] = []
        while not self._is_over.wait(HEARTBEAT_S):
            lines = running(self._clock.wall_s(), HEARTBEAT_S / 2)
            for line in lines:
                if line not in said:
                    self._out.line(f"  {line}")
            said = lines


class LineScreen:
    """Only what lasts, as it comes."""

    def __init__(self, out: CliOutput) -> None:
        self._out = out

    def begin(self, running: Running) -> None:
        return

    def lasting(self, line: str) -> None:
        self._out.line(line)

    def close(self) -> None:
        return


class SilentScreen:
    """Says nothing, for those who asked for that."""

    def begin(self, running: Running) -> None:
        return

    def lasting(self, line: str) -> None:
        return

    def close(self) -> None:
        return


# The live part of a terminal: a line for each stage that runs, below the lines that stay.
#
# One thread does all the drawing, and imports the drawing library only when something has run for a moment: a run that
# is over before that never pays for it.

_PATIENCE_S = 0.15
_FRAME_S = 0.1
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER = "|/-\\"


class LiveScreen:
    """Draws on a terminal until it is closed."""

    def __init__(self, out: CliOutput, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._spinner = _SPINNER if out.is_unicode else _ASCII_SPINNER
        self._frame = 0
        self._waiting: deque[str] = deque()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, running: Running) -> None:
        self._thread = threading.Thread(target=self._draw, args=(running,), name="stoker-screen", daemon=True)
        self._thread.start()

    def lasting(self, line: str) -> None:
        if self._thread is None:
            self._out.line(line)
        else:
            self._waiting.append(line)

    def mention(self, line: str) -> None:
        """Write a line that stays, soon; may be called from a signal handler."""
        self._waiting.append(line)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        while self._waiting:
            self._out.line(self._waiting.popleft())

    def _draw(self, running: Running) -> None:
        if self._is_over.wait(_PATIENCE_S):
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(highlight=False, no_color=not self._out.has_colour)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            is_over = False
            while not is_over:
                is_over = self._is_over.wait(_FRAME_S)
                while self._waiting:
                    live.console.print(Text.from_ansi(printable(self._waiting.popleft())), soft_wrap=True)
                live.update(self._picture(running(self._clock.wall_s(), 0.0)), refresh=True)

    def _picture(self, lines: list[str]) -> Text:
        from rich.text import Text

        self._frame += 1
        sign = self._spinner[self._frame % len(self._spinner)]
        return Text("\n".join(f"{sign} {printable(line)}" for line in lines), no_wrap=True, overflow="ellipsis")


# The user's own terminal, handed through: every key as it is typed, and put back as it was whatever happens.

_STDIN, _STDOUT = 0, 1


def is_at_terminal() -> bool:
    """Return whether somebody types and reads here."""
    if sys.platform == "win32":
        return False
    try:
        return os.isatty(_STDIN) and os.isatty(_STDOUT)
    except OSError:
        return False


def terminal_size() -> tuple[int, int]:
    """Return rows and columns; of a terminal that does not know, the usual ones."""
    try:
        columns, rows = os.get_terminal_size(_STDOUT)
    except OSError:
        columns, rows = 0, 0
    return rows or 24, columns or 80


@contextmanager
def raw_terminal() -> Iterator[threading.Event]:
    """Hand keys through in this block; what is given is set whenever the terminal has another size."""
    import termios
    import tty

    resized = threading.Event()

    def on_resize(_number: int, _frame: FrameType | None) -> None:
        resized.set()

    before = termios.tcgetattr(_STDIN)
    heeded = signal.signal(signal.SIGWINCH, on_resize)
    try:
        tty.setraw(_STDIN)
        yield resized
    finally:
        # What was typed and not taken must not be read by the user's shell.
        termios.tcsetattr(_STDIN, termios.TCSAFLUSH, before)
        signal.signal(signal.SIGWINCH, heeded)
