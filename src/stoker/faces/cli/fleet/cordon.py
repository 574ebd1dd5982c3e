"""`stoker machines cordon`: a machine, or one of its devices, that somebody mistrusts gets no more work."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.closing import DEVICE, MACHINE, OPTIONS, close_or_open
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "machines cordon",
    about="Give a machine, or only some of its devices, no more work: it is mistrusted. What runs there finishes.",
    positionals=(MACHINE,),
    options=(DEVICE, *OPTIONS),
    examples=("stoker machines cordon lab1", "stoker machines cordon lab1 --device GPU-8f1c --why 'ECC errors'"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Cordon it."""
    return close_or_open(
        call, given, lambda client, name, asked: client.cordon(name, asked), said="is cordoned: nothing more comes"
    )
