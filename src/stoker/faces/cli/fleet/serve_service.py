"""`stoker serve --install`: the machine that stays on serves the fleet, and works in it, from every boot on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import client_of
from stoker.faces.cli.fleet.services import boot_line, check_services, install_services, uninstall_services
from stoker.faces.cli.fleet.work_service import worker_beside
from stoker.faces.view.trust import join_lines
from stoker.launch.services import Kind, Service
from stoker.model.errors import BadInput, StokerError
from stoker.model.fleet_errors import Conflict
from stoker.model.principals import Role
from stoker.wire.finding import DEFAULT_PORT, OPERATOR_TOKEN, find_coordinator
from stoker.wire.joined import Side, read_joined
from stoker.wire.serve_file import living_coordinator

if TYPE_CHECKING:
    from stoker.wire.finding import Found

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - beyond this machine it speaks TLS alone
_CODE_S = 900.0
_JOINS_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2
_PLAIN = ("listen", "advertise")
_TIMES = ("lease", "heartbeat", "keep_events", "certificate_life")
_SIZES = ("upload_limit",)
_PATHS = ("cluster", "manifest", "token_file", "accept_code")


def install_serve(call: Call, given: dict[str, Any]) -> int:
    """Install the coordinator and a worker beside it; say where it is, and how another machine joins."""
    if call.parts.settings.environment.get(OPERATOR_TOKEN, "").strip() and not given["token_file"]:
        raise BadInput(
            f"{OPERATOR_TOKEN} is set, and a service's file is no place for a token",
            hint="--token-file FILE, or unset it: the coordinator makes one of its own",
        )
    serve = call.parts.service(Kind.SERVE, serve_words(call, given))
    work = worker_beside(call, serve.label)
    check_services(call, (serve, work), yes=given["yes"])
    _refuse_another(call, serve)
    if not install_services(call, (serve, work), yes=given["yes"]):
        return 1
    _tell(call, "PostgreSQL" if (given["db"] or "").startswith("postgres") else "SQLite")
    return 0


def uninstall_serve(call: Call) -> int:
    """Remove the coordinator's service, and the worker's that was installed with it."""
    serve, work = call.parts.service(Kind.SERVE, ()), call.parts.service(Kind.WORK, ())
    beside = f"After={serve.label}." in call.parts.installer().text_of(work.label)
    return uninstall_services(call, (*((work.label,) if beside else ()), serve.label))


def serve_words(call: Call, given: dict[str, Any]) -> tuple[str, ...]:
    """Give the words after `serve` for a service: whole paths, since it runs in another folder."""
    words = {"listen": f"{_EVERYWHERE}:{DEFAULT_PORT}"}
    words |= {name: given[name] for name in _PLAIN if given[name]}
    if given["db"]:
        scheme, slashes, path = given["db"].partition("sqlite:///")
        words["db"] = f"{slashes}{call.path(path)}" if slashes and not scheme else given["db"]
    words |= {name: f"{given[name]:g}s" for name in _TIMES if given[name] is not None}
    words |= {name: str(given[name]) for name in _SIZES if given[name] is not None}
    words |= {name: call.path(given[name]) for name in _PATHS if given[name]}
    flags = ("--system-a",) if given["system_a"] else ()
    return (*(word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)), *flags)


def _refuse_another(call: Call, serve: Service) -> None:
    """Refuse to install beside a coordinator that somebody started by hand: they would fight for one database."""
    here = living_coordinator(call.parts.settings.state)
    if here is not None and call.parts.installer().look(serve.label).pid != here.owner.pid:
        raise Conflict(
            f"a coordinator of this home runs already: {here.url}, process {here.owner.pid}",
            hint="end it (Ctrl-C, or kill), then say this again",
        )


def _tell(call: Call, kind: str) -> None:
    settings = call.parts.settings
    # This home's own, whatever the environment names.
    found = find_coordinator("", environment={}, state=settings.state)
    if found is None:
        call.out.note("the coordinator does not say where it is; `stoker status` asks it")
        return
    client = client_of(call, found)
    name = _own_name(call, found)
    joined = f'"{name}" joined' if name else "this machine's own worker runs"
    facts: dict[str, Any] = {"url": found.url, "database": kind, "worker": name, "boot": boot_line(call)}
    if not found.is_secure:
        call.out.object(facts)
        call.out.line(f"{found.url}, for this user of this machine alone, {kind}, {boot_line(call)}; {joined}")
        return
    from stoker.wire.enrolling import InviteAsk

    invited = client.invite(InviteAsk(role=Role.WORKER, name="", life_s=_CODE_S))
    line = f"{join_lines(invited)[0]} --install"
    call.out.object({**facts, "url": invited.url, "join": line, "expires_s": invited.expires_s})
    call.out.line(f"{invited.url}, own CA, {kind}, {boot_line(call)}; {joined}.")
    call.out.line(f"Add a machine (15 min):  {line}")


def _own_name(call: Call, found: Found) -> str:
    """Give the name under which the worker beside it has joined, once it has; empty where it needs none."""
    if not found.is_secure:
        return ""
    clock = call.parts.clock
    until_s = clock.monotonic_s() + _JOINS_WITHIN_S
    while clock.monotonic_s() < until_s:
        try:
            member = read_joined(call.parts.settings.state, Side.WORKER)
        except StokerError:
            member = None
        if member is not None:
            return member.name
        clock.sleep(_LOOK_EVERY_S)
    return ""
