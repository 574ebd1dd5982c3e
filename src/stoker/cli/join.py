"""`stoker join`: let this machine, or a person on it, belong to a fleet."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, duration
from stoker.cli.services import INSTALL, YES, refuse_both
from stoker.core.errors import BadInput, StokerError, Usage
from stoker.core.leases import Role
from stoker.core.text import LONGEST_NAME, NODE_NAME_RULE, format_duration, is_node_name
from stoker.devices.checkup import Check, CheckStatus
from stoker.devices.this_machine import host_name
from stoker.host.locks import is_locked
from stoker.jobs.submitter import user_name
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
        "Join a fleet by a code that `stoker machines invite` printed. The coordinator proves by the code that it is "
        "the one that was meant; this machine is looked at, and nobody hears of it if something stops work; then it "
        "gets a certificate of its own, which `stoker work` uses and renews. A person's code gives a token instead, "
        "and every command here then means that fleet. The code works once and travels nowhere; "
        "who was cut off says the same command again."
    ),
    positionals=(Positional("CODE@HOST", help="the code, and where: K7QD-M2XW-9HCE@desk.local[:PORT]", key="where"),),
    options=(
        Option("--name", value="NAME", help="what it is called in the fleet; this machine's name unless told"),
        Option("--operator", help="as a person: the code is one of `stoker machines invite --operator`"),
        Option("--again", help="in place of the fleet that was joined before"),
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
    """Join."""
    from stoker.worker.enrolment import begin, finish, read_invitation, resume

    call.out.is_watched = True
    refuse_both(given)
    if given["install"]:
        _check_install(call, given)
    invitation = read_invitation(given["where"])
    _under_way(call, f"asks {invitation.host} …")
    cut_off = resume(invitation, given["name"] or "", call.parts, state=call.parts.settings.state)
    if cut_off is not None:
        call.out.note("note: goes on with an attempt to join that was cut off")
        return _joined(call, given, cut_off, ())
    proven = begin(invitation, call.parts)
    _refuse_other_role(proven, is_operator=given["operator"])
    _refuse_second(call, proven, again=given["again"])
    name = name_to_join(call, given["name"] or "", proven)
    proof = f"matches the code (SHA-256 {proven.fingerprint[:16]}…)"
    found: tuple[Check, ...] = (Check(name="CA", verdict=CheckStatus.OK, message=proof),)
    if proven.role is Role.WORKER:
        _under_way(call, "looks at this machine …")
        found += look_at_machine(call, proven)
    _show(call, found)
    bad = [check for check in found if check.verdict is CheckStatus.BAD]
    if bad:
        call.out.object({"joined": False, "url": proven.url, "checks": [check.to_dict() for check in found]})
        call.out.complain(f"stoker: not joined: {bad[0].name}: {bad[0].message}\nhint: the code still works")
        return 1
    return _joined(call, given, finish(proven, name, call.parts, state=call.parts.settings.state), found)


def _joined(call: CommandContext, given: dict[str, Any], membership: Membership, found: tuple[Check, ...]) -> int:
    """Tell what was given, and keep a worker going if that is wanted."""
    _tell(call, membership, found, installs=given["install"])
    if given["install"]:
        from stoker.cli.services import boot_line, install_services

        if not install_services(call, (_worker_service(call),), yes=given["yes"]):
            return 1
        call.out.line(f"user service running; {boot_line(call)}")
    return 0


def _check_install(call: CommandContext, given: dict[str, Any]) -> None:
    """Refuse a service that could not be made while the code is unused."""
    from stoker.cli.services import check_services
    from stoker.core.errors import Usage

    if given["operator"]:
        raise Usage("--install is for machines: a person's commands need no service", hint="leave it out")
    check_services(call, (_worker_service(call),), yes=given["yes"])


def _worker_service(call: CommandContext) -> SupervisedService:
    from stoker.launch.service import ServiceKind

    return call.parts.service(ServiceKind.WORK, ())


def _refuse_other_role(proven: VerifiedCoordinator, *, is_operator: bool) -> None:
    if is_operator and proven.role is Role.WORKER:
        hint = "`stoker machines invite --operator` makes one for people; without --operator this machine joins"
        raise BadInput("this code invites a machine, not a person", hint=hint)


def _refuse_second(call: CommandContext, proven: VerifiedCoordinator, *, again: bool) -> None:
    from stoker.core.errors import Conflict
    from stoker.protocol.discovery import MembershipKind, read_joined

    if again:
        return
    before = read_joined(call.parts.settings.state, MembershipKind.of(proven.role))
    if before is not None:
        same = "this very fleet" if before.fingerprint == proven.fingerprint else "another fleet"
        raise Conflict(
            f"this home has joined {before.url} as {before.name} already ({same})",
            hint="--again joins anew, and forgets what was given before; the code still works",
        )


def _under_way(call: CommandContext, what: str) -> None:
    """Say on a terminal what takes a moment."""
    if call.out.is_terminal:
        call.out.note(what)


def _show(call: CommandContext, checks: tuple[Check, ...]) -> None:
    out = call.out
    if not out.is_quiet:
        out.lines(check_lines(checks, signs=out.signs, columns=out.columns, paint=out.paint))


def _tell(call: CommandContext, membership: Membership, checks: tuple[Check, ...], *, installs: bool) -> None:
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
            "renewed by itself while it works"
        )
        if not installs:
            out.note("next: stoker work   (--install keeps it going)")
        return
    out.line(
        f"joined {membership.url} as {membership.name}, who may {membership.role}; "
        f"token until {day(membership.expires_s)}"
    )
    may_submit = membership.role is not Role.READ
    out.note(f"next: {'stoker submit manifest.toml   or: ' if may_submit else ''}stoker status")


# What `join` and a worker beside its coordinator have in common: names, the look at the machine, the two steps.

_OWN_CODE_S = 300.0


def name_to_join(call: CommandContext, wanted: str, proven: VerifiedCoordinator) -> str:
    """Return the name to join under: the invitation's, what was asked for, the one of before, or this machine's own."""
    if proven.name:
        if wanted and wanted != proven.name:
            hint = f"leave --name out, or have {wanted} invited: stoker machines invite --name {wanted}"
            raise BadInput(f"this code is for {proven.name}, not for {wanted}", hint=hint)
        return proven.name
    name = wanted or _name_before(call, proven) or _own_name(call, proven.role)
    if not is_node_name(name):
        raise BadInput(f"{name!r} can't be a name in a fleet", hint=f"--name NAME: {NODE_NAME_RULE}")
    return name


def look_at_machine(call: CommandContext, proven: VerifiedCoordinator) -> tuple[Check, ...]:
    """Test this machine before the coordinator learns of it."""
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
    """Join the coordinator of this very home, over its Unix socket: the user who runs it needs no invitation."""
    from stoker.protocol.enrolment_messages import InviteRequest, read_code
    from stoker.worker.enrolment import Invitation, begin, finish

    own = name or host_name(call.parts.settings.environment)[0]
    if not is_node_name(own):
        raise BadInput(f"{own!r} can't be a worker's name", hint=f"--name NAME: {NODE_NAME_RULE}")
    # As its operator, not as the machine: that may have no certificate, or one that has ended. No token is taken from
    # the environment: a worker never holds one.
    found = find_coordinator(url, environment={}, state=call.parts.settings.state)
    if found is None:
        raise no_coordinator_known(call.parts.settings.state)
    invited = call.lookup.client_of(found).invite(InviteRequest(role=Role.WORKER, name=own, life_s=_OWN_CODE_S))
    proven = begin(Invitation(code=read_code(invited.code), url=url.rstrip("/")), call.parts)
    return finish(proven, own, call.parts, state=call.parts.settings.state)


def _name_before(call: CommandContext, proven: VerifiedCoordinator) -> str:
    """Return the name under which this home belongs to the very same fleet already."""
    from stoker.protocol.discovery import MembershipKind, read_joined

    try:
        before = read_joined(call.parts.settings.state, MembershipKind.of(proven.role))
    except StokerError:
        # What is spoilt is about to be replaced.
        return ""
    return before.name if before is not None and before.fingerprint == proven.fingerprint else ""


def _own_name(call: CommandContext, role: Role) -> str:
    host = host_name(call.parts.settings.environment)[0]
    if role is Role.WORKER:
        return host
    # A person's token is named after both: one laptop may have several people, and one person several laptops.
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in user_name())
    return f"{plain.lstrip('._-') or 'somebody'}-{host}"[:LONGEST_NAME]


def _store_trouble(call: CommandContext) -> str:
    try:
        call.parts.store.places  # noqa: B018 - opening it writes to it
    except StokerError as error:
        return error.message
    return ""


# `stoker pause`: this machine's owner needs it; its workers give back what they hold and take no more until then.

PAUSE_GRAMMAR = Grammar(
    "pause",
    about=(
        "Give this machine to its owner for a while: its workers save what they can, give their jobs back without "
        "charge, and take no more until then. Without a time, until `stoker pause --off`."
    ),
    positionals=(Positional("TIME", help="how long: 30m, 2h", is_required=False),),
    options=(Option("--off", help="take jobs again"),),
    examples=("stoker pause 2h", "stoker pause", "stoker pause --off"),
)


def perform_pause(call: CommandContext, given: dict[str, Any]) -> int:
    """Write the wish down, or take it back."""
    settings, now_s = call.parts.settings, call.parts.clock.wall_s()
    for_s = _read(given["time"])
    if given["off"]:
        if for_s is not None:
            raise Usage("--off takes no time", hint="stoker pause --off")
        was = read_pause(settings.state, now_s=now_s)
        clear_pause(settings.state)
        _tell_coordinators(call, _workers(settings.state), None)
        call.out.object({"is_paused": False, "was_paused": was is not None})
        call.out.line("takes jobs again" if was is not None else "it was not paused")
        return 0
    os.makedirs(settings.state, exist_ok=True)
    until_s = None if for_s is None else now_s + for_s
    write_pause(settings.state, Pause(until_s=until_s, since_s=now_s, by=user_name()))
    workers = _workers(settings.state)
    if workers:
        from stoker.protocol.view_messages import MachineRequest

        _tell_coordinators(call, workers, MachineRequest(why="its owner needs it", for_s=for_s, by=user_name()))
    call.out.object({"is_paused": True, "until_s": until_s, "workers": workers})
    span = "until `stoker pause --off`" if for_s is None else f"for {format_duration(for_s)}"
    call.out.line(f"paused {span}: {_told(workers)}")
    if for_s is not None:
        call.out.note("`stoker pause --off` ends it before that")
    return 0


def _read(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = duration(text)
    except ValueError as error:
        raise Usage(f"TIME: {error}", hint="stoker pause 2h") from None
    if not seconds > 0:
        raise Usage(f"TIME: {text!r} is no time at all", hint="stoker pause 2h")
    return seconds


def _told(workers: list[str]) -> str:
    if not workers:
        return "no worker runs here now; one that is started takes nothing until then"
    does = "give back what runs, and take no more" if len(workers) > 1 else "gives back what runs, and takes no more"
    return f"{', '.join(workers)} {does}"


def _tell_coordinators(call: CommandContext, workers: list[str], ask: MachineRequest | None) -> None:
    """Show it to the fleet at once. The workers act on the file by themselves, so no coordinator has to answer."""
    for name in workers:
        from stoker.worker.worker_state import Journal

        written = Journal(os.path.join(workers_folder(call.parts.settings.state), name)).read()
        if written is None:
            continue
        try:
            client = call.lookup.client(written.coordinator)
            if ask is not None:
                client.pause(name, ask)
            elif client.machine(name).state == "paused":
                # Who drained or cordoned it did so for another reason.
                client.open(name)
        except StokerError as error:
            call.out.note(f"note: the coordinator was not told, {name} will tell it: {error}")


def _workers(state: str) -> list[str]:
    """Name the workers of this home that run now."""
    place = workers_folder(state)
    with suppress(OSError):
        return [name for name in sorted(os.listdir(place)) if is_locked(os.path.join(place, name, LOCK_FILE))]
    return []
