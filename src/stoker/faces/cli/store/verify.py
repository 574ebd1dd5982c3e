"""`stoker store verify`: is what is kept still what its digests say?"""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option
from stoker.model.errors import CorruptBytes
from stoker.worker.upkeep import check_records

GRAMMAR = Grammar(
    "store verify",
    about=(
        "Check every result: what changed since it was last checked, or was never checked here, is hashed again. "
        "Damage is set aside in the store's quarantine, and the next run makes it again. Exit code 13 if any."
    ),
    options=(Option("--full", help="hash every byte again, whatever is known of it"),),
    examples=("stoker store verify", "stoker store verify --full"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Check everything."""
    out, store = call.out, call.parts.store
    count = 0
    damaged = []
    for checked in check_records(store, full=given["full"]):
        count += 1
        if checked.damage:
            damaged.append(checked)
            out.object({"key": checked.key, "stage": checked.stage, "damage": checked.damage})
            out.line(f"{checked.key[:12]}  {checked.stage or '?'}  {checked.damage}")
    out.object({"results": count, "damaged": len(damaged), "full": bool(given["full"])})
    if damaged:
        raise CorruptBytes(
            f"{len(damaged)} of {count} results are damaged; what is wrong was set aside in {store.places.quarantine}",
            hint="run the jobs again: only what is damaged is made anew",
        )
    out.line(f"{count} results, all as they should be")
    return 0
