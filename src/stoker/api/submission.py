"""Submit prepared jobs to a coordinator, after the code and data that they name."""

from __future__ import annotations

from collections.abc import Callable

from stoker.api.app_parts import AppParts
from stoker.devices.this_machine import submitter_name
from stoker.jobs.pack.code_tree import PreparedSubmission, Shipment
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import OnChangedCode, SubmissionResponse

_KEY_WORDS = 4
_SENT_UNCHECKED_BYTES = 4 << 20
"""Smaller uploads are not checked first: checking ten thousand jobs takes longer."""


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
