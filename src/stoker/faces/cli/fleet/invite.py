"""`stoker machines invite`: a code by which a machine, or a person, joins the fleet."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Option, duration
from stoker.model.errors import BadInput, Usage
from stoker.model.principals import Role

_PEOPLE = tuple(str(role) for role in Role if role is not Role.WORKER)
_LIFE_S = 900.0


def role_of_people(text: str) -> Role:
    """Read one of people's roles."""
    if text not in _PEOPLE:
        message = f"{text!r} is none of {', '.join(_PEOPLE)}"
        raise ValueError(message)
    return Role(text)


GRAMMAR = Grammar(
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


def perform(call: Call, given: dict[str, Any]) -> int:
    """Invite."""
    from stoker.faces.view.trust import invited_lines, join_lines
    from stoker.wire.enrolling import InviteAsk

    if given["role"] is not None and not given["operator"]:
        raise Usage("--role is for people", hint="stoker machines invite --operator --role submit")
    role = (given["role"] or Role.OPERATE) if given["operator"] else Role.WORKER
    client = reach(call, given["at"])
    if not client.url.startswith("https://"):
        raise BadInput(
            f"the coordinator at {client.url} serves its own machine alone: nobody else can join it",
            hint="start it so that others reach it, with TLS of its own: stoker serve --listen 0.0.0.0",
        )
    invited = client.invite(InviteAsk(role=role, name=given["name"] or "", life_s=given["for"] or _LIFE_S))
    call.out.object({**invited.model_dump(mode="json"), "commands": join_lines(invited)})
    for line in invited_lines(invited, now_s=call.parts.clock.wall_s()):
        call.out.line(line)
    return 0
