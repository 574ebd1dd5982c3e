"""`stoker admin notify rm`: tell an address nothing more."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Positional, whole

GRAMMAR = Grammar(
    "admin notify rm",
    about="Close a hook: nothing more is sent there. What was sent stays sent.",
    positionals=(Positional("ID", help="as `stoker admin notify` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin notify rm 3",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Close it."""
    number = hook_number(given["id"])
    done = reach(call, given["at"]).close_hook(number)
    call.out.object({"hook": number, **done.model_dump(mode="json")})
    call.out.line(f"hook {number} is told nothing more" if done.changed else f"hook {number} was closed already")
    return 0


def hook_number(text: str) -> int:
    """Read a hook's number."""
    from stoker.model.errors import Usage

    try:
        return whole(1)(text)
    except ValueError:
        raise Usage(f"{text!r} is no hook's number", hint="`stoker admin notify` lists them") from None
