"""`stoker cancel`: stop a job, here or on the fleet, and say so only when it has stopped."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.naming import FleetJob, meant
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.view.times import span
from stoker.worker.stopping import Stop, stop_job

GRAMMAR = Grammar(
    "cancel",
    about=(
        "Stop a running job: its process is asked to end and given time to clean up; if it does not, it is killed with "
        "everything it started. Finished stages stay known, so running the job again continues it. Of the fleet, the "
        "wish is written down first and holds whatever happens; of a sweep all points are meant."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--no-wait", help="of the fleet: do not wait until it has stopped"), AT),
    examples=("stoker cancel last", "stoker cancel resnet/3", "stoker cancel resnet --no-wait"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Stop one job."""
    folder = meant(call, given["name"], given["at"])
    if isinstance(folder, FleetJob):
        from stoker.faces.cli.fleet.cancelling import cancel_fleet_job

        return cancel_fleet_job(call, folder, waits=not given["no_wait"])
    name = folder.spec().name
    if not call.flags.json and folder.may_be_running():
        call.out.note(f"stopping {name}…")
    stopped = stop_job(folder, clock=call.parts.clock)
    call.out.object({"name": name, "attempt": folder.attempt, "how": str(stopped.how), "seconds": stopped.seconds})
    told = {
        Stop.POLITE: "it stopped when asked",
        Stop.FIRM: "it did not stop when asked and was killed",
    }[stopped.how]
    call.out.line(f"cancelled {name}: {told} ({span(stopped.seconds)})")
    return 0
