"""`stoker admin tokens revoke`: end a token at once."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.worker.submitting.person import who_asks

GRAMMAR = Grammar(
    "admin tokens revoke",
    about="End a token: the next request that shows it is refused. What was done with it stays done.",
    positionals=(Positional("ID", help="as `stoker admin tokens` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin tokens revoke 573f7a79",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Revoke it."""
    by = who_asks(call.parts.settings.environment)
    done = reach(call, given["at"]).revoke_token(given["id"], by=by)
    call.out.object({"token": given["id"], **done.model_dump(mode="json")})
    call.out.line(f"token {given['id']} is revoked" if done.changed else f"token {given['id']} had ended already")
    for note in done.notes:
        call.out.note(f"note: {note}")
    return 0
