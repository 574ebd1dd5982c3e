"""`stoker cancel`: stop a job, here or on the fleet, and say so only when it has stopped."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.job_names import FleetJob, meant
from stoker.core.job import JobState
from stoker.jobs.job_folder import JobFolder, find_running
from stoker.jobs.stop import JobStopMethod, stop_job, stop_trial
from stoker.jobs.trials import TRIALS, read_trials, trial_numbered
from stoker.views.text_tables import span

GRAMMAR = Grammar(
    "cancel",
    about=(
        "Stop a running job: its process is asked to end and given time to clean up; if it does not, it is killed with "
        "everything it started. Finished stages stay known, so running the job again continues it. NAME/3 stops the "
        "third trial of a sweep or an adapters file, and the others go on; NAME alone stops them all. If the newest "
        "job of that name has ended, the newest that still runs here is stopped. Of the fleet, the request is written "
        "down first and holds whatever happens."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--no-wait", help="of the fleet: do not wait until it has stopped"), AT),
    examples=("stoker cancel last", "stoker cancel resnet/3", "stoker cancel resnet --no-wait"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Stop one job."""
    folder = _running_of_name(call, meant(call, given["name"], given["at"]), given)
    if isinstance(folder, FleetJob):
        from stoker.cli.fleet_job import cancel_fleet_job

        return cancel_fleet_job(call, folder, waits=not given["no_wait"])
    name = folder.spec().name
    point = given["name"].partition("/")[2]
    if point:
        return _cancel_trial(call, folder, point)
    if not call.flags.json and folder.may_be_running():
        call.out.note(f"stopping {name}…")
    stopped = stop_job(folder, clock=call.parts.clock)
    call.out.object({"name": name, "attempt": folder.attempt, "how": str(stopped.how), "seconds": stopped.seconds})
    told = {
        JobStopMethod.POLITE: "it stopped when asked",
        JobStopMethod.FIRM: "it did not stop when asked and was killed",
    }[stopped.how]
    call.out.line(f"cancelled {name}: {told} ({span(stopped.seconds)})")
    return 0


def _running_of_name(call: CommandContext, found: JobFolder | FleetJob, given: dict[str, Any]) -> JobFolder | FleetJob:
    """Return the job to stop: the one that was found, or if it has ended, the newest of its name that runs here."""
    if isinstance(found, JobFolder):
        if found.may_be_running():
            return found
    elif given["at"]:
        return found
    running = find_running(call.parts.settings.runs, given["name"].partition("/")[0])
    if running is None:
        return found
    if isinstance(found, FleetJob) and not all(JobState(point.state).is_terminal for point in found.points()):
        return found
    call.out.note(f"note: the newest job of that name has ended; {running.attempt} is still running")
    return running


def _cancel_trial(call: CommandContext, folder: JobFolder, point: str) -> int:
    """Stop one trial of a sweep that runs here; exit 1 if it ended otherwise before."""
    name = folder.spec().name
    trial = trial_numbered(read_trials(folder.paper(TRIALS)), point, name)
    title = f"{name}/{trial.number}  {trial.label}"
    if not call.flags.json and folder.may_be_running():
        call.out.note(f"stopping {title}…")
    stopped = stop_trial(folder, trial, clock=call.parts.clock)
    fields = {"name": f"{name}/{trial.number}", "label": trial.label, "attempt": folder.attempt}
    call.out.object({**fields, "state": stopped.state, "seconds": stopped.seconds})
    if stopped.state == JobState.CANCELLED:
        call.out.line(f"cancelled {title} ({span(stopped.seconds)}); the other trials go on")
        return 0
    call.out.line(f"{title} had {stopped.state} before it could be cancelled")
    return 1
