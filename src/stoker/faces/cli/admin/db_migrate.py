"""`stoker admin db migrate`: bring the queue's tables to this program's version."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.admin.db_choice import DB, address, alone
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "admin db migrate",
    about=(
        "Bring a database's tables to this program's version, in one transaction; an empty database gets them. A "
        "coordinator does the same when it starts. Refused while one serves it, and for tables of a newer program."
    ),
    options=(DB,),
    examples=("stoker admin db migrate", "stoker admin db migrate --db postgresql://stoker@localhost/stoker"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Migrate, and say from where to where."""
    from stoker.coordinator.database.migrating import HEAD
    from stoker.coordinator.database.opening import look_into
    from stoker.model.errors import NotFound
    from stoker.model.fleet_errors import VersionSkew

    url = address(call, given)
    try:
        look_into(url, clock=call.parts.clock).close()
        was = HEAD
    except NotFound:
        was = ""
    except VersionSkew as skew:
        was = str(skew.data["found"])
    with alone(call, url) as database:
        call.out.object({"database": database.shown, "was": was or None, "is": HEAD})
        told = "is up to date at" if was == HEAD else f"went from {was} to" if was else "was made at"
        call.out.line(f"{database.shown} {told} {HEAD}")
    return 0
