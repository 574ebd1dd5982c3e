"""What the queue's database says of results, for a prune: read beside the writer, marked through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from sqlalchemy import select

from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.database.tables import BUNDLES, JOBS
from stoker.coordinator.keeping.retention import BundleRow
from stoker.coordinator.queue.commands import Answer, Command, Done, PruneBundles
from stoker.model.errors import Bug
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.names import point_name

_AT_ONCE = 500
# A checkpoint is of use while the job may be tried again.
_CHECKPOINT_STATES = tuple(str(state) for state in JobState if state not in (JobState.COMPLETED, JobState.CANCELLED))
_LIVE_STATES = frozenset({str(JobState.PENDING), str(JobState.CLAIMED), str(JobState.RUNNING)})


class Asks(Protocol):
    """As much of a queue as a prune needs."""

    def ask(self, command: Command) -> Answer:
        """Give the answer once it is durable."""


class QueueRecords:
    """`pruning.BundleRecords` of one coordinator."""

    def __init__(self, queue: Asks, database: Database) -> None:
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
            if not isinstance(done, Done):
                raise Bug(f"a prune was answered by {done!r}")
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
