"""`stoker admin reload`: have the coordinator read its cluster file and its manifest again."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT, reach
from stoker.faces.cli.grammar import Grammar, Option

GRAMMAR = Grammar(
    "admin reload",
    about=(
        "Have the coordinator read its cluster file and its manifest again, as HUP does, and say what changed. Files "
        "with faults change nothing; reading them twice changes nothing more."
    ),
    options=(Option("--dry-run", help="say what would change, and change nothing"), AT),
    examples=("stoker admin reload --dry-run", "stoker admin reload"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Have them read."""
    from stoker.wire.asking import NOTHING_GIVEN

    done = reach(call, given["at"]).reload(dry_run=given["dry_run"])
    call.out.object({**done.model_dump(mode="json"), "dry_run": given["dry_run"]})
    # Every change is one of the notes, by its name; what is changed itself is for programs.
    for note in done.notes:
        call.out.line(f"would change: {note}" if given["dry_run"] else note)
    if not done.notes:
        call.out.line(NOTHING_GIVEN if done.data.get("files") == 0 else "nothing changed")
    return 0
