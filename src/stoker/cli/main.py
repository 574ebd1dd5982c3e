"""Entry of the command line: global flags, aliases, help and version.

Imports little, so that `stoker --help` starts fast; `dispatch` does the rest. Global flags stand before or after the
command, up to a `--`.
"""

from __future__ import annotations

import os
import sys

from stoker import __version__
from stoker.cli.commands import COMPLETE, expand, take_flags, top_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.api.app_parts import AppParts


def run_command_line(argv: list[str], *, build: Callable[[], AppParts]) -> int:
    """Perform a command line; return the exit code. `build` is called only if the parts are needed."""
    if argv[:1] == [COMPLETE]:
        from stoker.cli.completion_words import answer_shell

        return answer_shell(argv[1:])
    words, flags = take_flags(argv)
    words = expand(words)
    if words[:1] == ["help"]:
        words, flags.help = expand(words[1:]), True
    if flags.version:
        return _print(f"stoker {__version__}\n")
    if flags.help and not words:
        return _print(top_help())
    from stoker.cli.dispatch import answer

    return answer(words or ["status"], flags, build)


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's last flush must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
