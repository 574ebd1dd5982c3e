"""`stoker jobs requeue`: start jobs of the fleet again that have ended. What they made before stays in history."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.many import FirstLines
from stoker.faces.cli.fleet.naming import fleet_job
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.model.errors import IllegalMove
from stoker.model.lifecycle import JobState
from stoker.worker.submitting.person import who_asks

GRAMMAR = Grammar(
    "jobs requeue",
    about=(
        "Start a job of the fleet again that has failed, was cancelled or has completed: a new attempt, under a higher "
        "epoch, so that nothing old can come back. Of a sweep all points that did not complete, unless --all."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--all", help="of a sweep also the points that completed"), AT),
    examples=("stoker jobs requeue resnet/3", "stoker jobs requeue resnet", "stoker jobs requeue gbt --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Queue it again."""
    out = call.out
    job = fleet_job(call, given["name"], given["at"])
    points = job.points()
    again = [
        point
        for point in points
        if JobState(point.state).is_terminal and (len(points) == 1 or given["all"] or point.state != JobState.COMPLETED)
    ]
    if not again:
        state = points[0].state if len(points) == 1 else "no point of it has failed or was cancelled"
        raise IllegalMove(f"{job.ref} can't be queued again: {state}", hint=f"stoker jobs show {job.ref}")
    done = job.client.requeue_jobs([point.id for point in again], by=who_asks(call.parts.settings.environment))
    lines = FirstLines(call)
    for point in again:
        out.object({"name": point.name, "job": point.id, "state": "pending", "was": point.state})
        lines.say(f"{point.name} is queued again ({_was(point.state)})")
    lines.end()
    for note in done.notes:
        out.note(f"note: {note}")
    return 0


def _was(state: str) -> str:
    return "it was cancelled" if state == JobState.CANCELLED else f"it had {state}"
