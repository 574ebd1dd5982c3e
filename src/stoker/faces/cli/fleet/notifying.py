"""`stoker submit --notify URL|CMD`: somebody is told when a submission's jobs end, or a command runs here then."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.host.durable import translated
from stoker.host.processes import start
from stoker.model.errors import StokerError, Usage
from stoker.model.json_text import dumps
from stoker.worker.submitting.person import who_asks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.wire.client import FleetClient

LOG = "notify.log"
_PROGRAM = "stoker.assembly.notify_waiting"


def is_address(target: str) -> bool:
    """Say whether somebody elsewhere is to be told; else it is a command."""
    return "://" in target.split(maxsplit=1)[0] if target.split() else False


def notify(call: Call, target: str, jobs: Sequence[str], client: FleetClient, *, at: str) -> None:
    """Arrange for it, once the jobs are submitted."""
    from stoker.wire.health import MOST_HOOKED_JOBS

    if not jobs:
        return
    if len(jobs) > MOST_HOOKED_JOBS:
        call.out.note(f"note: nobody is told: {len(jobs):,} jobs are more than {MOST_HOOKED_JOBS:,}")
    elif is_address(target):
        _tell_elsewhere(call, target, jobs, client)
    else:
        _run_here(call, target, jobs, at=at)


def check_target(target: str) -> None:
    """Refuse what is neither an address nor a command, before anything is submitted."""
    if not target.strip():
        raise Usage("--notify names nobody", hint="--notify https://…, or --notify 'a command'")


def _tell_elsewhere(call: Call, url: str, jobs: Sequence[str], client: FleetClient) -> None:
    from stoker.wire.health import HookAsk

    try:
        made = client.make_hook(HookAsk(url=url, jobs=tuple(jobs), by=who_asks(call.parts.settings.environment)))
    except StokerError as error:
        # The jobs are submitted, whoever can't be told of them.
        call.out.note(f"note: {url} is told nothing: {error.message}{f' ({error.hint})' if error.hint else ''}")
        return
    call.out.note(f"{made.hook.url} is told as they end (hook {made.hook.id}); its messages are signed with")
    call.out.note(f"  {made.secret}")


def _run_here(call: Call, command: str, jobs: Sequence[str], *, at: str) -> None:
    settings = call.parts.settings
    path = os.path.join(settings.state, LOG)
    with translated(path):
        os.makedirs(settings.state, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = start(
            [sys.executable, "-m", _PROGRAM],
            cwd=settings.folder,
            env=settings.environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    finally:
        os.close(log)
    ticket = dumps({"at": at, "jobs": list(jobs), "command": command}).encode() + b"\n"
    if child.stdin is not None:
        child.stdin.write(ticket)
        child.stdin.close()
    call.out.note(f"when they have ended, this runs here: {command}  (process {child.identity.pid}, log {path})")
