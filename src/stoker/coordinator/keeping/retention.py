"""Which results and logs of a fleet a prune would take away: decided purely, with a reason for each.

The newest results of a job are kept, as many as the policy says; of the others those go that are too old, then the
oldest until the rest fits. Pinned ones stay. An archive goes when no remaining result names it, so what is freed is
counted archive by archive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from stoker.coordinator.keeping.tree_retention import UNUSED_S
from stoker.model.frozen import frozen
from stoker.model.units import format_duration

PINNED = "pinned"
NEWEST = "among the newest of its job"


@frozen
class RetentionPolicy:
    """How much of what is kept. A limit that is nothing does not limit."""

    keep_last: int = 1
    """Of each job, so many of its newest results stay, unless `max_bytes` says otherwise."""
    older_than_s: float | None = None
    max_bytes: int | None = None
    """Of all archives of results. To come to it, also the only result of a job goes, the oldest first."""
    logs_older_than_s: float | None = None
    """Mirrored files of attempts that ended longer ago."""
    trees_unused_s: float = UNUSED_S
    """Trees of code and data that no job needs which has not ended, and that nobody has wanted for so long."""

    def faults(self) -> str:
        """Say what can't be about it; nothing if it may be."""
        if self.keep_last < 0:
            return f"of each job at least 0 results are kept, not {self.keep_last}"
        limits = (self.older_than_s, self.max_bytes, self.logs_older_than_s, self.trees_unused_s)
        return "a limit can't be negative" if any(limit is not None and limit < 0 for limit in limits) else ""


@frozen
class BundleRow:
    """One result as the database names it."""

    id: int
    job: str
    name: str
    attempt: int
    archive_sha256: str
    size_bytes: int
    """Of the archive."""
    at_s: float
    is_pinned: bool


@frozen
class BundleRemoval:
    """One result that goes, what that frees, and why."""

    row: BundleRow
    freed_bytes: int
    why: str


@frozen
class RetentionDecision:
    """What goes, in order, and what stays although it was its turn."""

    removals: tuple[BundleRemoval, ...]
    before_bytes: int
    after_bytes: int
    kept_by_reason: dict[str, int]

    @property
    def freed_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


@frozen
class AttemptLogs:
    """The mirrored files of one attempt."""

    job: str
    attempt: int
    size_bytes: int
    changed_s: float
    is_live: bool
    """The job may still add to them."""


def decide_retention(rows: Iterable[BundleRow], policy: RetentionPolicy, *, now_s: float) -> RetentionDecision:
    """Decide which results are let go of."""
    ordered = sorted(rows, key=lambda row: (row.at_s, row.id))
    newest = _newest(ordered, policy.keep_last)
    named_by = Counter(row.archive_sha256 for row in ordered)
    total = before = sum({row.archive_sha256: row.size_bytes for row in ordered}.values())
    removals: dict[int, BundleRemoval] = {}
    kept: Counter[str] = Counter()

    def let_go(row: BundleRow, why: str) -> None:
        nonlocal total
        named_by[row.archive_sha256] -= 1
        freed = 0 if named_by[row.archive_sha256] else row.size_bytes
        total -= freed
        removals[row.id] = BundleRemoval(row=row, freed_bytes=freed, why=why)

    for row in ordered:
        age_s = now_s - row.at_s
        if policy.older_than_s is None or age_s <= policy.older_than_s:
            continue
        if reason := _why_kept(row, newest):
            kept[reason] += 1
        else:
            let_go(row, f"{format_duration(age_s)} old")
    if policy.max_bytes is not None:
        # First what is not a job's newest, whatever its age; a job's only result comes last.
        for row in sorted(ordered, key=lambda row: row.id in newest):
            if total <= policy.max_bytes:
                break
            if row.is_pinned:
                kept[PINNED] += row.id not in removals
            elif row.id not in removals:
                let_go(row, "over the size limit, oldest")
    return RetentionDecision(
        removals=tuple(removals.values()), before_bytes=before, after_bytes=total, kept_by_reason=dict(kept)
    )


def decide_logs(logs: Iterable[AttemptLogs], policy: RetentionPolicy, *, now_s: float) -> tuple[AttemptLogs, ...]:
    """Decide of which attempts the mirrored files go."""
    if policy.logs_older_than_s is None:
        return ()
    limit_s = policy.logs_older_than_s
    return tuple(one for one in logs if not one.is_live and now_s - one.changed_s > limit_s)


def _newest(ordered: list[BundleRow], keep_last: int) -> frozenset[int]:
    by_job: dict[str, list[int]] = defaultdict(list)
    for row in ordered:
        by_job[row.job].append(row.id)
    return frozenset(id_ for ids in by_job.values() for id_ in (ids[-keep_last:] if keep_last else ()))


def _why_kept(row: BundleRow, newest: frozenset[int]) -> str:
    if row.is_pinned:
        return PINNED
    return NEWEST if row.id in newest else ""
