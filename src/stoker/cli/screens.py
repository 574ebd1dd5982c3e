"""Screens that show the progress of work: none, plain lines, or a live display; and progress of long commands."""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.dispatch import Interruptions, say_aside
from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, StokerError
from stoker.core.jsontext import dumps
from stoker.core.text import format_duration, printable
from stoker.views.transfer_lines import amount_text, bar, left_text, rate_text

if TYPE_CHECKING:
    from rich.text import Text


HEARTBEAT_S = 10.0


Running = Callable[[float, float], list[str]]
"""Returns a line for each running stage, from the current time and the minimum time it has run."""


class Screen:
    """Shows the progress of work. This one shows nothing."""

    def begin(self, running: Running) -> None:
        """Start showing what `running` returns."""

    def lasting(self, line: str) -> None:
        """Print a line that stays."""

    def mention(self, line: str) -> None:
        """Print a line soon; may be called from a signal handler."""
        say_aside(line)

    def close(self) -> None:
        """Print what is left and stop."""


class LineScreen(Screen):
    """Prints only the lines that stay."""

    def __init__(self, out: CliOutput) -> None:
        self._out = out

    def lasting(self, line: str) -> None:
        self._out.line(line)


class PlainScreen(LineScreen):
    """Prints lines without control codes, and every 10 s the changed lines of long work."""

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
        before: list[str] = []
        while not self._is_over.wait(HEARTBEAT_S):
            lines = running(self._clock.wall_s(), HEARTBEAT_S / 2)
            for line in lines:
                if line not in before:
                    self._out.line(f"  {line}")
            before = lines


class PipeScreen(Screen):
    """Reports progress where there is no terminal, every 10 s: on standard error, as lines, with --json as events.

    Standard output has only the command's own objects, which programs may count.
    """

    def __init__(self, out: CliOutput, work: CommandProgress, clock: Clock) -> None:
        self._out = out
        self._work = work
        self._clock = clock
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, _running: Running) -> None:
        self._thread = threading.Thread(target=self._beat, name="stoker-progress", daemon=True)
        self._thread.start()

    def lasting(self, line: str) -> None:
        self._out.line(line)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        before: list[str] = []
        while not self._is_over.wait(HEARTBEAT_S):
            now_s = self._clock.wall_s()
            lines = [dumps(self._work.event(now_s))] if self._out.is_json else self._work.lines(now_s, 0.0)
            for line in lines if lines != before else ():
                # Not `note`, with which a command speaks itself.
                self._out.write_aside(line)
            before = lines


def open_screen(out: CliOutput, clock: Clock, *, is_live: bool = True) -> Screen:
    """Return a live screen on a terminal if `is_live`, a plain one elsewhere, none if quiet."""
    out.speaks()
    if out.is_json or out.is_quiet:
        return Screen()
    return LiveScreen(out, clock) if out.is_terminal and is_live else PlainScreen(out, clock)


_IMPORT_AFTER_S = 0.15
_FRAME_S = 0.1
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER = "|/-\\"


class LiveScreen(Screen):
    """Draws a line for each running stage on a terminal, below the lines that stay, until it is closed.

    One thread draws, and imports Rich only after 0.15 s, so that a short run does not pay for it.
    """

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
        if self._is_over.wait(_IMPORT_AFTER_S):
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


# The user's terminal in raw mode.

_STDIN, _STDOUT = 0, 1


def is_at_terminal() -> bool:
    """Return True if standard input and output are a terminal."""
    if sys.platform == "win32":
        return False
    try:
        return os.isatty(_STDIN) and os.isatty(_STDOUT)
    except OSError:
        return False


def terminal_size() -> tuple[int, int]:
    """Return rows and columns (default: 24 and 80)."""
    try:
        columns, rows = os.get_terminal_size(_STDOUT)
    except OSError:
        columns, rows = 0, 0
    return rows or 24, columns or 80


@contextmanager
def raw_terminal() -> Iterator[threading.Event]:
    """Pass keys through in this block; the yielded event is set when the size of the terminal changes."""
    import termios
    import tty

    resized = threading.Event()

    def on_resize(_number: int, _frame: FrameType | None) -> None:
        resized.set()

    before = termios.tcgetattr(_STDIN)
    handler = signal.signal(signal.SIGWINCH, on_resize)
    try:
        tty.setraw(_STDIN)
        yield resized
    finally:
        # Unread input must not reach the user's shell.
        termios.tcsetattr(_STDIN, termios.TCSAFLUSH, before)
        signal.signal(signal.SIGWINCH, handler)


# Progress of long commands: shown on a terminal; a signal stops them cleanly.

_WORTH_A_RATE_S = 0.5
_BEGINS_ANEW = "no partial files remain; run the same command again"


class CommandProgress(ABC):
    """The progress of a command."""

    unit = "items"

    def __init__(self, what: str, total: int | None, began_s: float, *, is_unicode: bool, hint: str) -> None:
        self._done = 0
        self._what = what
        self._total = total
        self._began_s = began_s
        self._is_unicode = is_unicode
        self._hint = hint
        self._stop: StokerError | None = None

    @property
    def done(self) -> int:
        """What is done, in the unit of the progress."""
        return self._done

    def stop(self, error: StokerError) -> None:
        """Request a stop with this error at the next progress report."""
        self._stop = error

    @property
    def error(self) -> StokerError:
        """The reason of the stop."""
        return self._stop or Cancelled("interrupted", hint=self._hint)

    def event(self, now_s: float) -> dict[str, Any]:
        """Return the progress as an event of a stream."""
        rate, left_s = self._speed(now_s)
        return {
            "v": 1,
            "ts": now_s,
            "source": "cli",
            "kind": "progress",
            "what": self._what,
            "done": self._done,
            "total": self._total,
            "unit": self.unit,
            "per_s": rate,
            "left_s": left_s,
        }

    def _speed(self, now_s: float) -> tuple[float | None, float | None]:
        """Return the done amount per second, and the seconds left; None: not known yet."""
        done, total, passed_s = self._done, self._total, now_s - self._began_s
        rate = done / passed_s if passed_s >= _WORTH_A_RATE_S and done else None
        return rate, max(0, total - done) / rate if rate and total is not None else None

    def lines(self, now_s: float, _at_least_s: float) -> list[str]:
        """Return the progress line."""
        done, total = self._done, self._total
        rate, left_s = self._speed(now_s)
        parts = [
            self._what,
            bar(done, total, is_unicode=self._is_unicode),
            self._amount(done, total),
            "" if rate is None else self._rate(rate),
            left_text(left_s),
        ]
        return ["  ".join(part for part in parts if part)]

    def _raise_if_stopped(self) -> None:
        if self._stop is not None:
            # Not a StokerError: loops over many files would take it for an error of one file.
            raise KeyboardInterrupt

    @abstractmethod
    def _amount(self, done: int, total: int | None) -> str:
        """Return the done amount and the total as text."""

    @abstractmethod
    def _rate(self, each_s: float) -> str:
        """Return the rate as text."""


class Amount(CommandProgress):
    """Progress in bytes."""

    unit = "bytes"

    def __init__(self, what: str, total_bytes: int | None, began_s: float, *, is_unicode: bool) -> None:
        super().__init__(what, total_bytes, began_s, is_unicode=is_unicode, hint=_BEGINS_ANEW)

    @property
    def done_bytes(self) -> int:
        return self._done

    def add(self, size_bytes: int) -> None:
        """Add done bytes."""
        self._done += size_bytes

    def heed(self, size_bytes: int) -> None:
        """Add done bytes. Raises `KeyboardInterrupt` if a stop was requested."""
        self.add(size_bytes)
        self._raise_if_stopped()

    def reach(self, done_bytes: int, total_bytes: int) -> None:
        """Set the done bytes and all of them. Raises `KeyboardInterrupt` if a stop was requested."""
        self._done, self._total = done_bytes, total_bytes
        self._raise_if_stopped()

    def _amount(self, done: int, total: int | None) -> str:
        return amount_text(done, total)

    def _rate(self, each_s: float) -> str:
        return rate_text(each_s)


@contextmanager
def under_way(call: CommandContext, what: str, total_bytes: int | None) -> Iterator[Amount]:
    """Show the progress of the block on a terminal; a signal stops it at the next report and raises its error.

    The clean-up of the block is not interrupted, except by a second Ctrl-C, after two seconds.
    """
    amount = Amount(what, total_bytes, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode)
    with watched(call, amount):
        yield amount


@contextmanager
def watched(call: CommandContext, work: CommandProgress, hint: str = _BEGINS_ANEW) -> Iterator[None]:
    """Like `under_way`, for any `CommandProgress`."""
    screen = _screen_of(call, work)
    screen.begin(work.lines)
    try:
        with Interruptions(work.stop, screen.mention, _leave, hint=hint):
            yield
    except KeyboardInterrupt:
        raise work.error from None
    finally:
        screen.close()


@contextmanager
def busy(call: CommandContext, what: str) -> Iterator[None]:
    """Show that a block whose length is not known is under way, and for how long; a signal ends the command at once."""
    work = _Elapsed(what, None, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode, hint="")
    screen = _screen_of(call, work)
    screen.begin(work.lines)
    try:
        yield
    finally:
        screen.close()


T = TypeVar("T")


def busy_between(call: CommandContext, what: str, items: Iterable[T]) -> Iterator[T]:
    """Return items that take long to find, as they come; while the next one is looked for, show for how long.

    `what` may hold `{number}`.
    """
    left = iter(items)
    for number in count(1):
        with busy(call, what.format(number=f"{number:,}")):
            found = list(islice(left, 1))
        if not found:
            return
        yield found[0]


def _screen_of(call: CommandContext, work: CommandProgress) -> Screen:
    out, clock = call.out, call.parts.clock
    if out.is_quiet:
        return Screen()
    out.speaks()
    return LiveScreen(out, clock) if out.is_terminal else PipeScreen(out, work, clock)


def waiting_screen(call: CommandContext, what: str, total: int, done: Callable[[], int]) -> Screen:
    """Return a screen for a wait: live on a terminal; elsewhere lines that stay, and how far it is beside them."""
    out, clock = call.out, call.parts.clock
    out.speaks()
    if out.is_quiet:
        return LineScreen(out)
    if out.is_terminal:
        return LiveScreen(out, clock)
    return PipeScreen(out, _Waited(what, total, clock.wall_s(), done, is_unicode=out.is_unicode), clock)


def elapsed_screen(out: CliOutput, what: str, clock: Clock, began_s: float) -> Screen:
    """Return an open screen that shows how long something takes."""
    work = _Elapsed(what, None, began_s, is_unicode=out.is_unicode, hint="")
    screen: Screen = LiveScreen(out, clock) if out.is_terminal else PipeScreen(out, work, clock)
    screen.begin(work.lines)
    return screen


def _leave() -> None:
    os._exit(Cancelled.exit_code)


_NOTHING_LEFT = "nothing was started or written"


class Count(CommandProgress):
    """Progress as a number of items."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the done number and perhaps a new total. Raises `KeyboardInterrupt` if a stop was requested."""
        self._done = done
        self._total = self._total if total is None else total
        self._raise_if_stopped()

    def _amount(self, done: int, total: int | None) -> str:
        return f"{done:,}" if total is None else f"{done:,} of {total:,}"

    def _rate(self, each_s: float) -> str:
        return f"{each_s:,.0f}/s"


class ElapsedSeconds(Count):
    """Progress in elapsed seconds, without a rate."""

    unit = "seconds"

    def _amount(self, done: int, total: int | None) -> str:
        return format_duration(done) if total is None else f"{format_duration(done)} of {format_duration(total)}"

    def _rate(self, _each_s: float) -> str:
        return ""


class _Elapsed(Count):
    """Progress of which only the time is known."""

    unit = "seconds"

    def lines(self, now_s: float, _at_least_s: float) -> list[str]:
        return [f"{self._what}  {format_duration(max(0.0, now_s - self._began_s))}"]

    def event(self, now_s: float) -> dict[str, Any]:
        return {**super().event(now_s), "done": round(max(0.0, now_s - self._began_s), 3)}


class _Waited(Count):
    """Progress of jobs that others run."""

    unit = "jobs"

    def __init__(self, what: str, total: int, began_s: float, done: Callable[[], int], *, is_unicode: bool) -> None:
        super().__init__(f"waiting for {what}", total, began_s, is_unicode=is_unicode, hint="")
        self._done_now = done

    @property
    def done(self) -> int:
        return self._done_now()

    def lines(self, now_s: float, _at_least_s: float) -> list[str]:
        # Without the elapsed time: a line in a pipe is written when it changes.
        return [f"{self._what}: {self.done:,} of {self._total:,} ended"]

    def event(self, now_s: float) -> dict[str, Any]:
        self._done = self.done
        return super().event(now_s)


@contextmanager
def show_progress(
    call: CommandContext, what: str, total: int | None, sort: type[Count] = Count, hint: str = _NOTHING_LEFT
) -> Iterator[Count]:
    """Show the progress of the block on a terminal; a signal stops it at the next report and raises its error."""
    began_s = call.parts.clock.wall_s()
    progress = sort(what, total, began_s, is_unicode=call.out.is_unicode, hint=hint)
    with watched(call, progress, hint=hint):
        yield progress
