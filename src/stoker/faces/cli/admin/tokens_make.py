"""`stoker admin tokens make`: a token for a person or a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.invite import role_of_people
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Option, Positional, duration
from stoker.model.errors import Usage

if TYPE_CHECKING:
    from stoker.wire.enrolling import TokenMade


def _life(text: str) -> float | str:
    """Read how long a token lasts."""
    return text if text == "never" else duration(text)


GRAMMAR = Grammar(
    "admin tokens make",
    about=(
        "Make a token and print it, once: only its digest is kept. Whoever has it may do what its role says (read, "
        "submit, operate, admin; each includes those before it), for a year unless --for says otherwise. For people, "
        "`stoker machines invite --operator` is easier: their computer gets the token, and trusts this coordinator."
    ),
    positionals=(Positional("NAME", help="whose it is: stands beside all that is done with it"),),
    options=(
        Option("--role", value="ROLE", read=role_of_people, help="read, submit, operate or admin"),
        Option("--for", value="TIME", read=_life, help="how long it lasts, such as 30d, or never (default: 365d)"),
        AT,
    ),
    examples=("stoker admin tokens make ci --role submit --for 30d", "stoker admin tokens make wall --role read"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Make it."""
    from stoker.wire.enrolling import TokenAsk

    if given["role"] is None:
        raise Usage("a token has a role", hint="--role read, submit, operate or admin")
    made = reach(call, given["at"]).make_token(TokenAsk(name=given["name"], role=given["role"], life_s=given["for"]))
    show_made(call, made)
    return 0


def show_made(call: Call, made: TokenMade) -> None:
    """Print a token alone on standard output, so that it can be stored, and the rest beside it."""
    from stoker.faces.view.trust import day

    call.out.object(made.model_dump(mode="json"))
    call.out.line(made.token)
    view = made.view
    call.out.note(f"token {view.id} of {view.name}, who may {view.role}; until {day(view.expires_s)}")
    call.out.note("it is not shown again; STOKER_OPERATOR_TOKEN carries it")
