"""`stoker join`: join a fleet as a machine or as a user; `stoker pause`: take no jobs for a while."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, duration
from stoker.cli.services import INSTALL, YES, refuse_both
from stoker.core.errors import BadInput, StokerError, Usage
from stoker.core.leases import Principal, Role
from stoker.core.text import LONGEST_NAME, NODE_NAME_RULE, format_duration, is_node_name
from stoker.devices.checkup import Check, CheckStatus
from stoker.devices.this_machine import host_name, user_name
from stoker.host.folders import make_state
from stoker.host.locks import is_locked
from stoker.protocol.discovery import find_coordinator, no_coordinator_known
from stoker.views.device_lines import check_lines
from stoker.worker.worker_options import LOCK_FILE, Pause, clear_pause, read_pause, workers_folder, write_pause

if TYPE_CHECKING:
    from stoker.launch.service import SupervisedService
    from stoker.protocol.discovery import Membership
    from stoker.protocol.view_messages import MachineRequest
    from stoker.worker.enrolment import VerifiedCoordinator


GRAMMAR = Grammar(
    "join",
    about=(
        "Join a fleet with a code of `stoker machines invite`. The code authenticates the coordinator. This machine "
        "is checked first and joins only without errors; then it gets a certificate, which `stoker work` uses and "
        "renews. A code for a user gives a token instead, and commands then use that fleet. The code works once and "
        "is not sent over the network. If the connection drops, run the same command again."
    ),
    positionals=(Positional("CODE@HOST", help="code and coordinator: K7QD-M2XW-9HCE@desk.local[:PORT]", key="where"),),
    options=(
        Option("--name", value="NAME", help="name in the fleet (default: this machine's name)"),
        Option("--operator", help="join as a user, with a code of `stoker machines invite --operator`"),
        Option("--again", help="replace the fleet that was joined before"),
        INSTALL,
        YES,
    ),
    examples=(
        "stoker join K7QD-M2XW-9HCE@desk.local --install",
        "stoker join K7QD-M2XW-9HCE@192.168.1.10:7717 --name lab1",
        "stoker join --operator P4ZT-9HCE-K7QD@desk.local",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Join a fleet."""
    from stoker.worker.enrolment import begin, finish, read_invitation, resume

    call.out.is_watched = True
    refuse_both(given)
    if given["install"]:
        _check_install(call, given)
    invitation = read_invitation(given["where"])
    _under_way(call, f"connecting to {invitation.host} …")
    cut_off = resume(invitation, given["name"] or "", call.parts, state=call.parts.settings.state)
    if cut_off is not None:
        call.out.note("note: resuming an interrupted join")
        return _joined(call, given, cut_off, ())
    proven = begin(invitation, call.parts)
    _refuse_other_role(proven, is_operator=given["operator"])
    _refuse_second(call, proven, again=given["again"])
    name = name_to_join(call, given["name"] or "", proven)
    proof = f"matches the code (SHA-256 {proven.fingerprint[:16]}…)"
    found: tuple[Check, ...] = (Check(name="CA", verdict=CheckStatus.OK, message=proof),)
    if proven.role is Role.WORKER:
        _under_way(call, "checking this machine …")
        found += look_at_machine(call, proven)
    _show(call, found)
    bad = [check for check in found if check.verdict is CheckStatus.BAD]
    if bad:
        call.out.object({"joined": False, "url": proven.invitation.url, "checks": [check.to_dict() for check in found]})
        call.out.complain(f"stoker: not joined: {bad[0].name}: {bad[0].message}\nhint: the code is still valid")
        return 1
    return _joined(call, given, finish(proven, name, call.parts, state=call.parts.settings.state), found)


def _joined(call: CommandContext, given: dict[str, Any], membership: Membership, found: tuple[Check, ...]) -> int:
    """Print the result, and install the worker's service if requested."""
    _report(call, membership, found, installs=given["install"])
    if given["install"]:
        from stoker.cli.services import boot_line, install_services

        if not install_services(call, (_worker_service(call),), yes=given["yes"]):
            return 1
        call.out.line(f"user service running; {boot_line(call)}")
    return 0


def _check_install(call: CommandContext, given: dict[str, Any]) -> None:
    """Check that the service can be installed before the code is used."""
    from stoker.cli.services import check_services
    from stoker.core.errors import Usage

    if given["operator"]:
        raise Usage("--install is only for machines", hint="omit --install")
    check_services(call, (_worker_service(call),), yes=given["yes"])


def _worker_service(call: CommandContext) -> SupervisedService:
    from stoker.launch.service import ServiceKind

    return call.parts.service(ServiceKind.WORK, ())


def _refuse_other_role(proven: VerifiedCoordinator, *, is_operator: bool) -> None:
    if is_operator and proven.role is Role.WORKER:
        hint = "create a code for a user: stoker machines invite --operator; or join as a machine without --operator"
        raise BadInput("this code is for a machine, not for a user", hint=hint)


def _refuse_second(call: CommandContext, proven: VerifiedCoordinator, *, again: bool) -> None:
    from stoker.core.errors import Conflict
    from stoker.protocol.discovery import MembershipKind, read_joined

    if again:
        return
    before = read_joined(call.parts.settings.state, MembershipKind.of(proven.role))
    if before is not None:
        same = "the same fleet" if before.fingerprint == proven.fingerprint else "another fleet"
        raise Conflict(
            f"already joined {before.url} as {before.name} ({same})",
            hint="replace it with --again; the code is still valid",
        )


def _under_way(call: CommandContext, what: str) -> None:
    """Print progress on a terminal."""
    if call.out.is_terminal:
        call.out.note(what)


def _show(call: CommandContext, checks: tuple[Check, ...]) -> None:
    out = call.out
    if not out.is_quiet:
        out.lines(check_lines(checks, signs=out.signs, columns=out.columns, paint=out.paint))


def _report(call: CommandContext, membership: Membership, checks: tuple[Check, ...], *, installs: bool) -> None:
    from stoker.protocol.discovery import MembershipKind
    from stoker.views.fleet_lines import day

    out = call.out
    out.object(
        {
            "joined": True,
            "url": membership.url,
            "name": membership.name,
            "role": str(membership.role),
            "fingerprint": membership.fingerprint,
            "expires_s": membership.expires_s,
            "checks": [check.to_dict() for check in checks],
        }
    )
    if membership.side is MembershipKind.WORKER:
        out.line(
            f"joined {membership.url} as {membership.name}; certificate until {day(membership.expires_s)}, "
            "renewed automatically by `stoker work`"
        )
        if not installs:
            out.note("next: stoker work   (--install runs it as a service)")
        return
    out.line(
        f"joined {membership.url} as {membership.name}, role {membership.role}; token until {day(membership.expires_s)}"
    )
    may_submit = Principal(name=membership.name, role=membership.role).may(Role.SUBMIT)
    out.note(f"next: {'stoker submit manifest.toml   or: ' if may_submit else ''}stoker status")


_OWN_CODE_S = 300.0


def name_to_join(call: CommandContext, wanted: str, proven: VerifiedCoordinator) -> str:
    """Return the name to join under: the invitation's, `wanted`, the earlier one, or this machine's."""
    if proven.name:
        if wanted and wanted != proven.name:
            hint = f"omit --name, or invite {wanted}: stoker machines invite --name {wanted}"
            raise BadInput(f"this code is for {proven.name}, not for {wanted}", hint=hint)
        return proven.name
    name = wanted or _name_before(call, proven) or _own_name(call, proven.role)
    if not is_node_name(name):
        raise BadInput(f"{name!r} is not a valid name", hint=f"--name NAME: {NODE_NAME_RULE}")
    return name


def look_at_machine(call: CommandContext, proven: VerifiedCoordinator) -> tuple[Check, ...]:
    """Check this machine before it joins."""
    from stoker.worker.enrolment import JoinCheckFacts, self_test

    parts = call.parts
    return self_test(
        JoinCheckFacts(
            capability=parts.detect(),
            survey=parts.survey,
            store_trouble=_store_trouble(call),
            offset_s=proven.offset_s,
            version=parts.version,
            coordinator_version=proven.version,
        )
    )


def join_here(call: CommandContext, url: str, name: str) -> Membership:
    """Join the coordinator of this home over its Unix socket, without an invitation."""
    from stoker.protocol.enrolment_messages import InviteRequest, read_code
    from stoker.worker.enrolment import Invitation, begin, finish

    own = name or host_name(call.parts.settings.environment)[0]
    if not is_node_name(own):
        raise BadInput(f"{own!r} is not a valid name", hint=f"--name NAME: {NODE_NAME_RULE}")
    # As operator: the machine may have no valid certificate. No token from the environment: a worker never holds one.
    found = find_coordinator(url, environment={}, state=call.parts.settings.state)
    if found is None:
        raise no_coordinator_known(call.parts.settings.state)
    invited = call.lookup.client_of(found).invite(InviteRequest(role=Role.WORKER, name=own, life_s=_OWN_CODE_S))
    proven = begin(Invitation.of_code(read_code(invited.code), url.rstrip("/")), call.parts)
    return finish(proven, own, call.parts, state=call.parts.settings.state)


def _name_before(call: CommandContext, proven: VerifiedCoordinator) -> str:
    """Return the name under which this home has joined the same fleet."""
    from stoker.protocol.discovery import MembershipKind, read_joined

    try:
        before = read_joined(call.parts.settings.state, MembershipKind.of(proven.role))
    except StokerError:
        # A damaged file is about to be replaced.
        return ""
    return before.name if before is not None and before.fingerprint == proven.fingerprint else ""


def _own_name(call: CommandContext, role: Role) -> str:
    host = host_name(call.parts.settings.environment)[0]
    if role is Role.WORKER:
        return host
    # A user's token is named after user and host: either may have several of the other.
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in user_name())
    return f"{plain.lstrip('._-') or 'user'}-{host}"[:LONGEST_NAME]


def _store_trouble(call: CommandContext) -> str:
    try:
        call.parts.store.places  # noqa: B018 - opening it writes to it
    except StokerError as error:
        return error.message
    return ""


# `stoker pause`: the workers of this machine release their jobs and take no more for a while.

PAUSE_GRAMMAR = Grammar(
    "pause",
    about=(
        "Take no jobs on this machine for a while: its workers save checkpoints and release their jobs, which does not "
        "count as a failed attempt. Without a time, until `stoker pause --off`."
    ),
    positionals=(Positional("TIME", help="duration, such as 30m or 2h (default: until --off)", is_required=False),),
    options=(Option("--off", help="take jobs again"),),
    examples=("stoker pause 2h", "stoker pause", "stoker pause --off"),
)


def perform_pause(call: CommandContext, given: dict[str, Any]) -> int:
    """Pause or resume this machine."""
    settings, now_s = call.parts.settings, call.parts.clock.wall_s()
    for_s = _read(given["time"])
    if given["off"]:
        if for_s is not None:
            raise Usage("--off takes no time", hint="stoker pause --off")
        was = read_pause(settings.state, now_s=now_s)
        clear_pause(settings.state)
        _notify_coordinators(call, _workers(settings.state), None)
        call.out.object({"is_paused": False, "was_paused": was is not None})
        call.out.line("resumed: takes jobs" if was is not None else "not paused")
        return 0
    make_state(settings.state)
    until_s = None if for_s is None else now_s + for_s
    write_pause(settings.state, Pause(until_s=until_s, since_s=now_s, by=user_name()))
    workers = _workers(settings.state)
    if workers:
        from stoker.protocol.view_messages import MachineRequest

        _notify_coordinators(call, workers, MachineRequest(why="paused by its owner", for_s=for_s, by=user_name()))
    call.out.object({"is_paused": True, "until_s": until_s, "workers": workers})
    span = "until `stoker pause --off`" if for_s is None else f"for {format_duration(for_s)}"
    call.out.line(f"paused {span}: {_effect(workers)}")
    if for_s is not None:
        call.out.note("resume earlier: stoker pause --off")
    return 0


def _read(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = duration(text)
    except ValueError as error:
        raise Usage(f"TIME: {error}", hint="stoker pause 2h") from None
    if not seconds > 0:
        raise Usage(f"TIME: {text!r} is not a duration above 0", hint="stoker pause 2h")
    return seconds


def _effect(workers: list[str]) -> str:
    if not workers:
        return "no worker is running; a new one takes no jobs until then"
    does = "release their jobs and take no more" if len(workers) > 1 else "releases its jobs and takes no more"
    return f"{', '.join(workers)} {does}"


def _notify_coordinators(call: CommandContext, workers: list[str], request: MachineRequest | None) -> None:
    """Report the pause to the coordinators. Errors are only notes: the workers act on the file."""
    for name in workers:
        from stoker.worker.worker_state import Journal

        written = Journal(os.path.join(workers_folder(call.parts.settings.state), name)).read()
        if written is None:
            continue
        try:
            client = call.lookup.client(written.coordinator)
            if request is not None:
                client.change_machine(name, "pause", request)
            elif client.machine(name).state == "paused":
                # A drained or cordoned machine stays so.
                client.change_machine(name, "open")
        except StokerError as error:
            call.out.note(f"note: coordinator not reached, {name} will report it: {error}")


def _workers(state: str) -> list[str]:
    """Return the names of the running workers of this home."""
    place = workers_folder(state)
    with suppress(OSError):
        return [name for name in sorted(os.listdir(place)) if is_locked(os.path.join(place, name, LOCK_FILE))]
    return []
