"""`stoker join`: let this machine, or a person on it, belong to a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.services import INSTALL, YES, refuse_both
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.view.checks import check_lines
from stoker.faces.view.signs import ASCII, UNICODE
from stoker.hardware.checkup import Check, State

if TYPE_CHECKING:
    from stoker.wire.joined import Membership
    from stoker.worker.enrolling.joining import Proven

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


def perform(call: Call, given: dict[str, Any]) -> int:
    """Join."""
    from stoker.faces.cli.fleet.enrolling import look_at_machine, name_to_join
    from stoker.model.principals import Role
    from stoker.worker.enrolling.invitation import read_invitation
    from stoker.worker.enrolling.joining import begin, finish, resume

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
    found: tuple[Check, ...] = (Check(name="CA", verdict=State.OK, message=proof),)
    if proven.role is Role.WORKER:
        _under_way(call, "looks at this machine …")
        found += look_at_machine(call, proven)
    _show(call, found)
    bad = [check for check in found if check.verdict is State.BAD]
    if bad:
        call.out.object({"joined": False, "url": proven.url, "checks": [check.to_dict() for check in found]})
        call.out.complain(f"stoker: not joined: {bad[0].name}: {bad[0].message}\nhint: the code still works")
        return 1
    return _joined(call, given, finish(proven, name, call.parts, state=call.parts.settings.state), found)


def _joined(call: Call, given: dict[str, Any], membership: Membership, found: tuple[Check, ...]) -> int:
    """Tell what was given, and keep a worker going if that is wanted."""
    _tell(call, membership, found, installs=given["install"])
    if given["install"]:
        from stoker.faces.cli.fleet.services import boot_line
        from stoker.faces.cli.fleet.work_service import install_worker

        if not install_worker(call, yes=given["yes"]):
            return 1
        call.out.line(f"user service running; {boot_line(call)}")
    return 0


def _check_install(call: Call, given: dict[str, Any]) -> None:
    """Refuse a service that could not be made while the code is unused."""
    from stoker.faces.cli.fleet.work_service import check_worker
    from stoker.model.errors import Usage

    if given["operator"]:
        raise Usage("--install is for machines: a person's commands need no service", hint="leave it out")
    check_worker(call, yes=given["yes"])


def _refuse_other_role(proven: Proven, *, is_operator: bool) -> None:
    from stoker.model.errors import BadInput
    from stoker.model.principals import Role

    if is_operator and proven.role is Role.WORKER:
        hint = "`stoker machines invite --operator` makes one for people; without --operator this machine joins"
        raise BadInput("this code invites a machine, not a person", hint=hint)


def _refuse_second(call: Call, proven: Proven, *, again: bool) -> None:
    from stoker.model.fleet_errors import Conflict
    from stoker.wire.joined import Side, read_joined

    if again:
        return
    before = read_joined(call.parts.settings.state, Side.of(proven.role))
    if before is not None:
        same = "this very fleet" if before.fingerprint == proven.fingerprint else "another fleet"
        raise Conflict(
            f"this home has joined {before.url} as {before.name} already ({same})",
            hint="--again joins anew, and forgets what was given before; the code still works",
        )


def _under_way(call: Call, what: str) -> None:
    """Say what takes a moment, to whoever waits at a terminal."""
    if call.out.is_terminal:
        call.out.note(what)


def _show(call: Call, checks: tuple[Check, ...]) -> None:
    out = call.out
    if not out.is_quiet:
        for line in check_lines(
            checks, signs=UNICODE if out.is_unicode else ASCII, columns=out.columns, paint=out.paint
        ):
            out.line(line)


def _tell(call: Call, membership: Membership, checks: tuple[Check, ...], *, installs: bool) -> None:
    from stoker.faces.view.trust import day
    from stoker.model.principals import Role
    from stoker.wire.joined import Side

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
    if membership.side is Side.WORKER:
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
