"""What a coordinator's database records of trees, in memory."""

from __future__ import annotations

from collections.abc import Callable

from stoker.coordinator.storage.tree_storage import QueueTrees, TreeRow
from stoker.core.clock import Clock


class MemoryTrees(QueueTrees):
    """Rows of trees, and which of them open jobs need."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows: dict[str, TreeRow] = {}
        self.needed: set[str] = set()
        self.archives: dict[str, str] = {}
        """Archives of earlier versions by their tree."""
        self.before_keep: Callable[[], None] = lambda: None

    def find(self, tree: str) -> TreeRow | None:
        return self.rows.get(tree)

    def archive_of(self, tree: str) -> str:
        return self.archives.get(tree, "")

    def all(self) -> tuple[TreeRow, ...]:
        return tuple(self.rows.values())

    def keep(self, tree: str, *, listing: str, files: int, size_bytes: int) -> None:
        self.before_keep()
        now_s = self.clock.wall_s()
        self.rows[tree] = TreeRow(
            tree=tree, listing=listing, files=files, size_bytes=size_bytes, at_s=now_s, wanted_s=now_s, is_pinned=False
        )

    def want(self, tree: str) -> bool:
        return tree in self.rows

    def drop(self, trees: tuple[TreeRow, ...]) -> frozenset[str]:
        gone = {row.tree for row in trees if self.rows[row.tree].wanted_s <= row.wanted_s}
        for tree in gone:
            del self.rows[tree]
        return frozenset(gone)

    def wanted_by_jobs(self) -> frozenset[str]:
        return frozenset(self.needed)
