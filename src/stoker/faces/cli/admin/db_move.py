"""`stoker admin db move URL`: the same queue in another database, SQLite or PostgreSQL, compared row by row."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.db_choice import DB, address, alone
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional

GRAMMAR = Grammar(
    "admin db move",
    about=(
        "Copy everything into another database and compare it afterwards. Generation, epochs and leases stay what they "
        "are, so running work goes on once `stoker serve --db URL` serves the new one. Refused while a coordinator "
        "serves either. The old one stays as it is; nobody may serve it again."
    ),
    positionals=(Positional("URL", help="where to: sqlite:///PATH or postgresql://…"),),
    options=(DB, Option("--replace", help="throw away what the new database holds now")),
    examples=(
        "stoker admin db move postgresql://stoker@localhost/stoker",
        "stoker admin db move --db postgresql://stoker@localhost/stoker sqlite:///queue.db",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Move, compare, and say how to serve it."""
    from stoker.coordinator.database.moving import move
    from stoker.coordinator.database.opening import look_into
    from stoker.faces.cli.admin.counting import counted

    url = address(call, given)
    # Nothing is made where there is nothing to move.
    look_into(url, clock=call.parts.clock).close()
    with alone(call, url) as source, alone(call, given["url"]) as target, counted(call, "moving", 1) as count:
        head = move(source, target, clock=call.parts.clock, may_replace=given["replace"], progress=count.reach)
        shown = target.shown
    call.out.object({"database": shown, "rows": head.rows, "generation": head.generation})
    call.out.line(f"{shown}: {head.rows['jobs']:,} jobs, {head.total:,} rows, compared")
    call.out.note(f"next: stoker serve --db {given['url']}")
    return 0
