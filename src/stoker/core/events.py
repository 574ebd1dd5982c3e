"""Events: something that happened, as one flat JSON object per line.

Envelope: `{"v":1,"ts":…,"seq":…,"source":…,"kind":…, …the event's own fields}`, snake_case, `ts` in seconds since
1970. The envelope's names are reserved: an event that brings one of its own is a bug. Readers ignore kinds and fields
they do not know; a field never changes its meaning under one version.
"""

from __future__ import annotations

from stoker.core.frozen import fresh, frozen_by_position
from stoker.core.jsontext import dumps

VERSION = 1
_ENVELOPE = frozenset({"v", "ts", "seq", "source", "kind"})


class Kinds:
    """The kinds of events of a run and of a download, by the name that stands in the stream."""

    RUN_BEGIN = "run_begin"
    RUN_END = "run_end"
    STAGE_BEGIN = "stage_begin"
    STAGE_END = "stage_end"
    STAGE_SKIPPED = "stage_skipped"
    STAGE_FAILED = "stage_failed"
    STAGE_BLOCKED = "stage_blocked"
    STAGE_STEP = "stage_step"
    STEP_GAP = "step_gap"
    STAGE_LOG = "stage_log"
    STAGE_TOLD = "stage_told"
    STAGE_RETRYING = "stage_retrying"
    STAGE_CANCELLED = "stage_cancelled"
    STAGE_PRUNED = "stage_pruned"
    STAGE_WAITING = "stage_waiting"
    STAGE_REWIND = "stage_rewind"
    STAGE_EXPANDED = "stage_expanded"
    TRIAL_END = "trial_end"
    CACHE_CORRUPT = "cache_corrupt"
    CACHE_DIFFERS = "cache_differs"
    WARNING = "warning"
    DOWNLOAD_START = "download_start"
    DOWNLOAD_PROGRESS = "download_progress"
    DOWNLOAD_RETRY = "download_retry"
    DOWNLOAD_WAITING = "download_waiting"
    DOWNLOAD_DONE = "download_done"
    DOWNLOAD_FAILED = "download_failed"
    DOWNLOAD_FROZEN = "download_frozen"


LOSSY = frozenset({Kinds.STAGE_STEP, Kinds.DOWNLOAD_PROGRESS})


@frozen_by_position
class Event:
    """One thing that happened; `fields` hold what is particular to its kind."""

    kind: str
    fields: dict[str, object] = fresh(factory=dict)

    @property
    def is_lossy(self) -> bool:
        return self.kind in LOSSY


def event_line(event: Event, *, ts: float, seq: int, source: str) -> str:
    """Write an event in its envelope, without a line end."""
    if not _ENVELOPE.isdisjoint(event.fields):
        message = f"event {event.kind} uses a name of the envelope: {sorted(_ENVELOPE & event.fields.keys())}"
        raise ValueError(message)
    return dumps({"v": VERSION, "ts": round(ts, 6), "seq": seq, "source": source, "kind": event.kind, **event.fields})


class FleetKinds:
    """Kinds of events of a fleet, by their names in the journal: every move of a job is one row, written with it."""

    JOB_SUBMITTED = "job_submitted"
    JOB_GRANTED = "job_granted"
    JOB_STARTED = "job_started"
    JOB_CHECKPOINT = "job_checkpoint"
    JOB_FINISHED = "job_finished"
    JOB_FAILED = "job_failed"
    JOB_RETRYING = "job_retrying"
    """An attempt failed and another may follow."""
    JOB_RELEASED = "job_released"
    JOB_DECLINED = "job_declined"
    JOB_EXPIRED = "job_expired"
    JOB_CANCELLING = "job_cancelling"
    """Cancel was requested; its worker has not confirmed that it stopped."""
    JOB_CANCELLED = "job_cancelled"
    JOB_REQUEUED = "job_requeued"
    JOB_CHANGED = "job_changed"
    """Priority, requirements or name changed; its state did not."""
    JOB_READY = "job_ready"
    """The jobs that it depends on have completed."""
    EXEC_BEGUN = "exec_begun"
    """An operator runs a command inside it."""
    EXEC_ENDED = "exec_ended"
    MACHINE_JOINED = "machine_joined"
    MACHINE_CHANGED = "machine_changed"
    """Drained, cordoned, paused, opened; or its hardware changed."""
    MACHINE_LEFT = "machine_left"
    """Its worker exited cleanly."""
    MACHINE_LOST = "machine_lost"
    MACHINE_FORGOTTEN = "machine_forgotten"
    POOL_CHANGED = "pool_changed"
    """Paused, resumed, or watched by another launcher."""
    ALLOCATION_CHANGED = "allocation_changed"
    """An allocation moved to another state."""
    TICKET_STOLEN = "ticket_stolen"
    """A used ticket was used again with another key: both uses are refused from now on."""
    INVITED = "invited"
    """An invitation was issued; it expires."""
    INVITE_WITHDRAWN = "invite_withdrawn"
    JOIN_REFUSED = "join_refused"
    """An invitation was used with a wrong code."""
    CERTIFICATE_ISSUED = "certificate_issued"
    CERTIFICATE_REVOKED = "certificate_revoked"
    TOKEN_MADE = "token_made"  # noqa: S105 - an event
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - an event
    SYMPTOM = "symptom"
    """Something is wrong with a machine or a device."""
    SYMPTOM_OVER = "symptom_over"
    HOOK_MADE = "hook_made"
    """A webhook was added."""
    HOOK_CLOSED = "hook_closed"
    COORDINATOR_STARTED = "coordinator_started"
    POLICY_RELOADED = "policy_reloaded"
    DATABASE_RESTORED = "database_restored"
    """The queue continues from a backup, under a new generation."""


MEMBER_USAGE = "company"
"""Field of a stage's events and messages: what it used as a member of a shared process."""
