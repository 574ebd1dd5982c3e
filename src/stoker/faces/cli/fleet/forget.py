"""`stoker machines forget`: remove a machine from the fleet, with its certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.closing import MACHINE, close_or_open
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar, Option

if TYPE_CHECKING:
    from stoker.wire.asking import DoneView, MachineAsk
    from stoker.wire.client import FleetClient

GRAMMAR = Grammar(
    "machines forget",
    about=(
        "Remove a machine that is not to come back. One that joined by a code loses its certificate at once: its next "
        "word is refused, and the jobs that it holds go back to the queue; to return it has to be invited again. One "
        "on the coordinator's own machine has none: it is refused while it holds jobs, and while its worker runs, "
        "which would join again, open."
    ),
    positionals=(MACHINE,),
    options=(Option("--force", help="although its worker runs"), AT),
    examples=("stoker machines forget old-laptop", "stoker machines forget --force desk"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Forget it."""
    return close_or_open(call, given, _forget, said="is forgotten")


def _forget(client: FleetClient, name: str, asked: MachineAsk) -> DoneView:
    from stoker.faces.view.trust import day

    held = [one for one in client.certificates() if one.name == name and one.revoked_s is None]
    done = client.forget(name, asked)
    notes = [f"its certificate ({one.serial[:12]}, until {day(one.expires_s)}) is revoked" for one in held]
    return done.model_copy(update={"notes": (*done.notes, *notes), "data": {**done.data, "revoked": len(held)}})
