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
    done = reach(call, given["at"]).reload(dry_run=given["dry_run"])
    call.out.object({**done.model_dump(mode="json"), "dry_run": given["dry_run"]})
    for name in done.changed:
        call.out.line(f"{'would change' if given['dry_run'] else 'changed'}: {name}")
    for note in done.notes:
        call.out.line(note)
    if not done.changed and not done.notes:
        call.out.line("nothing changed")
    return 0
