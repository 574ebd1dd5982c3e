"""When a member is evaluated, which of its evaluations is the best, and when it has stopped getting better."""

from __future__ import annotations

from stoker.model.frozen import frozen


@frozen
class Judged:
    """What a member's evaluations have said so far."""

    last: float | None = None
    best: float | None = None
    best_update: int = 0
    best_epoch: int = 0
    worse_in_a_row: int = 0
    """Evaluations since the best one."""


def is_evaluation_due(update: int, *, updates: int, per_epoch: int, every: int | None) -> bool:
    """Say whether a member is evaluated after this update (counted from 1): each so many, or each epoch; at the end."""
    return update >= updates or update % (every or per_epoch) == 0


def judge(before: Judged, loss: float, *, update: int, epoch: int) -> Judged:
    """Take an evaluation in. Equal is no improvement: the earlier one stays the best."""
    if before.best is None or loss < before.best:
        return Judged(last=loss, best=loss, best_update=update, best_epoch=epoch)
    return Judged(
        last=loss,
        best=before.best,
        best_update=before.best_update,
        best_epoch=before.best_epoch,
        worse_in_a_row=before.worse_in_a_row + 1,
    )


def should_stop(judged: Judged, patience: int | None) -> bool:
    """Say whether so many evaluations in a row have brought nothing better; without patience, never."""
    return patience is not None and judged.worse_in_a_row >= patience
