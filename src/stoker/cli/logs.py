"""`stoker logs`: what a job's stages printed, then or while they run, here or on the fleet."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional, whole
from stoker.cli.job_handle import split_target
from stoker.cli.job_names import FleetJob, meant
from stoker.cli.local_job import JobLogReader
from stoker.core.errors import Usage
from stoker.core.job import JobState

_LOOK_AGAIN_S = 0.2

GRAMMAR = Grammar(
    "logs",
    about=(
        "Show what a job's stages printed, wherever it runs. A stage whose result was known printed nothing in this "
        "job. Of a job of the fleet, -f goes on with its next attempt on another machine."
    ),
    positionals=(
        Positional(
            "NAME[/STAGE]", key="target", help="a job (a name, `last`, an id), one stage of it, or a trial (`last/3`)"
        ),
    ),
    options=(
        Option("-f", "--follow", help="go on until the job ends"),
        Option("--stage", value="STAGE", help="only this stage"),
        Option("--attempt", value="N", read=whole(1), help="this try of a job of the fleet; the last unless told"),
        AT,
    ),
    examples=(
        "stoker logs last",
        "stoker logs gbt/train_gbt",
        "stoker logs resnet/3 -f",
        "stoker logs gbt --attempt 1",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a job's logs."""
    found = meant(call, given["target"], given["at"])
    if isinstance(found, FleetJob):
        from stoker.cli.fleet_job import show_fleet_logs

        return show_fleet_logs(
            call, found, stage=given["stage"] or "", attempt=given["attempt"], follows=given["follow"]
        )
    if given["attempt"] is not None:
        raise Usage("--attempt is for jobs of the fleet; here each run is a job of its own", hint="stoker jobs")
    stage = "/".join(filter(None, (split_target(given["target"])[1], given["stage"])))
    reading = JobLogReader(call, found, stage)
    call.out.is_watched = given["follow"]
    while True:
        is_running = given["follow"] and found.state()[0] is JobState.RUNNING
        reading.read_on()
        if not is_running:
            reading.finish()
            return 0
        call.parts.clock.sleep(_LOOK_AGAIN_S)
