"""Carry out a prune of what a fleet keeps: records are marked first, then bytes go that nothing names.

While it runs, what may go counts as not here (`Bundles.removing`), so that no job is pointed at it; who pointed at it
before is in the database by the time the marks are, and is found there. So a crash anywhere leaves bytes without a
name, which the next prune sweeps, and never a name without bytes that is not marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from stoker.coordinator.storage.retention import (
    AttemptLogs,
    BundleRow,
    RetentionDecision,
    RetentionPolicy,
    TreeDecision,
    decide_logs,
    decide_retention,
    decide_trees,
)
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.digests import Digest
from stoker.core.errors import BadInput, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.host.background import BackgroundThread
from stoker.store.objects import ObjectStore

ORPHAN_GRACE_S = 86400.0
"""How long an archive that nothing names is spared: its worker may be about to say that the job finished."""
UPLOAD_GRACE_S = 86400.0
"""How long an upload may rest before nobody is thought to go on with it; whoever does begins it anew."""


class BundleRecords(Protocol):
    """What the database says of results, as far as a prune needs it."""

    def bundles(self) -> Iterator[BundleRow]:
        """Return every result that is not marked as pruned."""

    def mark_pruned(self, ids: tuple[int, ...], *, by: str = "") -> frozenset[int]:
        """Mark results, durably, and say which were: pinned ones are not. `by` is who wanted it.

        On return, whatever was asked of the queue before is durable too.
        """

    def named(self) -> frozenset[str]:
        """Return the digests of all archives that a result or a job's checkpoint names now."""

    def is_live(self, job: str) -> bool:
        """Return whether a job may still add to its files."""


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
        self, keeping: CoordinatorStorage, records: BundleRecords, contents: CoordinatorTrees | None = None
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
