"""Events: something that happened, as one flat JSON object per line.

Envelope: `{"v":1,"ts":…,"seq":…,"source":…,"kind":…, …the event's own fields}`, snake_case, `ts` in seconds since
1970. The envelope's names are reserved: an event that brings one of its own is a bug. Readers ignore kinds and fields
they do not know; a field never changes its meaning under one version.
"""

from __future__ import annotations

from stoker.model.frozen import fresh, frozen_by_position
from stoker.model.json_text import dumps

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
