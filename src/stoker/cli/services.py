"""`--install` and `--uninstall`: system services of this machine.

The unit file is printed first; it is written after a confirmation on a terminal, or with `--yes`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Option
from stoker.core.errors import BadInput, Conflict, StokerError, Usage
from stoker.core.leases import Role
from stoker.core.text import parse_duration
from stoker.launch.service import ServiceKind, SupervisedService
from stoker.protocol.discovery import (
    COORDINATOR,
    DEFAULT_PORT,
    OPERATOR_TOKEN,
    MembershipKind,
    find_coordinator,
    living_coordinator,
    read_joined,
)
from stoker.views.fleet_lines import join_lines

if TYPE_CHECKING:
    from stoker.launch.installer import InstalledService
    from stoker.protocol.discovery import CoordinatorEndpoint


INSTALL = Option("--install", help="install a service that starts at boot; shows the unit file first")
UNINSTALL = Option("--uninstall", help="stop and remove the service")
YES = Option("--yes", help="with --install: no confirmation")


def refuse_both(given: dict[str, Any]) -> None:
    """Raise `Usage` for options that exclude each other."""
    if given["install"] and given.get("uninstall"):
        raise Usage("--install and --uninstall exclude each other")
    if given["yes"] and not given["install"]:
        raise Usage("--yes needs --install", hint="add --install, or omit --yes")


def check_services(call: CommandContext, services: Sequence[SupervisedService], *, yes: bool) -> None:
    """Raise an error now if the services can't be installed."""
    for service in services:
        call.parts.installer().check(service)
    if not yes and not call.out.is_terminal:
        raise Usage("the service needs a confirmation, and this is no terminal", hint="confirm it with --yes")


def install_services(
    call: CommandContext, services: Sequence[SupervisedService], *, yes: bool
) -> tuple[InstalledService, ...]:
    """Print, confirm, install and start services; return () if not confirmed."""
    out, installer = call.out, call.parts.installer()
    check_services(call, services, yes=yes)
    for service in services:
        rendered = installer.check(service)
        out.object({"service": service.label, "path": rendered.path, "text": rendered.text})
        out.line(f"{rendered.path}:")
        for line in rendered.text.splitlines():
            out.line(f"  {line}" if line else "")
    for name, instead in {name: one for service in services for name, one in service.left_out.items()}.items():
        out.note(f"{name} holds a secret and is not written into the file: {instead}")
    if not yes and not out.asks("Write this and start it?", by_default=True):
        out.note("nothing was written")
        return ()
    done = []
    for service in services:
        installed = installer.install(service)
        done.append(installed)
        out.object(
            {"service": installed.label, "installed": True, "path": installed.path, "pid": installed.seen.pid,
             "was_there": installed.was_there}
        )  # fmt: skip
        out.line(f"service {installed.label} {'was already installed; running' if installed.was_there else 'running'}")
    return tuple(done)


def uninstall_services(call: CommandContext, labels: Sequence[str]) -> int:
    """Stop and remove services; return 1 if none was installed."""
    removed = [label for label in labels if call.parts.installer().uninstall(label)]
    for label in removed:
        call.out.object({"service": label, "installed": False})
        call.out.line(f"service {label} stopped and removed")
    if not removed:
        call.out.object({"service": labels[0], "installed": False, "was_there": False})
        call.out.line(f"no service {labels[0]}")
    return 0 if removed else 1


def boot_line(call: CommandContext) -> str:
    """Return whether services survive a reboot, and the command if they do not."""
    trouble = call.parts.boot_trouble()
    return "survives reboot" if not trouble else f"starts at login; to start at boot: {trouble}"


# `stoker work --install` and `stoker join --install`.

_PLAIN = ("join", "name", "run_as")
_GRACE, _JOIN = "--grace", "--join"


_NOT_OF_SERVICE = ("once", "until_idle", "until", "for", "idle", "ticket")
"""Options of `stoker work` by which it ends or joins once."""


def install_work(call: CommandContext, given: dict[str, Any]) -> int:
    """Install a worker's service."""
    ending = [f"--{name.replace('_', '-')}" for name in _NOT_OF_SERVICE if given[name]]
    if ending:
        raise Usage(f"{', '.join(ending)} and --install exclude each other")
    # A service does not have this shell's variables.
    given = {**given, "join": given["join"] or call.parts.settings.environment.get(COORDINATOR, "")}
    # Starts after the coordinator of this home, if it works for that one.
    serve = call.parts.service(ServiceKind.SERVE, ()).label
    after = serve if not given["join"] and call.parts.installer().stands(serve) else ""
    service = call.parts.service(
        ServiceKind.WORK, work_words(given), called=given["name"] or "", grace_s=given["grace"] or 0.0, after=after
    )
    if not install_services(call, (service,), yes=given["yes"]):
        return 1
    call.out.line(boot_line(call))
    return 0


def uninstall_work(call: CommandContext, given: dict[str, Any]) -> int:
    """Remove a worker's service."""
    service = call.parts.service(ServiceKind.WORK, (), called=given["name"] or "")
    return uninstall_services(call, (service.label,))


def worker_beside(call: CommandContext, serve: str) -> SupervisedService:
    """Return the service of the worker beside a coordinator, with the options of an installed one."""
    words = call.parts.installer().words_of(call.parts.service(ServiceKind.WORK, ()).label)
    grace = words[words.index(_GRACE) + 1 :][:1] if _GRACE in words else ()
    return call.parts.service(
        ServiceKind.WORK, words, grace_s=sum(map(parse_duration, grace), 0.0), after="" if _JOIN in words else serve
    )


def work_words(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the words after `work` for a service."""
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


# `stoker launch watch --install`.


def install_watch(call: CommandContext, given: dict[str, Any]) -> int:
    """Install the service of a watcher of pools."""
    if given["token_stdin"]:
        raise Usage("--token-stdin and --install exclude each other", hint="stoker join --operator CODE@HOST first")
    at = given["at"] or call.parts.settings.environment.get(COORDINATOR, "")
    words = ["watch", *given["name"]]
    for name, value in (("--url", given["url"]), ("--relay", given["relay"]), ("--at", at)):
        if value:
            words += [name, value]
    # Starts after the coordinator of this home, if it watches for that one.
    serve = call.parts.service(ServiceKind.SERVE, ()).label
    after = serve if not at and call.parts.installer().stands(serve) else ""
    service = call.parts.service(ServiceKind.LAUNCH, words, after=after)
    if not install_services(call, (service,), yes=given["yes"]):
        return 1
    call.out.line(boot_line(call))
    return 0


def uninstall_watch(call: CommandContext) -> int:
    """Remove the service of a watcher."""
    return uninstall_services(call, (call.parts.service(ServiceKind.LAUNCH, ()).label,))


_EVERYWHERE = "0.0.0.0"  # noqa: S104 - beyond this machine it speaks TLS alone
_CODE_S = 900.0
_JOINS_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2
_SERVE_TEXT_OPTIONS = ("listen", "advertise", "objects")
_TIMES = ("lease", "heartbeat", "keep_events", "certificate_life")
_SIZES = ("upload_limit",)
_PATHS = ("cluster", "manifest", "token_file", "accept_code")


def install_serve(call: CommandContext, given: dict[str, Any]) -> int:
    """Install the coordinator and a worker; print its URL, and how another machine joins."""
    if call.parts.settings.environment.get(OPERATOR_TOKEN, "").strip() and not given["token_file"]:
        raise BadInput(
            f"{OPERATOR_TOKEN} is set, and a unit file must not contain a token",
            hint="use --token-file FILE, or unset it: the coordinator creates a token",
        )
    serve = call.parts.service(ServiceKind.SERVE, serve_words(call, given))
    work = worker_beside(call, serve.label)
    check_services(call, (serve, work), yes=given["yes"])
    _refuse_another(call, serve)
    if not install_services(call, (serve, work), yes=given["yes"]):
        return 1
    _announce(call, "PostgreSQL" if (given["db"] or "").startswith("postgres") else "SQLite")
    return 0


def uninstall_serve(call: CommandContext) -> int:
    """Remove the coordinator's service, and the worker's that was installed with it."""
    serve, work = call.parts.service(ServiceKind.SERVE, ()), call.parts.service(ServiceKind.WORK, ())
    beside = f"After={serve.label}." in call.parts.installer().text_of(work.label)
    return uninstall_services(call, (*((work.label,) if beside else ()), serve.label))


def serve_words(call: CommandContext, given: dict[str, Any]) -> tuple[str, ...]:
    """Return the words after `serve` for a service, with absolute paths."""
    words = {"listen": f"{_EVERYWHERE}:{DEFAULT_PORT}"}
    words |= {name: given[name] for name in _SERVE_TEXT_OPTIONS if given[name]}
    if given["db"]:
        scheme, slashes, path = given["db"].partition("sqlite:///")
        words["db"] = f"{slashes}{call.path(path)}" if slashes and not scheme else given["db"]
    words |= {name: f"{given[name]:g}s" for name in _TIMES if given[name] is not None}
    words |= {name: str(given[name]) for name in _SIZES if given[name] is not None}
    words |= {name: call.path(given[name]) for name in _PATHS if given[name]}
    flags = tuple(f"--{name.replace('_', '-')}" for name in ("system_a", "launch") if given[name])
    return (*(word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)), *flags)


def _refuse_another(call: CommandContext, serve: SupervisedService) -> None:
    """Refuse to install while a manually started coordinator uses the database."""
    here = living_coordinator(call.parts.settings.state)
    if here is not None and call.parts.installer().look(serve.label).pid != here.owner.pid:
        raise Conflict(
            f"a coordinator of this home is already running: {here.url}, process {here.owner.pid}",
            hint="stop it (Ctrl-C, or kill), then run this command again",
        )


def _announce(call: CommandContext, kind: str) -> None:
    settings = call.parts.settings
    # The coordinator of this home, not one of the environment.
    found = find_coordinator("", environment={}, state=settings.state)
    if found is None:
        call.out.note("the coordinator's URL is not known yet; see stoker status")
        return
    client = call.lookup.client_of(found)
    name = _own_name(call, found)
    joined = f'"{name}" joined' if name else "the local worker is running"
    facts: dict[str, Any] = {"url": found.url, "database": kind, "worker": name, "boot": boot_line(call)}
    if not found.is_secure:
        call.out.object(facts)
        call.out.line(f"{found.url}, only for this user on this machine, {kind}, {boot_line(call)}; {joined}")
        return
    from stoker.protocol.enrolment_messages import InviteRequest

    invited = client.invite(InviteRequest(role=Role.WORKER, name="", life_s=_CODE_S))
    line = f"{join_lines(invited)[0]} --install"
    call.out.object({**facts, "url": invited.url, "join": line, "expires_s": invited.expires_s})
    call.out.line(f"{invited.url}, own CA, {kind}, {boot_line(call)}; {joined}.")
    call.out.line(f"Add a machine (15 min):  {line}")


def _own_name(call: CommandContext, found: CoordinatorEndpoint) -> str:
    """Wait until the local worker has joined and return its name; "" if it needs none."""
    if not found.is_secure:
        return ""
    clock = call.parts.clock
    until_s = clock.monotonic_s() + _JOINS_WITHIN_S
    while clock.monotonic_s() < until_s:
        try:
            member = read_joined(call.parts.settings.state, MembershipKind.WORKER)
        except StokerError:
            member = None
        if member is not None:
            return member.name
        clock.sleep(_LOOK_EVERY_S)
    return ""
