"""Where a command runs beside a job: the folder, the variables, the limits and the user of the job's own program.

They are read from the program as it runs, so they are its own, also after the keeper that started it is gone. A job
whose stages are no programs, or which is between two of them, gives what its attempt was given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from stoker.host.containment.box import MARK
from stoker.host.entry import find_program
from stoker.host.identity import ProcessIdentity
from stoker.host.interpreter import find_python, is_bare_python
from stoker.host.other_user import OtherUser
from stoker.host.process_table import ProcessRow, living_rows
from stoker.host.seating import procs_files_of
from stoker.model.clock import Clock
from stoker.model.errors import LocalFile, NoPermission, ProgramNotFound
from stoker.model.frozen import frozen

_PROGRAMS_OWN = "STOKER_OUT"
_REPORTS = ("STOKER_CONTROL", "STOKER_METRICS", _PROGRAMS_OWN)
"""By these a program reports and gives its result: a command beside it must not do so by mistake."""
_RESULT = "STOKER_JOB_OUT"
"""Where a command beside the program finds the folder of its result."""
_LOOK_AGAIN_S = 0.05
_SHELLS = ("/bin/bash", "/bin/sh")


@frozen
class Place:
    """Where a command runs."""

    folder: str
    environment: Mapping[str, str]
    procs_files: tuple[str, ...] = ()
    """By which it enters the job's control groups."""
    user: OtherUser | None = None
    hidden: tuple[str, ...] = ()
    """Values that stand in nothing that it prints."""


@frozen
class Given:
    """What an attempt was given."""

    folder: str
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    user: OtherUser | None


def place_beside(child: ProcessIdentity, given: Given, *, clock: Clock, patience_s: float) -> Place:
    """Find the place beside an attempt's program; `child` is the attempt's own process.

    A program that is only just being started is waited for, for so long.
    """
    until_s = clock.monotonic_s() + patience_s
    while (found := find_running(child, living_rows())) is None and clock.monotonic_s() < until_s:
        clock.sleep(_LOOK_AGAIN_S)
    theirs = {**given.environment, **given.secrets} if found is None else found[1]
    return Place(
        folder=given.folder,
        environment=_beside(theirs),
        procs_files=() if found is None else procs_files_of(found[0]),
        user=given.user,
        hidden=tuple({*given.secrets.values(), *(theirs[name] for name in given.secrets if theirs.get(name))}),
    )


def _beside(theirs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command beside a program that has these."""
    kept = {name: value for name, value in theirs.items() if name not in _REPORTS}
    return {**kept, _RESULT: theirs[_PROGRAMS_OWN]} if _PROGRAMS_OWN in theirs else kept


def find_running(child: ProcessIdentity, rows: Iterable[ProcessRow]) -> tuple[int, dict[str, str]] | None:
    """Give the program that an attempt runs now, with the variables it was started with; nothing if there is none."""
    if sys.platform != "linux":
        return None
    below: dict[int, list[ProcessRow]] = {}
    for row in rows:
        below.setdefault(row.parent_pid, []).append(row)
    family, waiting = [], [child.pid]
    while waiting:
        children = below.pop(waiting.pop(), [])
        family += children
        waiting += [row.pid for row in children]
    for row in sorted(family, key=lambda row: (row.start_ticks, row.pid)):
        variables = _variables_of(row.pid)
        if MARK in variables and _PROGRAMS_OWN in variables:
            return row.pid, variables
    return None


def command_for(argv: tuple[str, ...], place: Place, term: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Give a command with its program found, and its variables; without one, a shell. Raises `ProgramNotFound`."""
    environment = dict(place.environment)
    if term:
        environment["TERM"] = term
    if not argv:
        wanted = (environment.get("SHELL", ""), *_SHELLS)
        shell = next((path for path in wanted if path and os.access(path, os.X_OK)), _SHELLS[-1])
        return (shell,), environment
    try:
        return (_find(argv[0], place.folder, environment), *argv[1:]), environment
    except NoPermission:
        raise ProgramNotFound(f"{argv[0]} may not be executed there", hint="name its interpreter") from None
    except LocalFile as error:
        if not os.path.isdir(place.folder):
            raise
        hint = error.hint or "it is looked for on the job's PATH, and in its folder as ./NAME"
        raise ProgramNotFound(f"there is no program {argv[0]} there", hint=hint) from None


def _find(word: str, folder: str, environment: Mapping[str, str]) -> str:
    """Return the program that a word means beside the job; `python` is the interpreter that the job itself gets."""
    if is_bare_python(word):
        python = find_python("", folder=folder, environment=environment, own_prefix=sys.prefix, word=word)
        if python.path:
            return python.path
    return find_program(word, cwd=folder, env=environment)


def _variables_of(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)
