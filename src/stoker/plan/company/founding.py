"""A company is begun by whoever finds none: its name, its door, and the keeper that is started for it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence

from stoker.host.containment.box import MARK
from stoker.host.door import Door, Opened
from stoker.host.imports import handed_on
from stoker.host.processes import start
from stoker.host.script_orders import written
from stoker.model.clock import Clock
from stoker.model.digests import digest_value
from stoker.model.errors import ProcessLost
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps
from stoker.plan.company.words import FORMAT
from stoker.plan.device.variables import HIDDEN, VRAM_BYTES
from stoker.plan.runner import Work

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from stoker.plan.company.host import main; main(int(sys.argv[1]))"
)
_START_S = 30.0


@frozen
class CompanySettings:
    """What all companies that are started from here have in common."""

    folder: str
    """Where their doors are: this user's own, on this machine."""
    home: str
    """Of runs with another home, nobody joins."""
    cwd: str
    environment: Mapping[str, str]
    contain: str | None
    """The containment that was asked for; nothing: the strongest that works."""
    version: str
    linger_s: float
    """How long a company waits for others when nobody is left."""
    patience_s: float = 60.0
    """When one without members that does not end is ended."""
    answer_s: float = 120.0
    """How long one that has a door is waited for until it greets, or listens."""


def company_name(company: str, devices: Sequence[str], settings: CompanySettings) -> str:
    """Name the company of a key on some devices: the same only for what may share a process."""
    same = [FORMAT, company, list(devices), settings.home, settings.version, sys.executable, list(sys.path)]
    return digest_value("company name", same)[:24]


def begin_company(work: Work, settings: CompanySettings, door: Door, clock: Clock) -> tuple[socket.socket | None, str]:
    """Open the door, knock at it, and start a keeper that has the door opened; nobody if another was quicker.

    With the mark of that opening.
    """
    opened = door.open()
    if opened is None:
        return None, ""
    link: socket.socket | None = None
    try:
        with opened.listener:
            link = door.knock()
            _start_keeper(work, settings, door, opened, clock)
    except BaseException:
        door.close(opened)
        if link is not None:
            link.close()
        raise
    return link, opened.mark


def _start_keeper(work: Work, settings: CompanySettings, door: Door, opened: Opened, clock: Clock) -> None:
    variables = {name: value for name, value in (work.variables or HIDDEN).items() if name != VRAM_BYTES}
    environment = {name: value for name, value in settings.environment.items() if name != MARK}
    listener_fd = opened.listener.fileno()
    order = {
        "run": work.stage.together.run if work.stage.together else "",
        "folder": door.folder,
        "name": door.name,
        "mark": opened.mark,
        "listener_fd": listener_fd,
        "devices": list(work.devices),
        "variables": variables,
        # Unless somebody said otherwise: threads that spin while they wait take the cores of those they wait for.
        "environment": {"OMP_WAIT_POLICY": "passive", **environment},
        "memory_bytes": work.memory_bytes,
        "contain": settings.contain,
        "python": sys.executable,
        "sys_path": list(sys.path),
        "cwd": settings.cwd,
        "linger_s": settings.linger_s,
        "patience_s": settings.patience_s,
    }
    with handed_on(work.code) as sources_fd, written({**order, "sources_fd": sources_fd}) as descriptor:
        # It leaves this one at once and goes on by itself, in a session of its own.
        first = start(
            [sys.executable, "-P", "-c", _BOOT, str(descriptor), dumps(list(sys.path))],
            cwd="/",
            env=environment,
            pass_fds=(descriptor, listener_fd, sources_fd),
        )
        ended = first.wait(_START_S, clock)
    if not ended.is_success:
        raise ProcessLost(f"its company's keeper could not begin: {ended}")
