"""The user's own terminal, handed through: every key as it is typed, and put back as it was whatever happens."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STDIN, _STDOUT = 0, 1


def is_at_terminal() -> bool:
    """Say whether somebody types and reads here."""
    if sys.platform == "win32":
        return False
    try:
        return os.isatty(_STDIN) and os.isatty(_STDOUT)
    except OSError:
        return False


def terminal_size() -> tuple[int, int]:
    """Give rows and columns; of a terminal that does not know, the usual ones."""
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
