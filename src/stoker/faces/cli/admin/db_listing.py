"""`stoker admin db`: what can be done with the queue's database, one line each."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.listing import list_verbs
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "admin db",
    about="List what can be done with the database that a coordinator keeps its queue in.",
    examples=("stoker admin db", "stoker admin db check", "stoker admin db backup queue.backup"),
)


def perform(call: Call, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "admin db")
    return 0
