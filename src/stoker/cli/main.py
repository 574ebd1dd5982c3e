"""The front door of the command line: flags that every command takes, aliases, help and version.

Imports next to nothing, because `stoker --help` is the first thing that people run; the rest of the way is
`answering`. Flags of every command stand before or behind it, up to a `--`.
"""

from __future__ import annotations

import os
import sys

from stoker import __version__
from stoker.cli.commands import expand, take_flags, top_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.api.app_parts import AppParts


def run_command_line(argv: list[str], *, build: Callable[[], AppParts]) -> int:
    """Do what the words say; give the exit code. `build` makes the parts, and is called only if they are needed."""
    words, flags = take_flags(argv)
    words = expand(words)
    if words[:1] == ["help"]:
        words, flags.help = expand(words[1:]), True
    if flags.version:
        return _say(f"stoker {__version__}\n")
    if flags.help and not words:
        return _say(top_help())
    from stoker.cli.dispatch import answer

    return answer(words or ["status"], flags, build)


def _say(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's own last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
