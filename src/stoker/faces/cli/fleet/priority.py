"""`stoker jobs priority`: put jobs of the fleet elsewhere in the line."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.many import FirstLines
from stoker.faces.cli.fleet.naming import fleet_job
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.model.errors import IllegalMove, Usage
from stoker.model.lifecycle import JobState
from stoker.model.requirements import MOST_PRIORITY
from stoker.worker.submitting.person import who_asks

GRAMMAR = Grammar(
    "jobs priority",
    about=(
        "Put a job elsewhere in the line: the higher number goes first, strictly; 0 is where jobs begin. One that runs "
        "goes on; the number counts if it comes back. A negative number stands behind --."
    ),
    positionals=(
        Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),
        Positional("N", key="priority", help=f"from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"),
    ),
    options=(AT,),
    examples=("stoker jobs priority resnet 10", "stoker jobs priority gbt -- -5"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Set it."""
    priority = _read(given["priority"])
    job = fleet_job(call, given["name"], given["at"])
    live = [point for point in job.points() if not JobState(point.state).is_terminal]
    if not live:
        state = f"is {job.view.state}" if not job.is_sweep else "has ended, all of its points"
        hint = f"stoker jobs show {job.ref}; stoker jobs requeue {job.ref} puts it back into the line"
        raise IllegalMove(f"{job.ref} {state}: it does not wait in line", hint=hint, state=job.view.state)
    job.client.set_priority_of_jobs(
        [point.id for point in live], priority, by=who_asks(call.parts.settings.environment)
    )
    lines = FirstLines(call)
    for point in live:
        call.out.object({"name": point.name, "job": point.id, "priority": priority, "was": point.priority})
        lines.say(f"{point.name}: priority {priority}, was {point.priority}")
    lines.end()
    return 0


def _read(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = MOST_PRIORITY + 1
    if abs(number) > MOST_PRIORITY:
        raise Usage(
            f"{text!r} is not a whole number from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}",
            hint="stoker jobs priority NAME 10",
        )
    return number
