"""`stoker gang`: what there is to do with gangs."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.listing import list_verbs
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "gang",
    about="A gang is several processes, its ranks, that start and end together. From Python: stoker.gang.Gang.",
    examples=("stoker gang run --ranks 8 -- python train.py", "stoker gang run -- python -m package.train"),
)


def perform(call: Call, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "gang")
    return 0
