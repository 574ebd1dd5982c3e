"""From words to an exit code: find the command, read its words, perform it, and report whatever goes wrong.

Whatever happens, what was built is closed and standard output is given back.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from stoker.cli.commands import COMMANDS, Command, Flags, find_command
from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.interrupts import AskedToEnd, ended_on_request
from stoker.core.errors import Cancelled, InternalError, InvalidInput, ProcessLost, StokerError, Terminated, Usage
from stoker.core.text import outside
from stoker.host.durable import translate

if TYPE_CHECKING:
    from types import ModuleType

    from stoker.api.app_parts import AppParts
    from stoker.cli.grammar import Grammar


_OBJECTS_BETWEEN_SEARCHES = 50_000
"""New objects after which Python looks for garbage; 700 unless set."""


def answer(words: list[str], flags: Flags, build: Callable[[], AppParts]) -> int:
    """Perform the command that the words name; give the exit code."""
    out = CliOutput(is_json=flags.json, is_quiet=flags.quiet)
    out.open()
    call = CommandContext(flags, out, build)
    try:
        try:
            with ended_on_request():
                return _perform(call, words)
        finally:
            call.close()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - here every error becomes a line and a code
        besides = call.incomplete if call.incomplete is not error else None
        return report(error, out, debug=flags.debug, crash_folder=call.state_folder, besides=besides)
    finally:
        out.close()


def _perform(call: CommandContext, words: list[str]) -> int:
    command, rest = find_command(words)
    if command is None:
        raise _unknown(words[0])
    module = _imported(command.module)
    grammar: Grammar = getattr(module, command.grammar)
    if call.flags.help:
        call.out.line(grammar.help().rstrip("\n"))
        call.out.object({"command": command.words, "help": grammar.help()})
        return 0
    code: int = getattr(module, command.performer)(call, grammar.parse(rest))
    if call.incomplete is not None:
        raise call.incomplete
    return code


def _imported(name: str) -> ModuleType:
    """Import a command without looking for garbage meanwhile, and never look through what was imported again.

    Everything that is made stays: eighty searches in a run of 300 ms took 14 ms and found nothing. A command imports
    more while it runs, so it looks for garbage seldom then, too.
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
    hint = hint or instead_of(word) or did_you_mean(word, [*known, "help"]) or "`stoker --help` lists the commands"
    if word.startswith("-"):
        return Usage(f"there is no option {word!r} here", hint="`stoker --help` lists the commands and their options")
    return Usage(f"there is no command {word!r}", hint=hint)


def _first(command: Command) -> str:
    return command.path[0]


# Errors as people and programs read them: one line that says what happened, one that says what to do, and a code.

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
    """Report an error to people and programs; return the exit code.

    A stream of events has reported it to programs already. `besides` was wrong before, such as a refused token.
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
        # What the machine refuses is not our bug, wherever it comes up.
        known = translate(error, str(error.filename))
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        known = ProcessLost("no thread could be made", hint="this machine or user is out of memory or process numbers")
    else:
        known = _missing_extra(error) or _bug(error, crash_folder())
    if debug:
        import traceback

        out.complain("".join(traceback.format_exception(error)).rstrip())
    for line in [*error_lines(known), *(error_lines(besides) if besides is not None else ())]:
        out.complain(line)
    if not is_in_stream:
        out.object(known.to_dict())
    return known.exit_code


def error_lines(error: StokerError) -> list[str]:
    """Return an error as the lines that a person reads."""
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
    where = f"please send us {path}" if path else "run it again with --debug to see where"
    return InternalError(
        f"a bug in Stoker: {type(error).__name__}{f': {text}' if text else ''}", hint=where, report=path
    )


def _keep(error: BaseException, folder: str) -> str:
    """Write a report into the folder, or where temporary files lie; return its path, or nothing.

    Others may write to the second place: its name can't be foreseen, it is new, and only its owner reads it.
    """
    import platform
    import tempfile
    import time
    import traceback

    from stoker import __version__

    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-"
    text = (
        f"stoker {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"{sys.argv!r}\n\n{''.join(traceback.format_exception(error))}"
    )
    for place in (folder, tempfile.gettempdir()):
        try:
            os.makedirs(place, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=place)
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return ""
