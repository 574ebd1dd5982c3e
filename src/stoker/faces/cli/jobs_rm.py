"""`stoker jobs rm`: forget a job. Its results stay in the store and in the folder where they were laid out."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob, meant
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.host.durable import remove_tree
from stoker.model.errors import IllegalMove
from stoker.model.lifecycle import JobState

GRAMMAR = Grammar(
    "jobs rm",
    about=(
        "Forget a job of this machine: its journal and logs are removed. Results stay, in the store and where they "
        "were laid out. Jobs of a fleet are never removed."
    ),
    positionals=(Positional("NAME", help="a job's name, `last`, or the beginning of an id"),),
    examples=("stoker jobs rm last",),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Forget one job."""
    folder = meant(call, given["name"], "")
    if isinstance(folder, FleetJob):
        has_ended = JobState(folder.view.state).is_terminal
        raise IllegalMove(
            f"{folder.ref} is a job of the fleet: jobs of a fleet are never removed, their history is kept",
            hint=f"{'' if has_ended else f'stoker cancel {folder.ref} ends it; '}a job of this machine goes by its id",
        )
    name = folder.spec().name
    if folder.state()[0] is JobState.RUNNING:
        raise IllegalMove(f"job {name} is running", hint=f"stoker cancel {name}", job=name)
    remove_tree(folder.path)
    call.out.object({"name": name, "attempt": folder.attempt, "removed": True})
    call.out.line(f"forgot {name} ({folder.attempt}); its results stay")
    return 0
