"""`stoker admin tokens rotate`: a new text in a token's place."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.tokens_make import show_made
from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.worker.submitting.person import who_asks

GRAMMAR = Grammar(
    "admin tokens rotate",
    about="Make a new token of the same name, role and length of life, print it once, and end the old one at once.",
    positionals=(Positional("ID", help="as `stoker admin tokens` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin tokens rotate 573f7a79",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Rotate it."""
    by = who_asks(call.parts.settings.environment)
    show_made(call, reach(call, given["at"]).rotate_token(given["id"], by=by))
    return 0
