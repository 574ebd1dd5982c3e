"""`stoker machines invite`: a code by which a machine, or a person, joins the fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT, reach
from stoker.cli.grammar import Grammar, Option, Positional, duration
from stoker.core.errors import BadInput, Usage
from stoker.core.leases import Role
from stoker.core.text import format_duration
from stoker.jobs.submitter import who_asks

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import DoneView, MachineRequest


# What drain, cordon, open and forget have in common: which machine, which devices, why and for how long.

MACHINE = Positional("NAME", help="a machine, as `stoker machines` lists it")
DEVICE = Option("--device", value="UUID", help="only this device; may be given again", is_many=True)
WHY = Option("--why", value="TEXT", help="told to everybody who asks")
FOR = Option("--for", value="TIME", read=duration, help="until then: 30m, 2h; until opened unless told")
OPTIONS = (WHY, FOR, AT)


def close_or_open(
    call: CommandContext,
    given: dict[str, Any],
    act: Callable[[FleetClient, str, MachineRequest], DoneView],
    *,
    said: str,
) -> int:
    """Ask for it and say what it did."""
    from stoker.protocol.view_messages import MachineRequest

    for_s = given.get("for")
    asked = MachineRequest(
        devices=tuple(given.get("device") or ()),
        why=given.get("why") or "",
        for_s=for_s,
        is_forced=given.get("force") or False,
        by=who_asks(call.parts.settings.environment),
    )
    done = act(reach(call, given["at"]), given["name"], asked)
    span = f" for {format_duration(for_s)}" if for_s else ""
    what = f"{given['name']} ({', '.join(asked.devices)})" if asked.devices else given["name"]
    call.out.object({"machine": given["name"], **asked.model_dump(mode="json"), **done.model_dump(mode="json")})
    if done.changed:
        # What a note says counts more than what may follow from it.
        does = said.partition(":")[0] if done.notes else said
        call.out.line(f"{what} {does}{span}{f': {asked.why}' if asked.why else ''}")
    for note in done.notes:
        call.out.note(f"note: {note}" if done.changed else note)
    return 0


# `stoker machines cordon`: a machine, or one of its devices, that somebody mistrusts gets no more work.

CORDON_GRAMMAR = Grammar(
    "machines cordon",
    about="Give a machine, or only some of its devices, no more work: it is mistrusted. What runs there finishes.",
    positionals=(MACHINE,),
    options=(DEVICE, *OPTIONS),
    examples=("stoker machines cordon lab1", "stoker machines cordon lab1 --device GPU-8f1c --why 'ECC errors'"),
)


def perform_cordon(call: CommandContext, given: dict[str, Any]) -> int:
    """Cordon it."""
    return close_or_open(
        call, given, lambda client, name, asked: client.cordon(name, asked), said="is cordoned: nothing more comes"
    )


# `stoker machines drain`: what runs on a machine finishes, and it gets no more.

DRAIN_GRAMMAR = Grammar(
    "machines drain",
    about="Give a machine of the fleet no more work; what runs there finishes. For an update, a restart, a holiday.",
    positionals=(MACHINE,),
    options=OPTIONS,
    examples=("stoker machines drain lab1", "stoker machines drain lab1 --why 'new driver' --for 2h"),
)


def perform_drain(call: CommandContext, given: dict[str, Any]) -> int:
    """Drain it."""
    return close_or_open(
        call,
        given,
        lambda client, name, asked: client.drain(name, asked),
        said="is drained: what runs there finishes, nothing more comes",
    )


# `stoker machines open`: a machine that was drained, cordoned or paused gets work again.

OPEN_GRAMMAR = Grammar(
    "machines open",
    about="Let a machine have work again that was drained, cordoned or paused; or some of its devices.",
    positionals=(MACHINE,),
    options=(DEVICE, AT),
    examples=("stoker machines open lab1", "stoker machines open lab1 --device GPU-8f1c"),
)


def perform_open(call: CommandContext, given: dict[str, Any]) -> int:
    """Open it."""
    return close_or_open(
        call, given, lambda client, name, asked: client.open(name, asked), said="is open: jobs may come"
    )


# `stoker machines forget`: remove a machine from the fleet, with its certificate.

FORGET_GRAMMAR = Grammar(
    "machines forget",
    about=(
        "Remove a machine that is not to come back. One that joined by a code loses its certificate at once: its next "
        "word is refused, and the jobs that it holds go back to the queue; to return it has to be invited again. One "
        "on the coordinator's own machine has none: it is refused while it holds jobs, and while its worker runs, "
        "which would join again, open."
    ),
    positionals=(MACHINE,),
    options=(Option("--force", help="although its worker runs"), AT),
    examples=("stoker machines forget old-laptop", "stoker machines forget --force desk"),
)


def perform_forget(call: CommandContext, given: dict[str, Any]) -> int:
    """Forget it."""
    return close_or_open(call, given, _forget, said="is forgotten")


def _forget(client: FleetClient, name: str, asked: MachineRequest) -> DoneView:
    from stoker.views.fleet_lines import day

    held = [one for one in client.certificates() if one.name == name and one.revoked_s is None]
    done = client.forget(name, asked)
    notes = [f"its certificate ({one.serial[:12]}, until {day(one.expires_s)}) is revoked" for one in held]
    return done.model_copy(update={"notes": (*done.notes, *notes), "data": {**done.data, "revoked": len(held)}})


_PEOPLE = tuple(str(role) for role in Role if role is not Role.WORKER)
_LIFE_S = 900.0


def role_of_people(text: str) -> Role:
    """Read one of people's roles."""
    if text not in _PEOPLE:
        message = f"{text!r} is none of {', '.join(_PEOPLE)}"
        raise ValueError(message)
    return Role(text)


INVITE_GRAMMAR = Grammar(
    "machines invite",
    about=(
        "Make a code by which one machine joins the fleet, and print the exact command to type there. It works once "
        "and not for long. It is also how the other side knows this coordinator from a stranger: pass it on so that "
        "nobody else reads it. With --operator it is for a person, who gets a token."
    ),
    options=(
        Option("--operator", help="for a person: they submit and operate from their own computer"),
        Option(
            "--role",
            value="ROLE",
            read=role_of_people,
            help=f"what that person may: {', '.join(_PEOPLE)}; operate unless told",
        ),
        Option("--name", value="NAME", help="the only name under which it may join; any that is free unless told"),
        Option("--for", value="TIME", read=duration, help="how long the code works; 15m unless told"),
        AT,
    ),
    examples=(
        "stoker machines invite",
        "stoker machines invite --name lab1 --for 1h",
        "stoker machines invite --operator --role submit --name anna",
    ),
)


def perform_invite(call: CommandContext, given: dict[str, Any]) -> int:
    """Invite."""
    from stoker.protocol.enrolment_messages import InviteRequest
    from stoker.views.fleet_lines import invited_lines, join_lines

    if given["role"] is not None and not given["operator"]:
        raise Usage("--role is for people", hint="stoker machines invite --operator --role submit")
    role = (given["role"] or Role.OPERATE) if given["operator"] else Role.WORKER
    client = reach(call, given["at"])
    if not client.url.startswith("https://"):
        raise BadInput(
            f"the coordinator at {client.url} serves its own machine alone: nobody else can join it",
            hint="start it so that others reach it, with TLS of its own: stoker serve --listen 0.0.0.0",
        )
    invited = client.invite(InviteRequest(role=role, name=given["name"] or "", life_s=given["for"] or _LIFE_S))
    call.out.object({**invited.model_dump(mode="json"), "commands": join_lines(invited)})
    for line in invited_lines(invited, now_s=call.parts.clock.wall_s()):
        call.out.line(line)
    return 0
