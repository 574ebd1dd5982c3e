"""`stoker machines open`: a machine that was drained, cordoned or paused gets work again."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.closing import DEVICE, MACHINE, close_or_open
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "machines open",
    about="Let a machine have work again that was drained, cordoned or paused; or some of its devices.",
    positionals=(MACHINE,),
    options=(DEVICE, AT),
    examples=("stoker machines open lab1", "stoker machines open lab1 --device GPU-8f1c"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Open it."""
    return close_or_open(
        call, given, lambda client, name, asked: client.open(name, asked), said="is open: jobs may come"
    )
