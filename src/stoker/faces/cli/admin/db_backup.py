"""`stoker admin db backup FILE`: everything that the queue's database holds, in one file."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.admin.db_choice import DB, beside
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.model.units import format_size

GRAMMAR = Grammar(
    "admin db backup",
    about=(
        "Write one moment of the database into a file, also while it is served; the file has a digest inside and fits "
        "SQLite and PostgreSQL alike. The bytes of results are not in it: they lie below STOKER_HOME/fleet."
    ),
    positionals=(Positional("FILE", help="where to write it"),),
    options=(DB, Option("--force", help="write over a file that is there")),
    examples=(
        "stoker admin db backup queue.backup",
        "stoker admin db backup --force queue.backup --db postgresql://stoker@localhost/stoker",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Write it, and say what is in it."""
    from stoker.coordinator.database.backing_up import back_up
    from stoker.faces.cli.admin.counting import counted
    from stoker.model.errors import LocalFile

    path = call.path(given["file"])
    if os.path.exists(path) and not given["force"]:
        raise LocalFile(f"{given['file']} is there already", hint="choose another name, or say --force")
    with beside(call, given) as database, counted(call, "backing up", 1) as count:
        head = back_up(database, path, clock=call.parts.clock, progress=count.reach)
        shown = database.shown
    size_bytes = os.path.getsize(path)
    call.out.object(
        {"file": path, "bytes": size_bytes, "database": shown, "rows": head.rows, "generation": head.generation}
    )
    call.out.line(f"{given['file']}: {head.rows['jobs']:,} jobs, {head.total:,} rows, {format_size(size_bytes)}")
    call.out.note("hint: results' bytes are not in it; copy the folder fleet/ as well")
    return 0
