"""`stoker admin db restore FILE`: go on from a backup, under a new generation."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.db_choice import DB, address, alone
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional

GRAMMAR = Grammar(
    "admin db restore",
    about=(
        "Fill a database from a backup, all of it or nothing. The generation rises, so that no worker of the time "
        "after the backup can write; what was running goes back into the line when the coordinator starts. Refused "
        "while a coordinator serves the database, and for one that holds jobs unless --replace is said."
    ),
    positionals=(Positional("FILE", help="what `stoker admin db backup` wrote"),),
    options=(DB, Option("--replace", help="throw away what the database holds now")),
    examples=(
        "stoker admin db restore queue.backup",
        "stoker admin db restore --replace queue.backup",
        "stoker admin db restore queue.backup --db postgresql://stoker@localhost/stoker",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Restore, and say what is there now."""
    from stoker.coordinator.database.restoring import restore
    from stoker.faces.cli.admin.counting import counted
    from stoker.host.durable import open_regular, translated

    path = call.path(given["file"])
    with (
        translated(path),
        open_regular(path) as file,
        alone(call, address(call, given)) as database,
        counted(call, "restoring", 1) as count,
    ):
        done = restore(
            database,
            file,
            given["file"],
            clock=call.parts.clock,
            may_replace=given["replace"],
            progress=count.reach,
        )
        shown = database.shown
    call.out.object({"database": shown, "rows": done.head.rows, "generation": done.generation, "live": done.live})
    back = f"; {done.live:,} that ran go back into the line" if done.live else ""
    call.out.line(f"{shown}: {done.head.rows['jobs']:,} jobs, generation {done.generation}{back}")
    call.out.note("next: stoker admin db check, then stoker serve")
    return 0
