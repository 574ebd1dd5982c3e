"""From words to an exit code: find the command, read its words, perform it, and report whatever goes wrong.

Whatever happens, what was built is closed and standard output is given back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from stoker.cli.commands import COMMANDS, Command, find_command
from stoker.cli.context import CommandContext
from stoker.cli.errors import report
from stoker.cli.flags import Flags
from stoker.cli.interrupts import ended_on_request
from stoker.cli.output import CliOutput
from stoker.core.errors import Usage

if TYPE_CHECKING:
    from types import ModuleType

    from stoker.cli.app_parts import AppParts
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
    from stoker.cli.suggestions import instead_of
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
