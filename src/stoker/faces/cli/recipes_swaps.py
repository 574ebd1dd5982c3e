"""`stoker recipes swaps`: recipes that could stand in for one."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.faces.cli.recipes import list_entries

GRAMMAR = Grammar(
    "recipes swaps",
    about="List the recipes that take and give the same kinds as one, so that they could stand in for it.",
    positionals=(Positional("RECIPE", help="a recipe's name; its last part will do if no other ends in it"),),
    examples=("stoker recipes swaps tabular/gbt",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List what could be swapped in."""
    catalogue = call.parts.catalogue
    swaps = catalogue.swaps(given["recipe"])
    if swaps:
        list_entries(call, swaps)
    else:
        wanted = catalogue.find(given["recipe"])
        call.out.line(f"nothing else takes and gives what {wanted.name} does ({wanted.output})")
    return 0
