"""Which results and logs of a fleet a prune removes: decided purely, with a reason for each.

The newest results of a job are kept, as many as the policy says. Of the others, those that are too old are removed,
then the oldest until the rest fits. Pinned results stay. Results with the same tree are counted once.
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
from stoker.host.background import RecurringTask
from stoker.store.objects.seam import Objects

NEWEST = "among the newest of its job"


@frozen
class RetentionPolicy:
    """How much of what is kept. A limit that is None does not limit."""

    keep_last: int = 1
    """How many of the newest results of each job stay, unless `max_bytes` is exceeded."""
    older_than_s: float | None = None
    max_bytes: int | None = None
    """Of all results. To get below it, the only result of a job is removed, too, the oldest first."""
    logs_older_than_s: float | None = None
    """Mirrored files of attempts that ended longer ago."""
    trees_unused_s: float = UNUSED_S
    """Trees of code and data that no open job needs, and that no submission has named for so long."""

    def faults(self) -> str:
        """Return what is invalid; empty if nothing is."""
        if self.keep_last < 0:
            return f"keep_last must be 0 or more, not {self.keep_last}"
        limits = (self.older_than_s, self.max_bytes, self.logs_older_than_s, self.trees_unused_s)
        return "a limit can't be negative" if any(limit is not None and limit < 0 for limit in limits) else ""


@frozen
class BundleRow:
    """One result as the database names it."""

    id: int
    job: str
    name: str
    attempt: int
    tree: str
    archive_sha256: str
    """Of the archive as which it was sent; empty: it was sent as a tree."""
    size_bytes: int
    at_s: float
    is_pinned: bool

    @property
    def content(self) -> str:
        """The digest that names its bytes."""
        return self.archive_sha256 or self.tree


@frozen
class BundleRemoval:
    """One result to remove, how many bytes that frees, and why."""

    row: BundleRow
    freed_bytes: int
    why: str


@frozen
class RetentionDecision:
    """Which results to remove, in order, and why others stay."""

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
    """Decide which results to remove."""
    ordered = sorted(rows, key=lambda row: (row.at_s, row.id))
    newest = _newest(ordered, policy.keep_last)
    named_by = Counter(row.content for row in ordered)
    total = before = sum({row.content: row.size_bytes for row in ordered}.values())
    removals: dict[int, BundleRemoval] = {}
    kept: Counter[str] = Counter()

    def remove(row: BundleRow, why: str) -> None:
        nonlocal total
        named_by[row.content] -= 1
        freed = 0 if named_by[row.content] else row.size_bytes
        total -= freed
        removals[row.id] = BundleRemoval(row=row, freed_bytes=freed, why=why)

    for row in ordered:
        age_s = now_s - row.at_s
        if policy.older_than_s is None or age_s <= policy.older_than_s:
            continue
        if reason := _why_kept(row, newest):
            kept[reason] += 1
        else:
            remove(row, f"{format_duration(age_s)} old")
    if policy.max_bytes is not None:
        # First what is not a job's newest, whatever its age; a job's only result comes last.
        for row in sorted(ordered, key=lambda row: row.id in newest):
            if total <= policy.max_bytes:
                break
            if row.is_pinned:
                kept[PINNED] += row.id not in removals
            elif row.id not in removals:
                remove(row, "over the size limit, oldest")
    return RetentionDecision(
        removals=tuple(removals.values()), before_bytes=before, after_bytes=total, kept_by_reason=dict(kept)
    )


def decide_logs(logs: Iterable[AttemptLogs], policy: RetentionPolicy, *, now_s: float) -> tuple[AttemptLogs, ...]:
    """Decide of which attempts to remove the mirrored files."""
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


_AT_ONCE = 500
# A checkpoint is of use while the job may be tried again.
_CHECKPOINT_STATES = tuple(str(state) for state in JobState if state not in (JobState.COMPLETED, JobState.CANCELLED))
_LIVE_STATES = frozenset({str(JobState.PENDING), str(JobState.CLAIMED), str(JobState.RUNNING)})


class QueueRecords:
    """What the queue's database records of results: read beside the writer, marked through it."""

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
                tree=row.tree,
                archive_sha256=row.archive_sha256,
                size_bytes=row.size_bytes,
                at_s=row.at_s,
                is_pinned=bool(row.is_pinned),
            )

    def mark_pruned(self, ids: tuple[int, ...], *, by: str = "") -> frozenset[int]:
        """Mark results, durably, and return which were marked: pinned ones are not. `by` is the person who prunes.

        On return, every earlier command to the queue is durable too.
        """
        marked: set[int] = set()
        # Also with nothing to mark: earlier commands are durable once the writer answers.
        for start in range(0, max(1, len(ids)), _AT_ONCE):
            done = self._queue.ask(PruneBundles(bundles=ids[start : start + _AT_ONCE], by=by))
            if not isinstance(done, QueueCommandResult):
                raise InternalError(f"a prune was answered by {done!r}")
            marked.update(map(int, done.changed))
        return frozenset(marked)

    def named(self, *, but: frozenset[int] = frozenset()) -> frozenset[str]:
        """Return the digests of all trees and archives that a result or a checkpoint names now.

        Results with an id in `but` do not count.
        """
        results = select(BUNDLES.c.id, BUNDLES.c.tree, BUNDLES.c.archive_sha256).where(BUNDLES.c.pruned_s.is_(None))
        checkpoints = select(JOBS.c.checkpoint).where(JOBS.c.checkpoint != "", JOBS.c.state.in_(_CHECKPOINT_STATES))
        found: set[str] = set()
        with snapshot(self._database) as connection:
            for id_, tree, archive_sha256 in connection.execute(results):
                if id_ not in but:
                    found.update((tree, archive_sha256))
            for checkpoint in connection.execute(checkpoints).scalars():
                found.update(_digests_of(checkpoint))
        return frozenset(found - {""})

    def is_live(self, job: str) -> bool:
        """Return True if a job may still add to its files."""
        with snapshot(self._database) as connection:
            state = connection.execute(select(JOBS.c.state).where(JOBS.c.id == job)).scalar()
        return state in _LIVE_STATES


def _digests_of(checkpoint: str) -> tuple[str, ...]:
    try:
        body: Any = loads(checkpoint)
        return str(body["tree"]), str(body["archive_sha256"])
    except (ValueError, KeyError, TypeError):
        return ()


ORPHAN_GRACE_S = 86400.0
"""How long bytes that nothing names are kept: their worker may be about to report that the job finished."""
UPLOAD_GRACE_S = 86400.0
"""How long an upload without new bytes is kept."""


@frozen
class CoordinatorPrunePlan:
    """What a prune would do. Objects are listed as digest and size in bytes."""

    results: RetentionDecision
    logs: tuple[AttemptLogs, ...]
    orphans: tuple[tuple[str, int], ...]
    """Objects that nothing names: of attempts that were lost, and archives of overtaken checkpoints."""
    uploads: tuple[str, ...]
    trees: TreeDecision
    tree_files: tuple[tuple[str, int], ...]
    """Files of unused trees that no other tree needs."""
    result_files: tuple[tuple[str, int], ...]
    """Archives of removed results and files of their trees that nothing else needs."""

    @property
    def freed_bytes(self) -> int:
        """What it would free, uploads not counted."""
        logs = sum(one.size_bytes for one in self.logs)
        return logs + sum(size for _, size in (*self.orphans, *self.tree_files, *self.result_files))


@frozen
class CoordinatorPruneResult:
    """What a prune did."""

    marked: tuple[int, ...] = ()
    objects: int = 0
    """Of results and orphans."""
    object_bytes: int = 0
    logs: int = 0
    log_bytes: int = 0
    uploads: int = 0
    trees: tuple[str, ...] = ()
    tree_bytes: int = 0
    stuck: tuple[str, ...] = fresh(factory=tuple)
    """What could not be removed, with the error."""

    @property
    def freed_bytes(self) -> int:
        return self.object_bytes + self.log_bytes + self.tree_bytes


class CoordinatorPruner:
    """Plans and carries out prunes. In the coordinator's own process: only there is known what is being uploaded.

    While it runs, what is to be removed counts as absent (`Bundles.removing`), so no job can name it. A job that named
    it before is in the database once the marks are, and is found there. So a crash anywhere leaves bytes without a
    name, which the next prune removes, and never a name without bytes that is not marked.
    """

    def __init__(self, keeping: CoordinatorStorage, records: QueueRecords, contents: CoordinatorTrees) -> None:
        self._keeping = keeping
        self._records = records
        self._contents = contents

    def look(self, policy: RetentionPolicy) -> CoordinatorPrunePlan:
        """Return what would be removed; change nothing. Raises `BadInput` if the policy is invalid."""
        if fault := policy.faults():
            raise BadInput(fault)
        keeping, contents, now_s = self._keeping, self._contents, self._keeping.clock.wall_s()
        results = decide_retention(self._records.bundles(), policy, now_s=now_s)
        removed = [removal.row for removal in results.removals]
        named = self._records.named(but=frozenset(row.id for row in removed))
        rows = contents.records.all()
        trees = decide_trees(
            rows,
            named | contents.records.wanted_by_jobs(),
            released={row.tree: row.at_s for row in sorted(removed, key=lambda row: row.at_s)},
            unused_s=policy.trees_unused_s,
            now_s=now_s,
        )
        released = {row.archive_sha256 for row in removed}.union(*map(contents.files_of, trees.released))
        unused = frozenset[str]().union(*(contents.files_of(removal.row) for removal in trees.removals))
        dropped = {row.tree for row in trees.rows}
        named = named.union(contents.arriving(), *(contents.files_of(row) for row in rows if row.tree not in dropped))
        doomed: dict[str, list[tuple[str, int]]] = {"results": [], "trees": [], "orphans": []}
        for one in keeping.objects.list():
            if one.digest in named:
                continue
            if one.digest in released:
                doomed["results"].append((one.digest, one.size_bytes))
            elif one.digest in unused:
                doomed["trees"].append((one.digest, one.size_bytes))
            elif now_s - one.touched_s > ORPHAN_GRACE_S:
                doomed["orphans"].append((one.digest, one.size_bytes))
        return CoordinatorPrunePlan(
            results=results,
            logs=decide_logs(self._logs(), policy, now_s=now_s) if policy.logs_older_than_s is not None else (),
            orphans=tuple(doomed["orphans"]),
            uploads=keeping.objects.stale_uploads(grace_s=UPLOAD_GRACE_S),
            trees=trees,
            tree_files=tuple(doomed["trees"]),
            result_files=tuple(doomed["results"]),
        )

    def carry_out(self, outlook: CoordinatorPrunePlan, *, by: str = "") -> CoordinatorPruneResult:
        """Remove it; `by` is the person who prunes. What was pinned, or named again, meanwhile stays."""
        keeping = self._keeping
        stuck: list[str] = []
        marked, dropped, removed = self._remove(outlook, by, stuck)
        logs = log_bytes = 0
        for one in outlook.logs:
            if self._records.is_live(one.job):
                continue
            try:
                log_bytes += keeping.attempt_files.remove(one.job, one.attempt)
                logs += 1
            except StokerError as error:
                stuck.append(str(error))
        unused = {removal.row.tree for removal in outlook.trees.removals}
        tree_files = dict(outlook.tree_files)
        objects = {digest: size_bytes for digest, size_bytes in removed.items() if digest not in tree_files}
        return CoordinatorPruneResult(
            marked=tuple(sorted(marked)),
            objects=len(objects),
            object_bytes=sum(objects.values()),
            logs=logs,
            log_bytes=log_bytes,
            uploads=len(keeping.objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)),
            trees=tuple(sorted(dropped & unused)),
            tree_bytes=sum(size_bytes for digest, size_bytes in removed.items() if digest in tree_files),
            stuck=tuple(stuck),
        )

    def _remove(
        self, outlook: CoordinatorPrunePlan, by: str, stuck: list[str]
    ) -> tuple[frozenset[int], frozenset[str], dict[str, int]]:
        """Mark results, forget trees, then remove objects that nothing names any more.

        Returns the ids of the marked results, the forgotten trees, and the size of each removed object by its digest.
        """
        keeping, contents = self._keeping, self._contents
        ids = tuple(removal.row.id for removal in outlook.results.removals)
        orphans = dict(outlook.orphans)
        doomed = {**orphans, **dict(outlook.tree_files), **dict(outlook.result_files)}
        removed: dict[str, int] = {}
        if not (ids or doomed or outlook.trees.rows):
            return frozenset(), frozenset(), removed
        # With its listing a tree counts as absent, so no result or checkpoint can name it meanwhile.
        going = {digest for row in outlook.trees.rows for digest in (row.tree, row.listing)}
        with keeping.bundles.removing(going | doomed.keys()):
            marked = self._records.mark_pruned(ids, by=by)
            needed = self._records.named() | contents.records.wanted_by_jobs()
            dropped = contents.drop(tuple(row for row in outlook.trees.rows if row.tree not in needed))
            named = self._records.named().union(contents.arriving(), *map(contents.files_of, contents.records.all()))
            for digest, size_bytes in doomed.items():
                if digest in named:
                    continue
                try:
                    grace_s = ORPHAN_GRACE_S if digest in orphans else 0.0
                    if keeping.objects.remove(Digest(digest), grace_s=grace_s):
                        removed[digest] = size_bytes
                except StokerError as error:
                    stuck.append(str(error))
        keeping.models.drop(frozenset(removed) | dropped)
        return marked, dropped, removed

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


EVERY_S = 3600.0


class Chores(RecurringTask):
    """Removes idle uploads during a with-block: at once, then every hour. All else stays until a prune."""

    def __init__(self, objects: Objects, *, every_s: float = EVERY_S) -> None:
        super().__init__("chores", retry_s=every_s)
        self._objects = objects
        self._every_s = every_s

    def act(self) -> float:
        """Remove idle uploads; if the disk fails, the next run removes the rest."""
        self._objects.sweep_uploads(grace_s=UPLOAD_GRACE_S)
        return self._every_s
