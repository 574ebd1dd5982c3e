"""`stoker admin tokens`: who may ask the coordinator for what, and until when."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Option

GRAMMAR = Grammar(
    "admin tokens",
    about=(
        "List the tokens of a fleet: whose, for which role, when they were last used, when they end. Their texts are "
        "not kept: a token is shown when it is made, and never again."
    ),
    options=(Option("--all", help="those that were revoked or have ended, too"), AT),
    examples=("stoker admin tokens", "stoker admin tokens --all --json", "stoker admin tokens revoke 573f7a79"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List them."""
    from stoker.faces.view.tables import table
    from stoker.faces.view.trust import TOKEN_HEADER, token_row

    out, now_s = call.out, call.parts.clock.wall_s()
    tokens = [
        token
        for token in reach(call, given["at"]).tokens()
        if given["all"] or (token.revoked_s is None and (token.expires_s is None or token.expires_s > now_s))
    ]
    for token in tokens:
        out.object(token.model_dump(mode="json"))
    for line in table([token_row(token, now_s) for token in tokens], header=TOKEN_HEADER, columns=out.columns):
        out.line(line)
    if not tokens:
        out.note("no tokens; `stoker admin tokens make NAME --role submit` makes one")
    return 0
