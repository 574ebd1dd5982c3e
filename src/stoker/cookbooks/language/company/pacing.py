"""How often a member's state is written and its progress told: so that little is lost, and little is spent on it."""

from __future__ import annotations

LEAST_S = 60.0
"""Between two checkpoints that nobody asked for by number."""
SHARE = 50
"""A checkpoint that took a second is followed by this many without one, at least."""
REPORTS_PER_S = 20.0
COUNTED_S = 5.0
"""How long tokens are counted before the count begins anew."""


def is_checkpoint_due(updates_since: int, *, every: int | None, since_s: float, cost_s: float) -> bool:
    """Say whether to write a checkpoint: each `every` updates, or by time passed since the last and what that took."""
    if updates_since <= 0:
        return False
    if every is not None:
        return updates_since >= every
    return since_s >= max(LEAST_S, SHARE * cost_s)


def is_report_due(since_s: float, *, is_special: bool) -> bool:
    """Say whether to tell an update's numbers: special ones (first, last, evaluated) always, others not too often."""
    return is_special or since_s >= 1.0 / REPORTS_PER_S
