"""The `stoker` command: run the command line with the objects that `app` builds."""

from __future__ import annotations

import gc
import os
import sys

from stoker import __version__
from stoker.cli.commands import COMPLETE, bare_command, expand, take_flags, top_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.api.app_parts import AppParts
    from stoker.app import App


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
    from stoker.cli.silence import watched_silence

    return answer(words or bare_command(flags), flags, build, watched_silence)


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's last flush must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def main() -> int:
    """Run the command line of this process."""
    code = run_command_line(sys.argv[1:], build=_build)
    # The memory goes with the process: an interpreter that looks through it once more at its end takes 60 ms for that.
    gc.freeze()
    return code


def _build() -> App:
    from stoker.app import App

    return App.here()


if __name__ == "__main__":
    sys.exit(main())
