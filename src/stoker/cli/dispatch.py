"""Find the command, parse its words, perform it, report errors, and return the exit code.

On every path the built objects are closed and standard output is restored.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from stoker.cli.commands import COMMANDS, Command, Flags, find_command
from stoker.cli.context import CliOutput, CommandContext
from stoker.core.errors import Cancelled, InternalError, InvalidInput, ProcessLost, StokerError, Terminated, Usage
from stoker.core.text import outside
from stoker.host.durable import translate
from stoker.host.identity import rows

if TYPE_CHECKING:
    from types import ModuleType

    from stoker.api.app_parts import AppParts
    from stoker.cli.grammar import Grammar


_OBJECTS_BETWEEN_SEARCHES = 50_000
"""New objects after which Python collects garbage (Python's default: 700)."""


def answer(
    words: list[str],
    flags: Flags,
    build: Callable[[], AppParts],
    watched: Callable[[CliOutput, str], AbstractContextManager[None]] = lambda _out, _words: nullcontext(),
) -> int:
    """Perform the command that the words name, within `watched` of its words; return the exit code."""
    out = CliOutput(is_json=flags.json, is_quiet=flags.quiet)
    out.open()
    call = CommandContext(flags, out, build)
    try:
        try:
            with ended_on_request():
                return _perform(call, words, watched)
        finally:
            call.close()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - here every error becomes a line and a code
        besides = call.incomplete if call.incomplete is not error else None
        return report(error, out, debug=flags.debug, crash_folder=call.state_folder, besides=besides)
    finally:
        out.close()


def _perform(
    call: CommandContext, words: list[str], watched: Callable[[CliOutput, str], AbstractContextManager[None]]
) -> int:
    command, rest = find_command(words)
    if command is None:
        raise _unknown(words[0])
    module = _imported(command.module)
    grammar: Grammar = getattr(module, command.grammar)
    if call.flags.help:
        call.out.line(grammar.help().rstrip("\n"))
        call.out.object({"command": command.words, "help": grammar.help()})
        return 0
    with watched(call.out, command.words):
        code: int = getattr(module, command.performer)(call, grammar.parse(rest))
    if call.incomplete is not None:
        raise call.incomplete
    return code


def _imported(name: str) -> ModuleType:
    """Import a command without garbage collection, and exclude what was imported from later collections.

    Eighty collections in a run of 300 ms took 14 ms and found nothing. A command imports more while it runs, so
    collections stay rare afterwards.
    """
    gc.disable()
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _unknown(word: str) -> Usage:
    from stoker.cli.grammar import instead_of
    from stoker.core.text import did_you_mean

    known = list(dict.fromkeys(_first(command) for command in COMMANDS))
    as_verb = [command.words for command in COMMANDS if command.path[0] != word == command.path[-1]]
    hint = f"did you mean `stoker {as_verb[0]}`?" if len(as_verb) == 1 else ""
    hint = hint or instead_of(word) or did_you_mean(word, [*known, "help"]) or "list the commands: stoker --help"
    if word.startswith("-"):
        return Usage(f"unknown option {word!r}", hint="list the commands: stoker --help")
    return Usage(f"unknown command {word!r}", hint=hint)


def _first(command: Command) -> str:
    return command.path[0]


# Errors: one line for what happened, one for what to do, and an exit code.

_NO_THREAD = "can't start new thread"


def report(
    error: BaseException,
    out: CliOutput,
    *,
    debug: bool,
    crash_folder: Callable[[], str] = str,
    is_in_stream: bool = False,
    besides: StokerError | None = None,
) -> int:
    """Print an error, also as JSON unless the stream of events has it already; return the exit code.

    `besides` is an earlier error, such as a refused token.
    """
    if isinstance(error, BrokenPipeError):
        return 0
    if isinstance(error, AskedToEnd):
        known: StokerError = Terminated(str(error))
    elif isinstance(error, KeyboardInterrupt):
        known = Cancelled("interrupted")
    elif isinstance(error, StokerError):
        known = error
    elif isinstance(error, OSError) and error.filename is not None:
        # An error of the operating system is not an internal error.
        known = translate(error, str(error.filename))
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        known = ProcessLost("could not start a thread", hint="this machine or user is out of memory or process ids")
    else:
        known = _missing_extra(error) or _bug(error, crash_folder())
    if debug:
        import traceback

        out.complain("".join(traceback.format_exception(error)).rstrip())
    for line in [*error_lines(known), *(error_lines(besides) if besides is not None else ())]:
        out.complain(line)
    if not is_in_stream:
        # Standard error has it already, and why standard output can't be written.
        with suppress(StokerError, OSError):
            out.object(known.to_dict())
    return known.exit_code


def error_lines(error: StokerError) -> list[str]:
    """Return an error as lines of text."""
    lines = [f"stoker: {error}"]
    if isinstance(error, InvalidInput):
        for fault in error.faults:
            if len(error.faults) > 1:
                lines.append(f"  {fault}")
            lines += [f"      {line}" for line in fault.shown.splitlines()]
    if error.hint:
        lines.append(f"hint: {error.hint}")
    # None is painted by us: a colour would come from the name of a file or the answer of a server.
    return [outside(one) for line in lines for one in line.split("\n")]


def _missing_extra(error: BaseException) -> StokerError | None:
    if not isinstance(error, ModuleNotFoundError):
        return None
    from stoker.host.install import missing_extra

    return missing_extra(error)


def _bug(error: BaseException, crash_folder: str) -> InternalError:
    text = str(error).strip().split("\n")[0]
    path = _keep(error, crash_folder)
    where = f"report it with {path}" if path else "run the command again with --debug"
    return InternalError(
        f"internal error: {type(error).__name__}{f': {text}' if text else ''}", hint=where, report=path
    )


def _keep(error: BaseException, folder: str) -> str:
    """Write a crash report into the folder, or into the folder for temporary files; return its path, or "".

    Other users may write to the second folder, so the file is new, has a random name and is readable only by its owner.
    """
    import platform
    import tempfile
    import time
    import traceback

    from stoker import __version__
    from stoker.host.folders import make_state

    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-"
    text = (
        f"stoker {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"{sys.argv!r}\n\n{''.join(traceback.format_exception(error))}"
    )
    for place in (folder, tempfile.gettempdir()):
        try:
            make_state(place)
            descriptor, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=place)
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except (OSError, StokerError):
            continue
        return path
    return ""


# Signals: every command cleans up on SIGTERM and SIGHUP (`ended_on_request`); `Interruptions` stops local work.
#
#     Ctrl-C                 request a stop, clean up, 130
#     Ctrl-C again           kill child processes, clean up what is possible at once, 130
#     SIGTERM, or SIGHUP (terminal closed)      request a stop, clean up, 143
#
# A signal that was ignored at the start (nohup, a background job of a script) stays ignored. The earlier handlers are
# restored at the end.


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
