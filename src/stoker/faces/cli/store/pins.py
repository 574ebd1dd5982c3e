"""`stoker store pins`: what is kept whatever is pruned."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar
from stoker.faces.view.tables import table
from stoker.store.pins import list_pins

GRAMMAR = Grammar(
    "store pins",
    about="List the pins: results that stay whatever is pruned.",
    examples=("stoker store pins", "stoker store pin gbt --remove"),
)


def perform(call: Call, _given: dict[str, Any]) -> int:
    """List the pins."""
    out = call.out
    pins = list_pins(call.parts.store.places)
    for one in pins:
        out.object({"pin": one.name, "keys": list(one.keys)})
    rows = [[one.name, str(len(one.keys))] for one in pins]
    for line in table(rows, header=("pin", "results")) if rows else ["nothing is pinned"]:
        out.line(line)
    return 0
