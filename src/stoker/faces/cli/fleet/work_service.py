"""`stoker work --install`, and that of `stoker join`: this machine works for its fleet from every boot on."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.services import boot_line, check_services, install_services, uninstall_services
from stoker.launch.services import Kind, Service
from stoker.model.errors import Usage
from stoker.model.units import parse_duration
from stoker.wire.finding import COORDINATOR

_PLAIN = ("join", "name", "run_as")
_GRACE, _JOIN = "--grace", "--join"


def install_work(call: Call, given: dict[str, Any]) -> int:
    """Install a worker as it was asked for."""
    ending = [f"--{name.replace('_', '-')}" for name in ("once", "until_idle", "until", "for") if given[name]]
    if ending:
        raise Usage(f"a service goes on: {', '.join(ending)} is for a worker that ends")
    # What this shell's variable says is said by no file of a service.
    given = {**given, "join": given["join"] or call.parts.settings.environment.get(COORDINATOR, "")}
    # Beside a coordinator of this home it starts after it, unless it works for another one.
    serve = call.parts.service(Kind.SERVE, ()).label
    after = serve if not given["join"] and call.parts.installer().stands(serve) else ""
    service = call.parts.service(
        Kind.WORK, work_words(given), called=given["name"] or "", grace_s=given["grace"] or 0.0, after=after
    )
    if not install_services(call, (service,), yes=given["yes"]):
        return 1
    call.out.line(boot_line(call))
    return 0


def uninstall_work(call: Call, given: dict[str, Any]) -> int:
    """Remove a worker's service."""
    service = call.parts.service(Kind.WORK, (), called=given["name"] or "")
    return uninstall_services(call, (service.label,))


def worker_service(call: Call) -> Service:
    """Give the service of a machine that has joined, or is about to: it knows by itself for whom to work."""
    return call.parts.service(Kind.WORK, ())


def worker_beside(call: Call, serve: str) -> Service:
    """Give the service of the worker beside a coordinator, with the options it has where one stands already."""
    words = call.parts.installer().words_of(worker_service(call).label)
    grace = words[words.index(_GRACE) + 1 :][:1] if _GRACE in words else ()
    return call.parts.service(
        Kind.WORK, words, grace_s=sum(map(parse_duration, grace), 0.0), after="" if _JOIN in words else serve
    )


def check_worker(call: Call, *, yes: bool) -> None:
    """Refuse now what could not be installed once it has joined."""
    check_services(call, (worker_service(call),), yes=yes)


def install_worker(call: Call, *, yes: bool) -> bool:
    """Install the service of a machine that has joined; False if somebody said no."""
    return bool(install_services(call, (worker_service(call),), yes=yes))


def work_words(given: dict[str, Any]) -> tuple[str, ...]:
    """Give the words after `work` for a service."""
    words: list[str] = []
    for name in _PLAIN:
        if given.get(name):
            words += [f"--{name.replace('_', '-')}", str(given[name])]
    if given["slots"] is not None:
        words += ["--slots", str(given["slots"])]
    if given["grace"] is not None:
        words += ["--grace", f"{given['grace']:g}s"]
    for declared in given["declare"]:
        words += ["--declare", declared]
    for code in given.get("accept_code", ()):
        # A service runs in another folder.
        words += ["--accept-code", f"@{os.path.abspath(code[1:])}" if code.startswith("@") else code]
    if given.get("keep_workspace"):
        words.append("--keep-workspace")
    return tuple(words)
