"""`stoker admin db check`: prove that the queue kept its promises; list every fault with what shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stoker.faces.cli.admin.db_choice import DB, beside
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar

GRAMMAR = Grammar(
    "admin db check",
    about=(
        "Read the whole database at one moment, also while it is served, and prove for every job: at most one live "
        "lease, epochs that only grow, nothing accepted under an old one, events that lead to the state it is in, "
        "results whose bytes are there. The file and the counters are checked too. Every fault is listed."
    ),
    options=(DB,),
    examples=("stoker admin db check", "stoker admin db check --json --db sqlite:///queue.db"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Check, list what is wrong, and say whether anything is."""
    from stoker.coordinator.database.checking import check_database
    from stoker.faces.cli.admin.counting import counted

    faults = jobs = 0
    with beside(call, given) as database, _objects(call) as has_object, counted(call, "checking", 1) as count:

        def reach(done: int, total: int) -> None:
            nonlocal jobs
            jobs = done
            count.reach(done, total)

        for fault in check_database(database, has_object=has_object, progress=reach):
            faults += 1
            call.out.object(fault.to_dict())
            about = f"job {fault.job[:12]}: " if fault.job else ""
            call.out.line(f"{fault.rule}: {about}{fault.message}")
        shown = database.shown
    call.out.object({"database": shown, "jobs": jobs, "faults": faults, "has_looked_for_bytes": has_object is not None})
    unlooked = "" if has_object is not None else "; results' bytes are kept elsewhere and were not looked for"
    call.out.line(f"{shown}: {jobs:,} jobs, {faults or 'no'} fault{'s' * (faults != 1)}{unlooked}")
    return 1 if faults else 0


@contextmanager
def _objects(call: Call) -> Iterator[Callable[[str], int | None] | None]:
    """Give what says whether a result's bytes are here, if anything is kept here at all."""
    from stoker.coordinator.keeping.keeping import LocalKeeping

    folder = call.parts.settings.fleet
    if not os.path.isdir(os.path.join(folder, "store")):
        yield None
        return
    keeping = LocalKeeping(folder, call.parts.clock)
    try:
        yield keeping.has_archive
    finally:
        keeping.close()
