"""One call of the command line, as a command sees it: flags, output, and the objects that `app` builds."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stoker.cli.commands import Flags, verbs_of
from stoker.core.errors import BadAnswer, Cancelled, Forbidden, LocalFile, MissingExtra, NoCoordinator
from stoker.core.text import json_printable, printable
from stoker.host.durable import translate

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts
    from stoker.api.job_lookup import JobLookup
    from stoker.core.errors import StokerError
    from stoker.jobs.builder import JobBuilder
    from stoker.jobs.job_folder import JobFolder
    from stoker.protocol.client import FleetClient
    from stoker.views.text_tables import Signs

_CONNECT_S = 3.0


class CommandContext:
    """Passed to every command: flags, output, and the objects of this process."""

    def __init__(self, flags: Flags, out: CliOutput, build: Callable[[], AppParts]) -> None:
        self.flags = flags
        self.out = out
        self._build = build
        self._parts: AppParts | None = None
        self.incomplete: StokerError | None = None
        """Set if the output is incomplete: reported after the command, with its exit code."""

    @property
    def parts(self) -> AppParts:
        """The parts, built on first use."""
        if self._parts is None:
            try:
                self._parts = self._build()
            except FileNotFoundError as error:
                raise LocalFile("the current folder no longer exists", hint="cd to an existing folder") from error
            from stoker.host.folders import close_home

            if note := close_home(self._parts.settings.home):
                self.out.note(note)
        return self._parts

    def state_folder(self) -> str:
        """Return the folder for crash reports, or "" if it can't be determined."""
        try:
            return self.parts.settings.state
        except Exception:  # noqa: BLE001 - it may be the very thing that is broken
            return ""

    @cached_property
    def lookup(self) -> JobLookup:
        """Finds coordinators and jobs; its connections are closed with the command."""
        from stoker.api.job_lookup import JobLookup

        return JobLookup(self.parts, self.out.note)

    def client_if_any(self, at: str | None = "") -> FleetClient | None:
        """Return a client of a reachable coordinator; None if there is none.

        If a coordinator that was not named with `--at` does not answer, print a note. If it rejects the token, the
        command shows local data and ends with that error.
        """
        found = self.lookup.coordinator(at)
        if found is None:
            self.lookup.note_if_gone()
            return None
        # A laptop away from its fleet should not wait for it.
        try:
            client = self.lookup.client_of(found, connect_s=None if at else _CONNECT_S)
            (client if at else client.more_patient(0.0)).jobs(limit=1)
        except (NoCoordinator, BadAnswer, Forbidden, MissingExtra) as error:
            if at:
                raise
            message = f"{error.message}; showing this machine only"
            if isinstance(error, MissingExtra):
                self.out.note(f"note: {message}; to see the fleet: {error.hint}")
            elif isinstance(error, Forbidden) and found.token:
                self.incomplete = Forbidden(message, hint=error.hint, **error.data)
            else:
                self.out.note(f"note: {message}")
            return None
        return client

    def close(self) -> None:
        """Close what was opened and built."""
        if "lookup" in vars(self):
            self.lookup.close()
        if self._parts is not None:
            self._parts.close()

    @contextlib.contextmanager
    def at_home(self, home: str) -> Iterator[None]:
        """Use another home within the block; its parts are closed at the end."""
        before = self.parts
        self._parts = before.at_home(home)
        try:
            yield
        finally:
            self._parts.close()
            self._parts = before

    def path(self, text: str) -> str:
        """Return the absolute path of a user's path, relative to the current folder; `~` is the home folder."""
        return os.path.abspath(os.path.join(self.parts.settings.folder, os.path.expanduser(text)))

    def find_job(self, name: str) -> JobFolder:
        """Find a job by its name, `last`, or an id prefix."""
        from stoker.jobs.job_folder import find_job

        return find_job(self.parts.settings.runs, name)

    def sweeps_folder(self) -> str:
        """Return the folder that records which trials of programs have finished."""
        return os.path.join(self.parts.settings.state, "sweeps")

    def builder(self) -> JobBuilder:
        """Return the job builder."""
        return self.parts.builder()


# The only printer: data to standard output, everything else to standard error; in JSON mode only JSON to output.

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}


def list_verbs(call: CommandContext, words: str) -> None:
    """Print the verbs of a noun."""
    verbs = [(f"stoker {verb.words}", verb.summary) for verb in verbs_of(words)]
    for command, summary in verbs:
        call.out.object({"command": command, "summary": summary})
    call.out.table(verbs)


class CliOutput:
    """The output of one command. Call `open` before importing third-party code."""

    def __init__(self, *, is_json: bool, is_quiet: bool) -> None:
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.goes_on_unread = False
        """True if the command continues after its output was closed by the reader."""
        self.is_watched = False
        """True if each line is flushed at once."""
        self.on_output: Callable[[], None] | None = None
        """Is called before the command writes, asks or shows progress."""
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
        """Prepare standard output; in JSON mode redirect it to standard error."""
        for stream in (sys.stdout, sys.stderr):
            # A file name may hold invalid UTF-8, and a terminal may not support all characters.
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
                # Closed by the parent process: there is no reader.
                self._json_fd = os.open(os.devnull, os.O_WRONLY)

    def close(self) -> None:
        """Flush and restore standard output."""
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
        """Width of the terminal; 0 without one."""
        if not self.is_terminal:
            return 0
        try:
            return os.get_terminal_size(1).columns
        except OSError:
            return 0

    @property
    def rows(self) -> int:
        """Height of the terminal; 0 without one."""
        if not self.is_terminal:
            return 0
        try:
            return os.get_terminal_size(1).lines
        except OSError:
            return 0

    def line(self, text: str = "") -> None:
        """Write a line of text; nothing in JSON mode."""
        if not self.is_json and sys.stdout is not None:
            self._write(lambda: self._print(printable(text)))

    def piece(self, text: str) -> None:
        """Write a part of a line at once; nothing in JSON mode."""
        if not self.is_json and sys.stdout is not None:
            self._write(lambda: (sys.stdout.write(printable(text)), sys.stdout.flush()))

    def lines(self, texts: Iterable[str]) -> None:
        """Write lines of text; nothing in JSON mode."""
        for text in texts:
            self.line(text)

    def table(self, rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), indent: str = "") -> None:
        """Write rows as a table, as wide as the terminal."""
        from stoker.views.text_tables import table

        self.lines(table(rows, header=header, columns=self.columns, indent=indent))

    @property
    def signs(self) -> Signs:
        """The status signs that this terminal can show."""
        from stoker.views.text_tables import ASCII, UNICODE

        return UNICODE if self.is_unicode else ASCII

    def object(self, value: dict[str, Any]) -> None:
        """Write an object as a line of JSON; nothing in text mode."""
        if self.is_json:
            from stoker.core.jsontext import dumps

            self.json_line(dumps(value))

    def json_line(self, text: str) -> None:
        """Write a line of JSON, with control characters escaped."""
        self._write(lambda: _write_all(self._json_fd, f"{json_printable(text)}\n".encode()))

    def note(self, text: str) -> None:
        """Write a line to standard error, except with --quiet."""
        if not self.is_quiet:
            self.complain(text)

    def speaks(self) -> None:
        """End what is shown while the command is silent: it is about to write, ask or show progress."""
        if self.on_output is not None:
            self.on_output()

    def complain(self, text: str) -> None:
        """Write an error to standard error."""
        self.speaks()
        self.write_aside(text)

    def write_aside(self, text: str) -> None:
        """Write a line to standard error beside whatever is shown."""
        if sys.stderr is not None:
            # Earlier output comes first; `close` reports what can't be written.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
            try:
                sys.stderr.write(f"{printable(text)}\n")
                sys.stderr.flush()
            except OSError:
                # There is no reader; the exit code still reports it.
                return

    def asks(self, question: str, *, by_default: bool = False) -> bool:
        """Ask a yes-or-no question on a terminal; elsewhere return False. `by_default` is the meaning of Enter."""
        if not self.can_ask:
            return False
        self.speaks()
        answer = _answer_to(f"{question} [{'Y/n' if by_default else 'y/N'}] ")
        # An end of input is not Enter.
        return answer.strip().lower() in ("y", "yes") or (by_default and answer == "\n")

    def ask(self, question: str, by_default: str) -> str:
        """Ask for a line of text on a terminal; Enter means `by_default`. Raises `Cancelled` at the end of input."""
        self.speaks()
        answer = _answer_to(f"{printable(question)} [{printable(by_default)}] ")
        if not answer:
            sys.stderr.write("\n")
            raise Cancelled("end of input; nothing was written")
        return answer.strip() or by_default

    @property
    def can_ask(self) -> bool:
        """True if there is a terminal that can answer questions."""
        return self.is_terminal and sys.stdin is not None and sys.stdin.isatty()

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour, if the terminal has colours."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self.has_colour else text

    def _print(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        if self.is_terminal or self.is_watched:
            sys.stdout.flush()

    def _write(self, act: Any) -> None:
        self.speaks()
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
        """Stop writing to standard output, and report why on standard error."""
        self._turn_away()
        self.complain(f"stoker: can't write to standard output: {getattr(error, 'strerror', None) or error}")

    def _turn_away(self) -> None:
        self._is_unread = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1 if self._json_fd < 0 else self._json_fd)
        os.close(null)


def _answer_to(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
