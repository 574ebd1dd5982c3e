"""One call of the command line, as a command sees it: what was asked, where to write, and the parts of the house."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from stoker.cli.commands import Flags
from stoker.core.errors import LocalFile
from stoker.core.text import json_printable, printable
from stoker.host.durable import translate

if TYPE_CHECKING:
    from stoker.cli.app_parts import AppParts
    from stoker.core.errors import StokerError
    from stoker.jobs.build_context import JobCompiler
    from stoker.jobs.job_folder import JobFolder


class Closeable(Protocol):
    """What has to be closed at the end."""

    def close(self) -> None: ...


class CommandContext:
    """Handed to the command that performs it."""

    def __init__(self, flags: Flags, out: CliOutput, build: Callable[[], AppParts]) -> None:
        self.flags = flags
        self.out = out
        self._build = build
        self._parts: AppParts | None = None
        self._opened: list[Closeable] = []
        self.incomplete: StokerError | None = None
        """Why the answer is incomplete. The command does what it can; then this is reported, with its exit code."""

    @property
    def parts(self) -> AppParts:
        """The parts, built when first asked for."""
        if self._parts is None:
            try:
                self._parts = self._build()
            except FileNotFoundError as error:
                raise LocalFile("the folder this was started in is gone", hint="cd to one that exists") from error
        return self._parts

    def state_folder(self) -> str:
        """Return where a crash may be written down, if that can be found out."""
        try:
            return self.parts.settings.state
        except Exception:  # noqa: BLE001 - it may be the very thing that is broken
            return ""

    def keep_open(self, opened: Closeable) -> None:
        """Close this when the command is over."""
        self._opened.append(opened)

    def close(self) -> None:
        """Let go of what was built."""
        for opened in self._opened:
            opened.close()
        if self._parts is not None:
            self._parts.close()

    def path(self, text: str) -> str:
        """Return the whole path of what a user wrote: below where the command was given, `~` being home."""
        return os.path.abspath(os.path.join(self.parts.settings.folder, os.path.expanduser(text)))

    def find_job(self, name: str) -> JobFolder:
        """Find a job by its name, `last`, or the beginning of an id."""
        from stoker.jobs.job_folder import find_job

        return find_job(self.parts.settings.runs, name)

    def sweeps_folder(self) -> str:
        """Return where it is written down which trials of programs have finished."""
        return os.path.join(self.parts.settings.state, "sweeps")

    def desk(self) -> JobCompiler:
        """Return what takes orders."""
        return self.parts.desk()


# The only printer: data to standard output, everything else to standard error, and JSON mode pure.

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}


class CliOutput:
    """Where one command writes. Open it before anything of other people's is imported."""

    def __init__(self, *, is_json: bool, is_quiet: bool) -> None:
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.goes_on_unread = False
        """Whether the command has work to do even if nobody reads on."""
        self.is_watched = False
        """Whether somebody may be waiting for each line."""
        self._json_fd = -1
        self._is_unread = False
        self.is_terminal = (
            not is_json
            and sys.stdout is not None
            and sys.stdout.isatty()
            and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        )
        self.has_colour = self.is_terminal and not os.environ.get("NO_COLOR")
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        self.is_unicode = encoding.startswith("utf")

    def open(self) -> None:
        """Take hold of standard output."""
        for stream in (sys.stdout, sys.stderr):
            # A file's name may hold bytes that are no text, and a terminal may know few signs.
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        if self.is_json:
            if sys.stdout is not None:
                sys.stdout.flush()
            try:
                self._json_fd = os.dup(1)
                os.dup2(2, 1)
            except OSError:
                # Closed by whoever started us: there is nobody to write to.
                self._json_fd = os.open(os.devnull, os.O_WRONLY)

    def close(self) -> None:
        """Write what is buffered and give standard output back."""
        if sys.stdout is not None:
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                self._turn_away()
            except (OSError, ValueError) as error:
                self._give_up(error)
        if self._json_fd >= 0:
            os.dup2(self._json_fd, 1)
            os.close(self._json_fd)
            self._json_fd = -1

    @property
    def columns(self) -> int:
        """How wide a line may be; 0 where nobody looks at a screen."""
        if not self.is_terminal:
            return 0
        try:
            return os.get_terminal_size(1).columns
        except OSError:
            return 0

    @property
    def rows(self) -> int:
        """How many lines a screen shows at once; 0 where nobody looks at one."""
        if not self.is_terminal:
            return 0
        try:
            return os.get_terminal_size(1).lines
        except OSError:
            return 0

    def line(self, text: str = "") -> None:
        """Write a line for people; nothing in JSON mode."""
        if not self.is_json and sys.stdout is not None:
            self._write(lambda: self._print(printable(text)))

    def object(self, value: dict[str, Any]) -> None:
        """Write an object as a line of JSON; nothing in any other mode."""
        if self.is_json:
            from stoker.core.jsontext import dumps

            self.json_line(dumps(value))

    def json_line(self, text: str) -> None:
        """Write a line that is JSON already. It means the same to a program, and nothing to a terminal."""
        self._write(lambda: _write_all(self._json_fd, f"{json_printable(text)}\n".encode()))

    def note(self, text: str) -> None:
        """Say something beside the answer, on standard error."""
        if not self.is_quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """Say what went wrong, on standard error."""
        if sys.stderr is not None:
            # What was said before it is read before it; what can't be written is told when we close.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
            try:
                sys.stderr.write(f"{printable(text)}\n")
                sys.stderr.flush()
            except OSError:
                # Nobody can be told; the exit code still says it.
                return

    def asks(self, question: str, *, by_default: bool = False) -> bool:
        """Ask a yes-or-no question where somebody can answer; nobody there means no, whatever Enter alone means."""
        if not self.is_terminal or sys.stdin is None or not sys.stdin.isatty():
            return False
        sys.stderr.write(f"{question} [{'Y/n' if by_default else 'y/N'}] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        # An end of input is not Enter.
        return answer.strip().lower() in ("y", "yes") or (by_default and answer == "\n")

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour, where there are colours."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self.has_colour else text

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        if self.is_terminal or self.is_watched:
            sys.stdout.flush()

    def _write(self, act: Any) -> None:
        if self._is_unread:
            return
        try:
            act()
        except BrokenPipeError:
            self._turn_away()
            if not self.goes_on_unread:
                raise
        except OSError as error:
            self._give_up(error)
            if not self.goes_on_unread:
                raise translate(error, "standard output") from error

    def _give_up(self, error: Exception) -> None:
        """Stop writing to where nothing can be written, and say so where people look."""
        self._turn_away()
        self.complain(f"stoker: standard output can't be written: {getattr(error, 'strerror', None) or error}")

    def _turn_away(self) -> None:
        self._is_unread = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1 if self._json_fd < 0 else self._json_fd)
        os.close(null)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
