"""What commands share whose work is a job for one machine of the fleet: its machine, its end, its result."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.cli.context import CommandContext
from stoker.core.errors import NotFound, StokerError, WorkFailed
from stoker.core.job import JobState
from stoker.core.text import did_you_mean, some_of
from stoker.devices.this_machine import submitter_name

if TYPE_CHECKING:
    from stoker.core.job import JobSpec
    from stoker.protocol.client import FleetClient

_ENDED_BADLY = (JobState.FAILED, JobState.CANCELLED)


def check_machines(client: FleetClient, names: Sequence[str]) -> None:
    """Raise `NotFound` if the fleet lacks a machine."""
    known = [one.name for one in client.machines()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are {some_of(known, 5) or 'none'}: stoker machines"
            raise NotFound(f"the fleet has no machine {name!r}", hint=hint)


def start_again(
    call: CommandContext, client: FleetClient, specs: Iterable[JobSpec], *, completed: Collection[str] = ()
) -> None:
    """Queue jobs again that an earlier command submitted, and that failed; of `completed`, ids, also those that did."""
    for spec in specs:
        with suppress(NotFound):
            state = client.job(spec.id).job.state
            if state in _ENDED_BADLY or (state == JobState.COMPLETED and spec.id in completed):
                client.requeue_jobs([spec.id], by=submitter_name(call.parts.settings.environment))


def require_completed(client: FleetClient, spec: JobSpec, what: str) -> None:
    """Raise `WorkFailed` with the reason if a job has not completed."""
    details = client.job(spec.id)
    view = details.job
    if view.state == JobState.COMPLETED:
        return
    if JobState(view.state).is_terminal:
        message = str(details.error.get("message") or view.why or view.state)
        raise WorkFailed(f"{what}: {message}", hint=f"stoker logs {view.name}", job=view.id, error=details.error)
    why = view.why
    with suppress(StokerError):
        why = client.explain(view.id).verdict
    raise WorkFailed(f"{what}: {why or 'waits'}", hint=f"stoker explain {view.name}", job=view.id)


def fetch_result(call: CommandContext, spec: JobSpec, folder: str, at: str | None) -> str:
    """Copy the result of a job into a folder, and return the folder."""
    from stoker.store.results import SIDECAR, lay_out

    job = call.lookup.fleet_job(spec.id, at)
    parts = [part for found in job.results().found for part in found.fetch(lambda _size_bytes: None)]
    lay_out(call.parts.store, parts, folder)
    # It differs each time, and the folder is known by its contents.
    os.unlink(os.path.join(folder, SIDECAR))
    return folder
