"""Where lines go while work is under way: one after the other, or nowhere. The live one is in `live`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.interrupts import Interruptions, say_aside
from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, StokerError
from stoker.core.text import format_duration, printable
from stoker.views.transfer_lines import amount_text, bar, left_text, rate_text

if TYPE_CHECKING:
    from rich.text import Text


HEARTBEAT_S = 10.0


Running = Callable[[float, float], list[str]]
"""Gives a line for each stage that runs, from the time now and for how long at least it has run."""


class Screen:
    """Where lines go while work is under way. This one shows nothing, for those who asked for that."""

    def begin(self, running: Running) -> None:
        """Show what runs from now on; `running` gives it."""

    def lasting(self, line: str) -> None:
        """Write a line that stays."""

    def mention(self, line: str) -> None:
        """Write a line that stays, soon; may be called from a signal handler."""
        say_aside(line)

    def close(self) -> None:
        """Write what is left and stop."""


class LineScreen(Screen):
    """Only what lasts, as it comes."""

    def __init__(self, out: CliOutput) -> None:
        self._out = out

    def lasting(self, line: str) -> None:
        self._out.line(line)


class PlainScreen(LineScreen):
    """Lines as they come, without control codes; what runs long is mentioned every so often, if it has changed."""

    def __init__(self, out: CliOutput, clock: Clock) -> None:
        super().__init__(out)
        self._clock = clock
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, running: Running) -> None:
        self._thread = threading.Thread(target=self._beat, args=(running,), name="stoker-progress", daemon=True)
        self._thread.start()

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


def open_screen(out: CliOutput, clock: Clock, *, is_live: bool = True) -> Screen:
    """Return what shows lines: drawn on a terminal if `is_live`, one after the other elsewhere, none if quiet."""
    if out.is_json or out.is_quiet:
        return Screen()
    return LiveScreen(out, clock) if out.is_terminal and is_live else PlainScreen(out, clock)


# The live part of a terminal: a line for each stage that runs, below the lines that stay.
#
# One thread does all the drawing, and imports the drawing library only when something has run for a moment: a run that
# is over before that never pays for it.

_PATIENCE_S = 0.15
_FRAME_S = 0.1
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER = "|/-\\"


class LiveScreen(Screen):
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
    """Return whether standard input and output are a terminal."""
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


# Long work on the store: how far it is, shown on a terminal, and a clean end when a signal comes.

_WORTH_A_RATE_S = 0.5
_BEGINS_ANEW = "nothing half is left; the same command begins anew"


class CommandProgress(ABC):
    """How much of a whole is done."""

    def __init__(self, what: str, total: int | None, began_s: float, *, is_unicode: bool, hint: str) -> None:
        self._done = 0
        self._what = what
        self._total = total
        self._began_s = began_s
        self._is_unicode = is_unicode
        self._hint = hint
        self._asked: StokerError | None = None

    def stop(self, error: StokerError) -> None:
        """Ask the work to end with this error, as soon as it says again how far it is."""
        self._asked = error

    @property
    def asked(self) -> StokerError:
        """Why the work ends before its end."""
        return self._asked or Cancelled("interrupted", hint=self._hint)

    def lines(self, now_s: float, _at_least_s: float) -> list[str]:
        """Return how far it is."""
        done, total, passed_s = self._done, self._total, now_s - self._began_s
        rate = done / passed_s if passed_s >= _WORTH_A_RATE_S and done else None
        left_s = max(0, total - done) / rate if rate and total is not None else None
        parts = [
            self._what,
            bar(done, total, is_unicode=self._is_unicode),
            self._amount(done, total),
            "" if rate is None else self._rate(rate),
            left_text(left_s),
        ]
        return ["  ".join(part for part in parts if part)]

    def _end_if_asked(self) -> None:
        if self._asked is not None:
            # Not one of our errors: those who check or copy many things take such for a fault of one of them.
            raise KeyboardInterrupt

    @abstractmethod
    def _amount(self, done: int, total: int | None) -> str:
        """Return how much of how much there is."""

    @abstractmethod
    def _rate(self, each_s: float) -> str:
        """Return how quickly it goes."""


class Amount(CommandProgress):
    """How many bytes of some work are done."""

    def __init__(self, what: str, total_bytes: int | None, began_s: float, *, is_unicode: bool) -> None:
        super().__init__(what, total_bytes, began_s, is_unicode=is_unicode, hint=_BEGINS_ANEW)

    @property
    def done_bytes(self) -> int:
        return self._done

    def add(self, size_bytes: int) -> None:
        """Take in that so many bytes more are done."""
        self._done += size_bytes

    def heed(self, size_bytes: int) -> None:
        """Take in that so many bytes more are done; ends the work if that was asked for."""
        self.add(size_bytes)
        self._end_if_asked()

    def _amount(self, done: int, total: int | None) -> str:
        return amount_text(done, total)

    def _rate(self, each_s: float) -> str:
        return rate_text(each_s)


@contextmanager
def under_way(call: CommandContext, what: str, total_bytes: int | None) -> Iterator[Amount]:
    """Show on a terminal how far the block is; a signal ends it between two bytes, and is what it then raises.

    Whatever the block does when it ends is not disturbed, except by a second Ctrl-C, two seconds after it.
    """
    amount = Amount(what, total_bytes, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode)
    with watched(call, amount):
        yield amount


@contextmanager
def watched(call: CommandContext, work: CommandProgress, hint: str = _BEGINS_ANEW) -> Iterator[None]:
    """The same for any work that ends itself by `KeyboardInterrupt` once it is asked to."""
    out = call.out
    screen = LiveScreen(out, call.parts.clock) if out.is_terminal and not out.is_quiet else Screen()
    screen.begin(work.lines)
    try:
        with Interruptions(work.stop, screen.mention, _leave, hint=hint):
            yield
    except KeyboardInterrupt:
        raise work.asked from None
    finally:
        screen.close()


def _leave() -> None:
    os._exit(Cancelled.exit_code)


# Long work that is counted: how far it is, shown on a terminal, and a clean end when a signal comes.

_NOTHING_LEFT = "nothing was started or written"


class Count(CommandProgress):
    """How many of how many are done."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Take in how many are done, perhaps of a new total; ends the work if that was asked for."""
        self._done = done
        self._total = self._total if total is None else total
        self._end_if_asked()

    def _amount(self, done: int, total: int | None) -> str:
        return f"{done:,}" if total is None else f"{done:,} of {total:,}"

    def _rate(self, each_s: float) -> str:
        return f"{each_s:,.0f}/s"


class ElapsedSeconds(Count):
    """How many seconds of how many have passed: they pass one each second, which needs not be said."""

    def _amount(self, done: int, total: int | None) -> str:
        return format_duration(done) if total is None else f"{format_duration(done)} of {format_duration(total)}"

    def _rate(self, _each_s: float) -> str:
        return ""


@contextmanager
def counted(call: CommandContext, what: str, total: int, sort: type[Count] = Count) -> Iterator[Count]:
    """Show on a terminal how far the block is; a signal ends it where it counts, and is what it then raises."""
    began_s = call.parts.clock.wall_s()
    count = sort(what, total, began_s, is_unicode=call.out.is_unicode, hint=_NOTHING_LEFT)
    with watched(call, count, hint=_NOTHING_LEFT):
        yield count
