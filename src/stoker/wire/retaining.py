"""What a prune of the fleet's results is asked, and what it would do or did."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stoker.wire.orders import Bytes
from stoker.wire.protocol import Asked, Message
from stoker.wire.views import Count, Line

Seconds = Annotated[float, Field(ge=0, le=1e10)]
MOST_LISTED = 1000
"""Results that an answer names; the others are counted."""


class PruneAsk(Asked):
    """Which results and logs may go; without `is_wanted` nothing does, and the answer says what would."""

    keep_last: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Of each job, so many of its newest results stay."""
    older_than_s: Seconds | None = None
    max_bytes: Bytes | None = None
    """Of all results together; to come to it the oldest go, a job's newest last."""
    logs_older_than_s: Seconds | None = None
    trees_unused_s: Seconds | None = None
    """Code and data that no waiting or running job needs, and that nobody wanted for so long; usually a week."""
    is_wanted: bool = False
    by: Annotated[str, Field(max_length=200)] = ""


class PrunedResult(Message):
    """One result that goes."""

    job: Line
    name: Line
    attempt: Count
    archive_sha256: Line
    size_bytes: Count
    freed_bytes: Count
    """Nothing, where another result has the same bytes."""
    at_s: float
    why: Line


class PruneView(Message):
    """What goes, or went."""

    is_done: bool
    results: tuple[PrunedResult, ...] = ()
    result_count: Count = 0
    before_bytes: Count = 0
    """Of all results."""
    after_bytes: Count = 0
    kept: dict[Line, Count] = {}
    """Why some stay although it is their turn."""
    logs: Count = 0
    """Attempts whose files go."""
    log_bytes: Count = 0
    orphans: Count = 0
    """Archives that nothing names: of attempts that were lost, of checkpoints that were overtaken."""
    orphan_bytes: Count = 0
    uploads: Count = 0
    trees: Count = 0
    """Of code and data, that no job needs any more."""
    tree_bytes: Count = 0
    freed_bytes: Count = 0
    stuck: tuple[Line, ...] = ()
    """What could not be removed, and why."""
