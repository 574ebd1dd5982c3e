"""Which results and logs of a fleet a prune would take away: decided purely, with a reason for each.

The newest results of a job are kept, as many as the policy says; of the others those go that are too old, then the
oldest until the rest fits. Pinned ones stay. An archive goes when no remaining result names it, so what is freed is
counted archive by archive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import select

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import BUNDLES, JOBS
from stoker.coordinator.queue.commands import PruneBundles, QueueCommandResult
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import PINNED, UNUSED_S, CoordinatorTrees, TreeDecision, decide_trees
from stoker.core.digests import Digest
from stoker.core.errors import BadInput, InternalError, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JobState
from stoker.core.jsontext import loads
from stoker.core.text import format_duration, point_name
from stoker.host.background import BackgroundThread
from stoker.store.objects import ObjectStore

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


class QueueRecords:
    """What the queue's database says of results: read beside the writer, marked through it."""

    def __init__(self, queue: Queue, database: Database) -> None:
        self._queue = queue
        self._database = database

    def bundles(self) -> Iterator[BundleRow]:
        """Return every result that is not marked as pruned."""
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
        """Mark results, durably, and return which were: pinned ones are not. `by` is who asked for it.

        On return, whatever was asked of the queue before is durable too.
        """
        marked: set[int] = set()
        # Also with nothing to mark: what the writer was asked before is durable once it answers.
        for start in range(0, max(1, len(ids)), _AT_ONCE):
            done = self._queue.ask(PruneBundles(bundles=ids[start : start + _AT_ONCE], by=by))
            if not isinstance(done, QueueCommandResult):
                raise InternalError(f"a prune was answered by {done!r}")
            marked.update(map(int, done.changed))
        return frozenset(marked)

    def named(self) -> frozenset[str]:
        """Return the digests of all archives that a result or a job's checkpoint names now."""
        results = select(BUNDLES.c.archive_sha256).where(BUNDLES.c.pruned_s.is_(None))
        checkpoints = select(JOBS.c.checkpoint).where(JOBS.c.checkpoint != "", JOBS.c.state.in_(_CHECKPOINT_STATES))
        with snapshot(self._database) as connection:
            found = set(connection.execute(results).scalars())
            found.update(filter(None, map(_archive_of, connection.execute(checkpoints).scalars())))
        return frozenset(found)

    def is_live(self, job: str) -> bool:
        """Return whether a job may still add to its files."""
        with snapshot(self._database) as connection:
            state = connection.execute(select(JOBS.c.state).where(JOBS.c.id == job)).scalar()
        return state in _LIVE_STATES


def _archive_of(checkpoint: str) -> str:
    try:
        body: Any = loads(checkpoint)
        return str(body["archive_sha256"])
    except (ValueError, KeyError, TypeError):
        return ""


# Carry out a prune of what a fleet keeps: records are marked first, then bytes go that nothing names.
#
# While it runs, what may go counts as not here (`Bundles.removing`), so that no job is pointed at it; who pointed at it
# before is in the database by the time the marks are, and is found there. So a crash anywhere leaves bytes without a
# name, which the next prune sweeps, and never a name without bytes that is not marked.

ORPHAN_GRACE_S = 86400.0
"""How long an archive that nothing names is spared: its worker may be about to say that the job finished."""
UPLOAD_GRACE_S = 86400.0
"""How long an upload may rest before nobody is thought to go on with it; whoever does begins it again."""


@frozen
class CoordinatorPrunePlan:
    """What a prune would do."""

    results: RetentionDecision
    logs: tuple[AttemptLogs, ...]
    orphans: tuple[tuple[str, int], ...]
    """Digest and size of archives that nothing names: of attempts that were lost, of overtaken checkpoints."""
    uploads: tuple[str, ...]
    trees: TreeDecision = TreeDecision()
    tree_files: tuple[tuple[str, int], ...] = ()
    """Digest and size of what goes with those trees: files that no other tree needs."""

    @property
    def freed_bytes(self) -> int:
        """What it would free, uploads not counted."""
        logs = sum(one.size_bytes for one in self.logs)
        objects = sum(size for _, size in (*self.orphans, *self.tree_files))
        return self.results.freed_bytes + logs + objects


@frozen
class CoordinatorPruneResult:
    """What a prune did."""

    marked: tuple[int, ...] = ()
    archives: int = 0
    archive_bytes: int = 0
    logs: int = 0
    log_bytes: int = 0
    uploads: int = 0
    trees: tuple[str, ...] = ()
    tree_bytes: int = 0
    stuck: tuple[str, ...] = fresh(factory=tuple)
    """What could not be removed, and why."""

    @property
    def freed_bytes(self) -> int:
        return self.archive_bytes + self.log_bytes + self.tree_bytes


class CoordinatorPruner:
    """Looks, and acts if told to. In the coordinator's own process: only there is it known what is on its way in."""

    def __init__(
        self, keeping: CoordinatorStorage, records: QueueRecords, contents: CoordinatorTrees | None = None
    ) -> None:
        """Prune what is kept; `contents` are the trees that lie among it, if there are any."""
        self._keeping = keeping
        self._records = records
        self._contents = contents

    def look(self, policy: RetentionPolicy) -> CoordinatorPrunePlan:
        """Return what would go; nothing is touched. `BadInput` if the policy can't be."""
        if fault := policy.faults():
            raise BadInput(fault)
        keeping, now_s = self._keeping, self._keeping.clock.wall_s()
        trees, doomed = self._look_at_trees(policy.trees_unused_s, now_s)
        named = self._named(but=frozenset(removal.row.tree for removal in trees.removals))
        objects = [(one.digest, one.size_bytes, one.touched_s) for one in keeping.objects.list()]
        tree_files = tuple(
            (digest, size_bytes) for digest, size_bytes, _ in objects if digest in doomed and digest not in named
        )
        orphans = tuple(
            (digest, size_bytes)
            for digest, size_bytes, touched_s in objects
            if digest not in named and digest not in doomed and now_s - touched_s > ORPHAN_GRACE_S
        )
        return CoordinatorPrunePlan(
            results=decide_retention(self._records.bundles(), policy, now_s=now_s),
            logs=decide_logs(self._logs(), policy, now_s=now_s) if policy.logs_older_than_s is not None else (),
            orphans=orphans,
            uploads=keeping.objects.stale_uploads(grace_s=UPLOAD_GRACE_S),
            trees=trees,
            tree_files=tree_files,
        )

    def carry_out(self, outlook: CoordinatorPrunePlan, *, by: str = "") -> CoordinatorPruneResult:
        """Do it; `by` is who wanted it. What was pinned, or named again, meanwhile stays."""
        keeping = self._keeping
        stuck: list[str] = []
        marked, archives, archive_bytes = self._remove_archives(outlook, by, stuck)
        trees, tree_bytes = self._remove_trees(outlook, stuck)
        logs = log_bytes = 0
        for one in outlook.logs:
            if self._records.is_live(one.job):
                continue
            try:
                log_bytes += keeping.attempt_files.remove(one.job, one.attempt)
                logs += 1
            except StokerError as error:
                stuck.append(str(error))
        return CoordinatorPruneResult(
            marked=tuple(sorted(marked)),
            archives=archives,
            archive_bytes=archive_bytes,
            logs=logs,
            log_bytes=log_bytes,
            uploads=len(keeping.objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)),
            trees=tuple(sorted(trees)),
            tree_bytes=tree_bytes,
            stuck=tuple(stuck),
        )

    def _look_at_trees(self, unused_s: float, now_s: float) -> tuple[TreeDecision, frozenset[str]]:
        """Decide which trees go, and give all files that they need, whoever else needs them."""
        contents = self._contents
        if contents is None:
            return TreeDecision(), frozenset()
        records = contents.records
        decision = decide_trees(records.all(), records.wanted_by_jobs(), unused_s=unused_s, now_s=now_s)
        return decision, frozenset().union(*(contents.files_of(removal.row) for removal in decision.removals))

    def _named(self, *, but: frozenset[str] = frozenset()) -> frozenset[str]:
        """Return every object that a result, a checkpoint or a tree names now, or one that is just being named."""
        named = self._records.named()
        if self._contents is None:
            return named
        rows = [row for row in self._contents.records.all() if row.tree not in but]
        return named.union(self._contents.arriving(), *map(self._contents.files_of, rows))

    def _remove_trees(self, outlook: CoordinatorPrunePlan, stuck: list[str]) -> tuple[frozenset[str], int]:
        """Forget trees, then remove what nothing names any more. A crash between leaves bytes without a name."""
        rows = tuple(removal.row for removal in outlook.trees.removals)
        if not rows or self._contents is None:
            return frozenset(), 0
        freed_bytes = 0
        with self._keeping.bundles.removing(frozenset(digest for digest, _ in outlook.tree_files)):
            gone = self._contents.drop(rows)
            named = self._named()
            for digest, size_bytes in outlook.tree_files:
                try:
                    if digest not in named and self._keeping.objects.remove(Digest(digest)):
                        freed_bytes += size_bytes
                except StokerError as error:
                    stuck.append(str(error))
        return gone, freed_bytes

    def _remove_archives(
        self, outlook: CoordinatorPrunePlan, by: str, stuck: list[str]
    ) -> tuple[frozenset[int], int, int]:
        keeping = self._keeping
        rows = {removal.row.id: removal.row for removal in outlook.results.removals}
        sizes = dict(outlook.orphans) | {row.archive_sha256: row.size_bytes for row in rows.values()}
        if not sizes:
            return frozenset(), 0, 0
        orphans = dict(outlook.orphans)
        count = freed_bytes = 0
        gone: set[str] = set()
        with keeping.bundles.removing(frozenset(sizes)):
            marked = self._records.mark_pruned(tuple(rows), by=by)
            named = self._named()
            for digest, size_bytes in sizes.items():
                if digest in named:
                    continue
                try:
                    grace_s = ORPHAN_GRACE_S if digest in orphans else 0.0
                    if keeping.objects.remove(Digest(digest), grace_s=grace_s):
                        count += 1
                        freed_bytes += size_bytes
                        gone.add(digest)
                except StokerError as error:
                    stuck.append(str(error))
        keeping.models.drop(frozenset(gone))
        return marked, count, freed_bytes

    def _logs(self) -> Iterator[AttemptLogs]:
        files = self._keeping.attempt_files
        for job in files.jobs():
            is_live = self._records.is_live(job)
            for attempt in files.attempts(job):
                kept = files.files(job, attempt)
                yield AttemptLogs(
                    job=job,
                    attempt=attempt,
                    size_bytes=sum(file.size_bytes for file in kept),
                    changed_s=max((file.changed_s for file in kept), default=0.0),
                    is_live=is_live,
                )


# What a coordinator tidies up by itself: uploads that nobody went on with. In a thread of its own, now and then.
#
# Only what nothing can name: results, checkpoints and logs stay until somebody prunes.

EVERY_S = 3600.0


class Chores(BackgroundThread):
    """Tidies up while a with-block lasts: at once, and then every hour."""

    def __init__(self, objects: ObjectStore, *, every_s: float = EVERY_S) -> None:
        super().__init__("chores")
        self._objects = objects
        self._every_s = every_s

    def _run(self) -> None:
        while True:
            # A disk in trouble: the next time finds what is left.
            with self._one_try():
                self._objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)
            if self._over.wait(self._every_s):
                return
