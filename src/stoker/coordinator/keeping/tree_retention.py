"""Which trees of code and data a prune would let go of: decided purely, with a reason for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.model.frozen import fresh, frozen
from stoker.model.units import format_duration

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
