"""Results as plain files, for people and scripts: a folder per model, and an append-only index.

    models/MODEL_MODE/HASH/bundle   a link to an archive, or a folder of links to the files of a tree
    models/index.jsonl              one line per result

HASH is the archive's SHA-256 if the result was sent as an archive, else the tree's digest. This is a view of the
database. To ingest a result twice changes nothing; equal bytes of two jobs are one folder and two lines. A tree with a
listing of more than 1 MiB is only in the index.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from sqlalchemy import func, select

from stoker.coordinator.database.database import Database, snapshot
from stoker.coordinator.database.tables import BUNDLES, CONTENTS, JOBS
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import point_name
from stoker.host.background import RecurringTask
from stoker.host.durable import open_regular, remove_tree, translated
from stoker.host.folders import name_fault
from stoker.store.archives.archive_members import read_listing
from stoker.store.put import append_line

_LONGEST_NAME = 120
# More than the lines of one time, or of one commit, have together.
_TAIL_BYTES = 1 << 20
_LARGEST_LISTING_BYTES = 1 << 20


@frozen
class IngestRecord:
    """One result to show."""

    job: str
    """The job's id."""
    name: str
    attempt: int
    model: str
    """Its recipe, or what system A calls a model."""
    mode: str
    archive_sha256: str
    """Empty if the result was sent as a tree."""
    tree: str
    listing: str
    """Of the tree; empty if the coordinator has only an archive."""
    size_bytes: int
    at_s: float

    @property
    def content(self) -> str:
        """The digest that names its bytes."""
        return self.archive_sha256 or self.tree

    def to_json(self) -> dict[str, Any]:
        return {
            "v": 1,
            "at_s": self.at_s,
            "job": self.job,
            "name": self.name,
            "attempt": self.attempt,
            "model": self.model,
            "mode": self.mode,
            "sha256": self.archive_sha256,
            "tree": self.tree,
            "size_bytes": self.size_bytes,
        }


class ModelView:
    """The view below one folder; `place_of` returns the path of an object.

    Without it, because objects are not on this machine, there are no links, only the index.
    """

    def __init__(self, folder: str, place_of: Callable[[Digest], str] | None) -> None:
        self.folder = folder
        self.index = os.path.join(folder, "index.jsonl")
        self._place_of = place_of
        self._turn = threading.Lock()
        # Results come in the order of their times: those of the newest time are all that has to be remembered.
        self._newest_s: float | None = None
        self._of_newest: set[tuple[str, int, str]] = set()

    def ingest(self, *some: IngestRecord) -> int:
        """Show results in the order of their times: links, then lines. Return how many are new."""
        with self._turn:
            newest_s = self._read_newest()
            of_newest = set(self._of_newest)
            fresh = []
            for one in some:
                key = (one.job, one.attempt, one.content)
                if one.at_s < newest_s or key in of_newest:
                    continue
                if one.at_s > newest_s:
                    newest_s = one.at_s
                    of_newest.clear()
                of_newest.add(key)
                self._link(one)
                fresh.append(dumps(one.to_json()).encode() + b"\n")
            if fresh:
                with translated(self.index):
                    os.makedirs(self.folder, mode=0o700, exist_ok=True)
                append_line(self.index, b"".join(fresh), lock=os.path.join(self.folder, ".lock"))
                self._newest_s, self._of_newest = newest_s, of_newest
        return len(fresh)

    def newest_s(self) -> float:
        """Return the time of the newest result that is shown; 0 if there is none."""
        with self._turn:
            return self._read_newest()

    def rows(self, *, last_bytes: int | None = None) -> Iterator[dict[str, Any]]:
        """Return the lines of the index, or those of its last bytes, the oldest first; a torn line is skipped."""
        try:
            file = open_regular(self.index)
        except OSError:
            return
        with file:
            if last_bytes is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - last_bytes))
            for line in file:
                with suppress(ValueError):
                    row = loads(line)
                    if isinstance(row, dict) and {"job", "attempt", "sha256", "tree", "at_s"} <= row.keys():
                        yield row

    def link_of(self, one: IngestRecord) -> str:
        """Return the path of a result's link or folder."""
        return os.path.join(self.folder, _folder_name(one.model, one.mode), one.content, "bundle")

    def drop(self, contents: frozenset[str]) -> None:
        """Remove the folders of archives and trees that are removed; the lines stay."""
        for folder in _folders(self.folder):
            for name in contents.intersection(_folders(os.path.join(self.folder, folder))):
                remove_tree(os.path.join(self.folder, folder, name))
            with suppress(OSError):
                os.rmdir(os.path.join(self.folder, folder))

    def _read_newest(self) -> float:
        if self._newest_s is None:
            rows = list(self.rows(last_bytes=_TAIL_BYTES))
            self._newest_s = max((float(row["at_s"]) for row in rows), default=0.0)
            self._of_newest = {
                (row["job"], row["attempt"], row["sha256"] or row["tree"])
                for row in rows
                if row["at_s"] == self._newest_s
            }
        return self._newest_s

    def _link(self, one: IngestRecord) -> None:
        link = self.link_of(one)
        if self._place_of is None or os.path.lexists(link):
            return
        with translated(link):
            os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
            if one.archive_sha256:
                _link_to(self._place_of(Digest(one.archive_sha256)), link)
            elif one.listing:
                self._link_files(one, link, self._place_of)

    def _link_files(self, one: IngestRecord, folder: str, place_of: Callable[[Digest], str]) -> None:
        """Make a folder of links to the files of a tree. One that was pruned meanwhile is not shown."""
        with suppress(StokerError, FileNotFoundError):
            with open_regular(place_of(Digest(one.listing))) as file:
                data = file.read(_LARGEST_LISTING_BYTES + 1)
            if len(data) > _LARGEST_LISTING_BYTES:
                return
            tree = read_listing(data, one.tree)
            part = f"{folder}.part"
            remove_tree(part)
            os.mkdir(part)
            for entry in tree.entries:
                link = os.path.join(part, entry.path)
                os.makedirs(os.path.dirname(link), exist_ok=True)
                if entry.link_to is not None:
                    os.symlink(entry.link_to, link)
                else:
                    _link_to(place_of(entry.sha256), link)
            os.rename(part, folder)


def _link_to(place: str, link: str) -> None:
    # Relative, so that the whole folder may be moved.
    os.symlink(os.path.relpath(place, os.path.dirname(link)), link)


def _folder_name(model: str, mode: str) -> str:
    """Return `tabular_gbt_realistic`: one name, whatever stands in it."""
    name = "_".join(filter(None, (model, mode)))[:_LONGEST_NAME]
    plain = "".join(char if char.isalnum() or char in "-_." else "_" for char in name).strip(".")
    return plain if plain and not name_fault(plain) else "other"


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


CALM_S = 1.0
"""It updates after so long without a change of the queue…"""
MOST_S = 30.0
"""…and after so long in any case."""
_PAGE = 500


class ModelViewUpdater(RecurringTask):
    """Keeps a view up to date while a with-block lasts. Register it: `queue.on_change(updater.changed)`.

    Updates the view in a thread of its own when the queue is idle, so no job waits for it. What it missed while it did
    not run, it finds in the database.
    """

    def __init__(self, models: ModelView, database: Database) -> None:
        super().__init__("models", retry_s=threading.TIMEOUT_MAX)
        self._models = models
        self._database = database
        self._last_id: int | None = None

    def changed(self, _event_id: int, _is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        """Note that the queue changed."""
        self.hurry()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._try()

    def catch_up(self) -> int:
        """Show every result that is not shown yet; return how many."""
        count = 0
        last_id = self._shown_until() if self._last_id is None else self._last_id
        while rows := self._page(last_id):
            count += self._models.ingest(*rows.values())
            last_id = self._last_id = max(rows)
        return count

    def _shown_until(self) -> int:
        """Return after which row to begin, by time: a restored database numbers its rows again."""
        newest = select(func.max(BUNDLES.c.id)).where(BUNDLES.c.at_s < self._models.newest_s())
        with snapshot(self._database) as connection:
            return connection.execute(newest).scalar() or 0

    def _page(self, last_id: int) -> dict[int, IngestRecord]:
        page = (
            select(BUNDLES, CONTENTS.c.listing)
            .add_columns(JOBS.c.id.label("job"), JOBS.c.name, JOBS.c.number, JOBS.c.recipe, JOBS.c.mode)
            .join_from(BUNDLES, JOBS, JOBS.c.seq == BUNDLES.c.seq)
            .outerjoin(CONTENTS, CONTENTS.c.tree == BUNDLES.c.tree)
            .where(BUNDLES.c.id > last_id, BUNDLES.c.pruned_s.is_(None))
            .order_by(BUNDLES.c.id)
            .limit(_PAGE)
        )
        with snapshot(self._database) as connection:
            rows = connection.execute(page).all()
        return {
            row.id: IngestRecord(
                job=row.job,
                name=point_name(row.name, row.number),
                attempt=row.attempt,
                model=row.recipe,
                mode=row.mode,
                archive_sha256=row.archive_sha256,
                tree=row.tree,
                listing=row.listing or "",
                size_bytes=row.size_bytes,
                at_s=row.at_s,
            )
            for row in rows
        }

    def act(self) -> float:
        """Catch up once the queue has not changed for `CALM_S`, after `MOST_S` at the latest.

        After a full disk or a database error the next change brings the view up to date.
        """
        for _ in range(int(MOST_S / CALM_S)):
            self._is_due.clear()
            if self._is_closed.wait(CALM_S) or not self._is_due.is_set():
                break
        self.catch_up()
        return threading.TIMEOUT_MAX
