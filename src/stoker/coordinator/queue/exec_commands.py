"""What may be asked of the queue about commands that operators run inside jobs. Answered by `Done`."""

from __future__ import annotations

from typing import TypeAlias

from stoker.model.frozen import frozen
from stoker.model.leases import Token


@frozen
class BeginExec:
    """Somebody is about to run a command inside a running job. `data` has where: name, machine, and its lease."""

    job: str
    session: str
    program: str
    """The command's first word, and nothing else of it: arguments may hold what nobody else should see."""
    by: str = ""


@frozen
class EndExec:
    """That is over. The job may be, too."""

    token: Token
    session: str
    machine: str
    program: str
    exit_code: int | None = None
    """Nothing: it did not end by itself."""
    why: str = ""
    by: str = ""


ExecCommand: TypeAlias = BeginExec | EndExec
