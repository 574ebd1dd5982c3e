"""What the queue's database says of trees: read beside the writer, changed through it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import select, text

from stoker.coordinator.database.opening import Database
from stoker.coordinator.database.snapshots import snapshot
from stoker.coordinator.database.tables import CONTENTS, JOBS
from stoker.coordinator.keeping.records import Asks
from stoker.coordinator.keeping.tree_retention import TreeRow
from stoker.coordinator.queue.commands import Command, Done, DropTrees, KeepTree, WantTree
from stoker.model.errors import Bug

_AT_ONCE = 500
# As `JobOrder` is stored: its code and its inputs.
_NAMED = re.compile(r'"(?:code_tree|tree)":\s*"([0-9a-f]{64})"')
_IS_OPEN = text("jobs.state IN ('pending', 'claimed', 'running')")


class QueueTrees:
    """`contents.TreeRecords` of one coordinator."""

    def __init__(self, queue: Asks, database: Database) -> None:
        self._queue = queue
        self._database = database

    def find(self, tree: str) -> TreeRow | None:
        with snapshot(self._database) as connection:
            row = connection.execute(select(CONTENTS).where(CONTENTS.c.tree == tree)).mappings().first()
        return None if row is None else TreeRow(**row)

    def all(self) -> tuple[TreeRow, ...]:
        with snapshot(self._database) as connection:
            rows = connection.execute(select(CONTENTS).order_by(CONTENTS.c.tree)).mappings().all()
        return tuple(TreeRow(**row) for row in rows)

    def keep(self, tree: str, *, listing: str, files: int, size_bytes: int) -> None:
        self._ask(KeepTree(tree=tree, listing=listing, files=files, size_bytes=size_bytes))

    def want(self, tree: str) -> bool:
        return bool(self._ask(WantTree(tree=tree)).changed)

    def drop(self, trees: tuple[TreeRow, ...]) -> frozenset[str]:
        gone: set[str] = set()
        # Also with nothing to drop: what the writer was asked before is durable once it answers.
        for start in range(0, max(1, len(trees)), _AT_ONCE):
            some = tuple((row.tree, row.wanted_s) for row in trees[start : start + _AT_ONCE])
            gone.update(self._ask(DropTrees(trees=some)).changed)
        return frozenset(gone)

    def wanted_by_jobs(self) -> frozenset[str]:
        return frozenset(self._named())

    def _named(self) -> Iterator[str]:
        asked = select(JOBS.c.spec).where(_IS_OPEN)
        with snapshot(self._database) as connection:
            for spec in connection.execute(asked.execution_options(yield_per=1000)).scalars():
                yield from _NAMED.findall(spec)

    def _ask(self, command: Command) -> Done:
        done = self._queue.ask(command)
        if not isinstance(done, Done):
            raise Bug(f"a command about trees was answered by {done!r}")
        return done
