"""The live part of a terminal: a line for each stage that runs, below the lines that stay.

One thread does all the drawing, and imports the drawing library only when something has run for a moment: a run that
is over before that never pays for it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from stoker.faces.cli.output import Output
from stoker.faces.cli.screens import Running
from stoker.model.clock import Clock
from stoker.model.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

_PATIENCE_S = 0.15
_FRAME_S = 0.1
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER = "|/-\\"


class LiveScreen:
    """Draws on a terminal until it is closed."""

    def __init__(self, out: Output, clock: Clock) -> None:
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
