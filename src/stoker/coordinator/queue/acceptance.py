"""Machines that run only certain code, as they say hello."""

from __future__ import annotations

from stoker.coordinator.queue.classes import reclassify
from stoker.coordinator.queue.roster import hello
from stoker.coordinator.queue.turn import Turn
from stoker.wire.leasing import Hello, Welcome

_PROGRAMS = frozenset({"command"})


def greet(turn: Turn, said: Hello) -> Welcome:
    """Take a machine in; from the first on that does not run everybody's code, programs are told apart by theirs."""
    welcome = hello(turn, said)
    if said.accepts and not turn.book.tells_code_apart:
        turn.book.tells_code_apart = True
        reclassify(turn, _PROGRAMS)
    return welcome
