"""The route that prunes what a fleet keeps: shows it, and does it only where that is asked for."""

from __future__ import annotations

from fastapi import APIRouter, Response

from stoker.coordinator.keeping.contents import Contents
from stoker.coordinator.keeping.pruning import PruneDone, PruneOutlook, Pruning
from stoker.coordinator.keeping.records import QueueRecords
from stoker.coordinator.keeping.retention import RetentionPolicy
from stoker.coordinator.keeping.tree_retention import UNUSED_S
from stoker.coordinator.service.answers import answer
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.who import Who, recorded
from stoker.wire.retaining import MOST_LISTED, PruneAsk, PrunedResult, PruneView


class RetentionRoutes:
    """Answers it."""

    def __init__(self, office: Office, contents: Contents) -> None:
        self._office = office
        self._pruning = Pruning(office.keeping, QueueRecords(office.queue, office.reader.database), contents)
        self.router = APIRouter(tags=["fleet"])
        self.router.add_api_route("/v1/prune", self.prune, methods=["POST"], response_model=PruneView)

    async def prune(self, asked: PruneAsk, who: Who) -> Response:
        """Say which results and logs would go, and let them go if that is wanted."""
        return answer(await self._office.keep(self._prune, asked, recorded(who, asked.by)))

    def _prune(self, asked: PruneAsk, by: str) -> PruneView:
        policy = RetentionPolicy(
            keep_last=asked.keep_last,
            older_than_s=asked.older_than_s,
            max_bytes=asked.max_bytes,
            logs_older_than_s=asked.logs_older_than_s,
            trees_unused_s=UNUSED_S if asked.trees_unused_s is None else asked.trees_unused_s,
        )
        outlook = self._pruning.look(policy)
        return view_of(outlook, self._pruning.carry_out(outlook, by=by) if asked.is_wanted else None)


def view_of(outlook: PruneOutlook, done: PruneDone | None) -> PruneView:
    """Give what would go or, if it was carried out, what went."""
    removals = outlook.results.removals
    if done is not None:
        removals = tuple(removal for removal in removals if removal.row.id in done.marked)
    listed = tuple(
        PrunedResult(
            job=removal.row.job,
            name=removal.row.name,
            attempt=removal.row.attempt,
            archive_sha256=removal.row.archive_sha256,
            size_bytes=removal.row.size_bytes,
            freed_bytes=removal.freed_bytes,
            at_s=removal.row.at_s,
            why=removal.why,
        )
        for removal in removals[:MOST_LISTED]
    )
    return PruneView(
        is_done=done is not None,
        results=listed,
        result_count=len(removals),
        before_bytes=outlook.results.before_bytes,
        after_bytes=outlook.results.after_bytes,
        kept=outlook.results.kept_by_reason,
        logs=len(outlook.logs) if done is None else done.logs,
        log_bytes=sum(one.size_bytes for one in outlook.logs) if done is None else done.log_bytes,
        orphans=len(outlook.orphans),
        orphan_bytes=sum(size_bytes for _, size_bytes in outlook.orphans),
        uploads=len(outlook.uploads) if done is None else done.uploads,
        trees=len(outlook.trees.removals) if done is None else len(done.trees),
        tree_bytes=sum(size_bytes for _, size_bytes in outlook.tree_files) if done is None else done.tree_bytes,
        freed_bytes=outlook.freed_bytes if done is None else done.freed_bytes,
        stuck=() if done is None else done.stuck,
    )
