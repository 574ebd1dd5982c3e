"""What a prune would take away: decided purely, with a reason for each, before anything is touched.

Least recently used first; what a person has let go of goes whatever the limit. Pinned and protected records stay. A
blob goes when no remaining record names it, so the bytes freed are counted blob by blob.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.model.digests import Digest
from stoker.model.frozen import frozen

GRACE_S = 3600.0
"""How long bytes, and records of what was put, are spared: whoever brought them in may be about to name them."""

_YOUNG = "put without a name, for less than an hour"


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
    let_go: str = ""
    """Why nobody can want it any more, or empty."""


@frozen
class Removal:
    """One record that goes, what that frees, and why."""

    key: Digest
    label: str
    last_used_s: float
    """As known when it was decided: one that is used after that stays."""
    freed_bytes: int
    why: str
    freed_blobs: tuple[tuple[Digest, int], ...] = ()
    """Digest and size of each blob that nobody names once it is gone."""


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
    candidates: Iterable[Candidate],
    *,
    now_s: float,
    max_bytes: int | None,
    older_than_s: float | None,
    grace_s: float = GRACE_S,
) -> PruneDecision:
    """Decide which records become tombstones.

    Those that were let go of, those unused for too long, then the least recently used until the rest fits.
    """
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
        idle_s = max(0.0, now_s - candidate.last_used_s)
        too_old = older_than_s is not None and idle_s > older_than_s
        unwanted = bool(candidate.let_go) and idle_s > grace_s
        too_much = max_bytes is not None and total > max_bytes
        if not (unwanted or too_old or too_much):
            if candidate.let_go and not candidate.is_kept:
                kept[_YOUNG] += 1
            continue
        if candidate.is_kept:
            kept[candidate.is_kept] += 1
            continue
        if not (unwanted or too_old) and not candidate.inline_bytes and held.issuperset(candidate.blobs):
            # Its bytes stay whatever happens to it, so to let go of it would gain nothing.
            continue
        for digest, _ in set(candidate.blobs):
            named_by[digest] -= 1
        blobs = tuple(blob for blob in dict.fromkeys(candidate.blobs) if not named_by[blob[0]])
        freed = candidate.inline_bytes + sum(size_bytes for _, size_bytes in blobs)
        total -= freed
        why = f"unused for {idle_s / 86400:.1f} days" if too_old else "over the size limit, least recently used"
        removals.append(
            Removal(
                key=candidate.key,
                label=candidate.label,
                last_used_s=candidate.last_used_s,
                freed_bytes=freed,
                why=candidate.let_go if unwanted else why,
                freed_blobs=blobs,
            )
        )
    return PruneDecision(removals=tuple(removals), before_bytes=before, after_bytes=total, kept_by_reason=dict(kept))
