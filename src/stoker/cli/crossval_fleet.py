"""`stoker crossval --candidate-on MACHINE --reference-on MACHINE`: each side is a job of the fleet, both run at once.

A side is a job of the recipe `crossval/trace` for one machine, submitted like any other; its result is fetched, and the
comparison runs here. The same command again finds the jobs completed, and starts failed ones again; completed ones for
`--rerun`, and where a side can change unseen. The machine then computes what has changed there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.crossval_sides import ComparedSide, trace_values
from stoker.cli.machine_jobs import check_machines, fetch_result, require_completed, start_again
from stoker.cli.run import words_of
from stoker.config.values import text_of
from stoker.core.errors import WorkFailed
from stoker.core.frozen import changed
from stoker.jobs.request import JobRequest

if TYPE_CHECKING:
    from stoker.core.job import JobSpec
    from stoker.jobs.pack.code_tree import PreparedSubmission

RECIPE = "crossval/trace"


def trace_on_fleet(
    call: CommandContext, given: Mapping[str, Any], sides: Mapping[str, ComparedSide], name: str, stack: ExitStack
) -> dict[str, str]:
    """Run the sides that name a machine; return the arguments of the comparison with the folders of their traces.

    The folders exist until `stack` closes. A dry run shows where they would run. Raises `NotFound` for an unknown
    machine, `WorkFailed` if a side does not complete.
    """
    remote = {side: one for side, one in sides.items() if one.machine}
    if not remote:
        return {}
    from stoker.cli.submission import submit

    client = call.lookup.client_of(call.lookup.wait_for_coordinator(given["at"], limit_s=0.0))
    check_machines(client, [one.machine for one in remote.values()])
    prepared, specs = _prepare(call, given, remote, name)
    is_dry = bool(given["dry_run"])
    if not is_dry:
        named = words_of(given["rerun"])
        again = {specs[side].id for side, one in remote.items() if side in named or one.choice.changes_unseen}
        start_again(call, client, prepared.jobs, completed=again)
    options = {"dry_run": is_dry, "yes": True, "rerun": False, "keep": True, "notify": None, "watch": not is_dry}
    code = submit(call, {**options, "at": given["at"]}, prepared, client)
    if is_dry:
        return {}
    for side, spec in specs.items():
        require_completed(client, spec, f"{side} on {remote[side].machine}")
    if code:
        raise WorkFailed("the sides did not complete", hint="stoker jobs")
    top = stack.enter_context(tempfile.TemporaryDirectory(prefix="stoker-crossval-"))
    return {
        f"{side}_trace": fetch_result(call, spec, os.path.join(top, side), given["at"]) for side, spec in specs.items()
    }


def _prepare(
    call: CommandContext, given: Mapping[str, Any], remote: Mapping[str, ComparedSide], name: str
) -> tuple[PreparedSubmission, dict[str, JobSpec]]:
    """Return the jobs of the sides as one submission, and the job of each side: one, if both are the same work."""
    from stoker.jobs.submission import prepare

    made: dict[str, PreparedSubmission] = {}
    for side, one in remote.items():
        values = {**trace_values(given), "runtime": one.runtime, "machine": one.machine}
        if not one.choice.url:
            values["model"] = one.model
        request = JobRequest(
            target=RECIPE,
            overrides=tuple(f"{key}={text_of(value)}" for key, value in values.items()),
            name=f"{name}-{side}",
            fields={"allowed_hosts": (one.machine,)},
        )
        made[side] = prepare(request, builder=call.builder(), code=call.parts.code)
    call.parts.code.save()
    trees = {one.digest: one for prepared in made.values() for one in prepared.shipments}
    jobs = {job.id: job for prepared in reversed(made.values()) for job in prepared.jobs}
    whole = changed(
        next(iter(made.values())),
        jobs=tuple(reversed(jobs.values())),
        notes=tuple(dict.fromkeys(note for prepared in made.values() for note in prepared.notes)),
        shipments=tuple(trees.values()),
    )
    return whole, {side: prepared.jobs[0] for side, prepared in made.items()}
