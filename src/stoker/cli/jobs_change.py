"""`stoker jobs priority`: put jobs of the fleet elsewhere in the line."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.job_names import FleetJob, fleet_job, meant
from stoker.cli.watch_many import FirstLines
from stoker.core.errors import InvalidTransition, Usage
from stoker.core.job import JobState
from stoker.core.machine import MOST_PRIORITY
from stoker.host.durable import remove_tree
from stoker.jobs.submitter import who_asks

# `stoker jobs rm`: forget a job. Its results stay in the store and in the folder where they were laid out.

JOBS_RM_GRAMMAR = Grammar(
    "jobs rm",
    about=(
        "Forget a job of this machine: its journal and logs are removed. Results stay, in the store and where they "
        "were laid out. Jobs of a fleet are never removed."
    ),
    positionals=(Positional("NAME", help="a job's name, `last`, or the beginning of an id"),),
    examples=("stoker jobs rm last",),
)


def perform_jobs_rm(call: CommandContext, given: dict[str, Any]) -> int:
    """Forget one job."""
    folder = meant(call, given["name"], "")
    if isinstance(folder, FleetJob):
        has_ended = JobState(folder.view.state).is_terminal
        raise InvalidTransition(
            f"{folder.ref} is a job of the fleet: jobs of a fleet are never removed, their history is kept",
            hint=f"{'' if has_ended else f'stoker cancel {folder.ref} ends it; '}a job of this machine goes by its id",
        )
    name = folder.spec().name
    if folder.state()[0] is JobState.RUNNING:
        raise InvalidTransition(f"job {name} is running", hint=f"stoker cancel {name}", job=name)
    remove_tree(folder.path)
    call.out.object({"name": name, "attempt": folder.attempt, "removed": True})
    call.out.line(f"forgot {name} ({folder.attempt}); its results stay")
    return 0


PRIORITY_GRAMMAR = Grammar(
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


def perform_priority(call: CommandContext, given: dict[str, Any]) -> int:
    """Set it."""
    priority = _read(given["priority"])
    job = fleet_job(call, given["name"], given["at"])
    live = [point for point in job.points() if not JobState(point.state).is_terminal]
    if not live:
        state = f"is {job.view.state}" if not job.is_sweep else "has ended, all of its points"
        hint = f"stoker jobs show {job.ref}; stoker jobs requeue {job.ref} puts it back into the line"
        raise InvalidTransition(f"{job.ref} {state}: it does not wait in line", hint=hint, state=job.view.state)
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


# `stoker jobs requeue`: start jobs of the fleet again that have ended. What they made before stays in history.

REQUEUE_GRAMMAR = Grammar(
    "jobs requeue",
    about=(
        "Start a job of the fleet again that has failed, was cancelled or has completed: a new attempt, under a higher "
        "epoch, so that nothing old can come back. Of a sweep all points that did not complete, unless --all."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--all", help="of a sweep also the points that completed"), AT),
    examples=("stoker jobs requeue resnet/3", "stoker jobs requeue resnet", "stoker jobs requeue gbt --json"),
)


def perform_requeue(call: CommandContext, given: dict[str, Any]) -> int:
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
        raise InvalidTransition(f"{job.ref} can't be queued again: {state}", hint=f"stoker jobs show {job.ref}")
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
