"""Errors as people and programs read them: one line that says what happened, one that says what to do, and a code.

In JSON mode the error is also the last line of the stream. A traceback is shown only to those who ask (`--debug`); an
error that nobody foresaw is a bug, and its traceback is kept in a file to send to us.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from stoker.cli.interrupts import AskedToEnd
from stoker.cli.output import CliOutput
from stoker.core.errors import Cancelled, InternalError, InvalidInput, ProcessLost, StokerError, Terminated
from stoker.core.text import outside
from stoker.host.durable import translate

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

    A stream of events has told programs already. `besides` is what was wrong before, such as a token that was refused.
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
        known = _bug(error, crash_folder())
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
    # None is painted by us: a colour would be somebody else's, from the name of a file or the answer of a server.
    return [outside(one) for line in lines for one in line.split("\n")]


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
