"""What a prune would take away: decided purely, with a reason for each, before anything is touched.

Least recently used first. Pinned and protected records stay whatever the limit. A blob goes when no remaining record
names it, so the bytes freed are counted blob by blob.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.model.digests import Digest
from stoker.model.frozen import frozen


@frozen
class Candidate:
    """One record as pruning sees it."""

    key: Digest
    last_used_s: float
    blobs: tuple[tuple[Digest, int], ...]
    """Digest and size of each blob it names."""
    inline_bytes: int = 0
    label: str = ""
    is_kept: str = ""
    """Why it may not go (a pin, a running job), or empty."""


@frozen
class Removal:
    """One record that goes, what that frees, and why."""

    key: Digest
    label: str
    last_used_s: float
    """As known when it was decided: one that is used after that stays."""
    freed_bytes: int
    why: str


@frozen
class PruneDecision:
    """What goes, in order, and what stays although it was its turn."""

    removals: tuple[Removal, ...]
    before_bytes: int
    after_bytes: int
    kept_by_reason: dict[str, int]

    @property
    def freed_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


def decide_prune(
    candidates: Iterable[Candidate], *, now_s: float, max_bytes: int | None, older_than_s: float | None
) -> PruneDecision:
    """Decide which records become tombstones: those unused for too long, then the least recently used until it fits."""
    ordered = sorted(candidates, key=lambda candidate: (candidate.last_used_s, candidate.key))
    named_by: Counter[Digest] = Counter()
    sizes: dict[Digest, int] = {}
    for candidate in ordered:
        for digest, size_bytes in set(candidate.blobs):
            named_by[digest] += 1
            sizes[digest] = size_bytes
    held = {blob for candidate in ordered if candidate.is_kept for blob in candidate.blobs}
    total = sum(sizes.values()) + sum(candidate.inline_bytes for candidate in ordered)
    before = total
    removals: list[Removal] = []
    kept: Counter[str] = Counter()
    for candidate in ordered:
        too_old = older_than_s is not None and now_s - candidate.last_used_s > older_than_s
        too_much = max_bytes is not None and total > max_bytes
        if not (too_old or too_much):
            continue
        if candidate.is_kept:
            kept[candidate.is_kept] += 1
            continue
        if not too_old and not candidate.inline_bytes and held.issuperset(candidate.blobs):
            # Its bytes stay whatever happens to it, so to let go of it would gain nothing.
            continue
        freed = candidate.inline_bytes
        for digest, size_bytes in set(candidate.blobs):
            named_by[digest] -= 1
            if not named_by[digest]:
                freed += size_bytes
        total -= freed
        idle_s = max(0.0, now_s - candidate.last_used_s)
        why = f"unused for {idle_s / 86400:.1f} days" if too_old else "least recently used, over the limit"
        removals.append(
            Removal(
                key=candidate.key,
                label=candidate.label,
                last_used_s=candidate.last_used_s,
                freed_bytes=freed,
                why=why,
            )
        )
    return PruneDecision(removals=tuple(removals), before_bytes=before, after_bytes=total, kept_by_reason=dict(kept))
