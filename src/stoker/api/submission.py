"""Submit prepared jobs to a coordinator: check their environments, send their code and data, then the jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from stoker.api.app_parts import AppParts
from stoker.core.errors import NotFound, StokerError
from stoker.core.frozen import changed
from stoker.core.job import EnvironmentChoice
from stoker.devices.this_machine import submitter_name
from stoker.jobs.pack.code_tree import PreparedSubmission, Shipment
from stoker.protocol.client import FleetClient
from stoker.protocol.environment_messages import MachineEnvironmentStatus, environment_digest, outlooks
from stoker.protocol.job_messages import OnChangedCode, SubmissionResponse
from stoker.protocol.lease_messages import MachineInventory

_KEY_WORDS = 4
_SENT_UNCHECKED_BYTES = 4 << 20
"""Smaller uploads are not checked first: checking ten thousand jobs takes longer."""
_AWAY = ("silent", "gone", "left")


class KnownJobs(Collection[str]):
    """The jobs of a coordinator as names for a manifest's `after`, looked up one at a time."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self._known: dict[object, bool] = {}

    def __contains__(self, name: object) -> bool:
        if name not in self._known:
            self._known[name] = self._is_known(str(name))
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter([str(name) for name, is_known in self._known.items() if is_known])

    def __len__(self) -> int:
        return sum(self._known.values())

    def _is_known(self, name: str) -> bool:
        if self._client.jobs(name=name, limit=1).jobs:
            return True
        try:
            self._client.job(name)
        except NotFound:
            return False
        return True


def check_environments(
    client: FleetClient,
    prepared: PreparedSubmission,
    report: Callable[[Sequence[EnvironmentChoice], Sequence[MachineEnvironmentStatus]], object] = lambda *_: None,
) -> PreparedSubmission:
    """Return the jobs with the platforms excluded on which their locks can't be installed.

    `report` is called for each environment with its status on each machine.
    """
    ways = {id(job.environment): (job.environment, job.folder) for job in prepared.jobs if job.environment}
    if not ways:
        return prepared
    from stoker.jobs.pack.environment_choices import refused_by

    machines = machines_there(client)
    known: dict[str, tuple[EnvironmentChoice, ...]] = {}
    made: dict[int, tuple[EnvironmentChoice, ...]] = {}
    for place, (choices, folder) in ways.items():
        digest = environment_digest(choices)
        if digest not in known:
            known[digest] = refused_by(choices, folder, machines.values())
            report(choices, outlooks(known[digest], machines))
        made[place] = known[digest]
    if all(made[place] == choices for place, (choices, _) in ways.items()):
        return prepared
    jobs = tuple(
        changed(job, environment=made[id(job.environment)]) if job.environment else job for job in prepared.jobs
    )
    return changed(prepared, jobs=jobs)


def machines_there(client: FleetClient) -> dict[str, MachineInventory]:
    """Return the available machines and their inventories; none without permission."""
    try:
        views = client.machines()
    except StokerError:
        # A role that may submit may not be allowed to list machines.
        return {}
    return {one.name: MachineInventory.model_validate(one.environments) for one in views if one.state not in _AWAY}


def send_submission(
    client: FleetClient,
    prepared: PreparedSubmission,
    parts: AppParts,
    *,
    upload: Callable[[Shipment], object],
    on_changed_code: OnChangedCode = OnChangedCode.KEEP,
    is_checked: bool = False,
) -> SubmissionResponse:
    """Send the trees that the coordinator lacks, each with `upload`, then the jobs, under a new idempotency key.

    Data stays where all machines are this one. Before a large upload a dry run raises the errors of the submission,
    unless it `is_checked`.
    """
    missing = prepared.missing(client)
    if not is_checked and sum(one.tree.size_bytes for one in missing) > _SENT_UNCHECKED_BYTES:
        preview_submission(client, prepared, parts, on_changed_code)
    for shipment in missing:
        upload(shipment)
    key = "".join(f"{parts.entropy():08x}" for _ in range(_KEY_WORDS))
    submitter = submitter_name(parts.settings.environment)
    return client.submit(prepared.submission(key=key, submitter=submitter, on_changed_code=on_changed_code))


def preview_submission(
    client: FleetClient, prepared: PreparedSubmission, parts: AppParts, on_changed_code: OnChangedCode
) -> SubmissionResponse:
    """Return what submitting the jobs would change."""
    submitter = submitter_name(parts.settings.environment)
    return client.submit(prepared.submission(submitter=submitter, on_changed_code=on_changed_code, dry_run=True))
