"""`stoker machines drain`: what runs on a machine finishes, and it gets no more."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.closing import MACHINE, OPTIONS, close_or_open
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "machines drain",
    about="Give a machine of the fleet no more work; what runs there finishes. For an update, a restart, a holiday.",
    positionals=(MACHINE,),
    options=OPTIONS,
    examples=("stoker machines drain lab1", "stoker machines drain lab1 --why 'new driver' --for 2h"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Drain it."""
    return close_or_open(
        call,
        given,
        lambda client, name, asked: client.drain(name, asked),
        said="is drained: what runs there finishes, nothing more comes",
    )
