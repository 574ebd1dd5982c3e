"""`stoker machines forget`: remove a machine from the fleet's list."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.closing import MACHINE, close_or_open
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "machines forget",
    about="Remove a machine that will not come back. Refused while it holds jobs; one that still works joins again.",
    positionals=(MACHINE,),
    options=(AT,),
    examples=("stoker machines forget old-laptop",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Forget it."""
    return close_or_open(call, given, lambda client, name, asked: client.forget(name, asked), said="is forgotten")
