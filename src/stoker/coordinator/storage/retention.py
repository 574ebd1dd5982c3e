"""Which results and logs of a fleet a prune would take away: decided purely, with a reason for each.

The newest results of a job are kept, as many as the policy says; of the others those go that are too old, then the
oldest until the rest fits. Pinned ones stay. An archive goes when no remaining result names it, so what is freed is
counted archive by archive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from sqlalchemy import select

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import BUNDLES, JOBS
from stoker.coordinator.queue.commands import Answer, Command, PruneBundles, QueueCommandResult
from stoker.core.errors import InternalError
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.text import format_duration, point_name

# Which trees of code and data a prune would let go of: decided purely, with a reason for each.

UNUSED_S = 7 * 86400.0
"""A tree that no job waits for stays so long after somebody last wanted it: jobs that failed may be tried again."""
WANTED = "a job needs it"
PINNED = "pinned"
YOUNG = "wanted lately"


@frozen
class TreeRow:
    """One tree as the database names it."""

    tree: str
    listing: str
    files: int
    size_bytes: int
    at_s: float
    wanted_s: float
    is_pinned: bool


@frozen
class TreeRemoval:
    """One tree that goes, and why."""

    row: TreeRow
    why: str


@frozen
class TreeDecision:
    """Which trees go, and why others stay."""

    removals: tuple[TreeRemoval, ...] = ()
    kept_by_reason: dict[str, int] = fresh(factory=dict)


def decide_trees(
    rows: Iterable[TreeRow], wanted_by_jobs: frozenset[str], *, unused_s: float, now_s: float
) -> TreeDecision:
    """Decide which trees nobody waits for any more."""
    removals, kept = [], Counter[str]()
    for row in rows:
        idle_s = now_s - row.wanted_s
        reason = (
            WANTED if row.tree in wanted_by_jobs else PINNED if row.is_pinned else YOUNG if idle_s <= unused_s else ""
        )
        if reason:
            kept[reason] += 1
        else:
            removals.append(
                TreeRemoval(row=row, why=f"no job needs it, and nobody wanted it for {format_duration(idle_s)}")
            )
    return TreeDecision(removals=tuple(removals), kept_by_reason=dict(kept))


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
        """Return what can't be about it; nothing if it may be."""
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


# What the queue's database says of results, for a prune: read beside the writer, marked through it.

_AT_ONCE = 500
# A checkpoint is of use while the job may be tried again.
_CHECKPOINT_STATES = tuple(str(state) for state in JobState if state not in (JobState.COMPLETED, JobState.CANCELLED))
_LIVE_STATES = frozenset({str(JobState.PENDING), str(JobState.CLAIMED), str(JobState.RUNNING)})


class PruneQueue(Protocol):
    """As much of a queue as a prune needs."""

    def ask(self, command: Command) -> Answer:
        """Return the answer once it is durable."""


class QueueRecords:
    """`pruning.BundleRecords` of one coordinator."""

    def __init__(self, queue: PruneQueue, database: Database) -> None:
        self._queue = queue
        self._database = database

    def bundles(self) -> Iterator[BundleRow]:
        asked = (
            select(BUNDLES, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number)
            .join_from(BUNDLES, JOBS, JOBS.c.seq == BUNDLES.c.seq)
            .where(BUNDLES.c.pruned_s.is_(None))
            .order_by(BUNDLES.c.id)
        )
        with snapshot(self._database) as connection:
            rows = connection.execute(asked).all()
        for row in rows:
            yield BundleRow(
                id=row.id,
                job=row.job,
                name=point_name(row.name, row.number),
                attempt=row.attempt,
                archive_sha256=row.archive_sha256,
                size_bytes=row.size_bytes,
                at_s=row.at_s,
                is_pinned=bool(row.is_pinned),
            )

    def mark_pruned(self, ids: tuple[int, ...], *, by: str = "") -> frozenset[int]:
        marked: set[int] = set()
        # Also with nothing to mark: what the writer was asked before is durable once it answers.
        for start in range(0, max(1, len(ids)), _AT_ONCE):
            done = self._queue.ask(PruneBundles(bundles=ids[start : start + _AT_ONCE], by=by))
            if not isinstance(done, QueueCommandResult):
                raise InternalError(f"a prune was answered by {done!r}")
            marked.update(map(int, done.changed))
        return frozenset(marked)

    def named(self) -> frozenset[str]:
        results = select(BUNDLES.c.archive_sha256).where(BUNDLES.c.pruned_s.is_(None))
        checkpoints = select(JOBS.c.checkpoint).where(JOBS.c.checkpoint != "", JOBS.c.state.in_(_CHECKPOINT_STATES))
        with snapshot(self._database) as connection:
            found = set(connection.execute(results).scalars())
            found.update(filter(None, map(_archive_of, connection.execute(checkpoints).scalars())))
        return frozenset(found)

    def is_live(self, job: str) -> bool:
        with snapshot(self._database) as connection:
            state = connection.execute(select(JOBS.c.state).where(JOBS.c.id == job)).scalar()
        return state in _LIVE_STATES


def _archive_of(checkpoint: str) -> str:
    try:
        body: Any = loads(checkpoint)
        return str(body["archive_sha256"])
    except (ValueError, KeyError, TypeError):
        return ""
