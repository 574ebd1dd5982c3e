"""Brings results that jobs finished with into the plain view of models, a moment after: `models/` and its index.

In a thread of its own that looks when the queue is calm: the view is for people and scripts, and nobody who finishes a
job waits for it. Whatever it missed while it was not running it finds in the database.
"""

from __future__ import annotations

import threading

from sqlalchemy import func, select

from stoker.coordinator.alongside import Alongside
from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.database.tables import BUNDLES, JOBS
from stoker.coordinator.keeping.models import Ingest, ModelView
from stoker.model.names import point_name

CALM_S = 1.0
"""Without a change of the queue for so long it looks…"""
MOST_S = 30.0
"""…and in any case after so long."""
_PAGE = 500


class Ingesting(Alongside):
    """Keeps a view up to date while a with-block lasts. Tell it of changes: `queue.on_change(ingesting.changed)`."""

    def __init__(self, models: ModelView, database: Database) -> None:
        super().__init__("models")
        self._models = models
        self._database = database
        self._last_id: int | None = None
        self._news = threading.Event()

    def changed(self, _event_id: int, _is_reread: bool) -> None:  # noqa: FBT001 - as the queue tells it
        """Take note that something happened."""
        self._news.set()

    def catch_up(self) -> int:
        """Show every result that is not shown yet, and say how many that were."""
        count = 0
        last_id = self._shown_until() if self._last_id is None else self._last_id
        while rows := self._page(last_id):
            count += self._models.ingest(*rows.values())
            last_id = self._last_id = max(rows)
        return count

    def _shown_until(self) -> int:
        """Say behind which row to begin, by time: a database that was restored counts its rows anew."""
        asked = select(func.max(BUNDLES.c.id)).where(BUNDLES.c.at_s < self._models.newest_s())
        with snapshot(self._database) as connection:
            return connection.execute(asked).scalar() or 0

    def _page(self, last_id: int) -> dict[int, Ingest]:
        asked = (
            select(BUNDLES, JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number, JOBS.c.recipe, JOBS.c.mode)
            .join_from(BUNDLES, JOBS, JOBS.c.seq == BUNDLES.c.seq)
            .where(BUNDLES.c.id > last_id, BUNDLES.c.pruned_s.is_(None))
            .order_by(BUNDLES.c.id)
            .limit(_PAGE)
        )
        with snapshot(self._database) as connection:
            rows = connection.execute(asked).all()
        return {
            row.id: Ingest(
                job=row.job,
                name=point_name(row.name, row.number),
                attempt=row.attempt,
                model=row.recipe,
                mode=row.mode,
                archive_sha256=row.archive_sha256,
                tree=row.tree,
                size_bytes=row.size_bytes,
                at_s=row.at_s,
            )
            for row in rows
        }

    def _let_go(self) -> None:
        self._news.set()

    def _run(self) -> None:
        self._news.set()
        is_last = False
        while not is_last:
            self._news.wait()
            self._wait_for_calm()
            is_last = self._over.is_set()
            # A full disk, a database in trouble: the view is late, and the next change brings it up to date.
            with self._one_try():
                self.catch_up()

    def _wait_for_calm(self) -> None:
        """Wait until nothing has changed between two looks, or for the longest time."""
        for _ in range(int(MOST_S / CALM_S)):
            self._news.clear()
            if self._over.wait(CALM_S) or not self._news.is_set():
                return
