"""`stoker admin notify test`: send an address a message that says nothing, and say what became of it."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.notify_rm import hook_number
from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Positional

GRAMMAR = Grammar(
    "admin notify test",
    about="Send one signed message of the event `test`, once, and say whether it was taken. Exit code 1 if not.",
    positionals=(Positional("ID", help="as `stoker admin notify` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin notify test 3",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Try it."""
    number = hook_number(given["id"])
    tried = reach(call, given["at"]).try_hook(number)
    call.out.object({"hook": number, **tried.model_dump(mode="json")})
    if tried.is_delivered:
        call.out.line(f"hook {number} took it")
        return 0
    call.out.line(f"hook {number} did not take it: {tried.message}")
    return 1
