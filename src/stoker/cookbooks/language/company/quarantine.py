"""When a member whose numbers are no longer finite is given up.

A loss that is not finite ends it at once: the same weights would give the same loss again. A gradient that is not
finite under a finite loss may be a single overflow, so that update is left out and the next batch is tried; the third
such update in a row ends it. Weights and moments stay as they were before each of them, and nobody else notices.
"""

from __future__ import annotations

import math

from stoker.model.frozen import frozen

PATIENCE = 3
"""Updates in a row whose gradient may be other than finite."""


@frozen
class GoOn:
    """It goes on, with so many updates in a row left out."""

    left_out: int


@frozen
class GiveUp:
    """It is over: which metric was what, in words."""

    metric: str
    why: str


def after_update(left_out: int, *, loss: float, is_finite: bool) -> GoOn | GiveUp:
    """Decide after an update, knowing how many in a row were left out before it."""
    if not math.isfinite(loss):
        return GiveUp(metric="loss", why=f"loss is {loss}")
    if is_finite:
        return GoOn(left_out=0)
    if left_out + 1 < PATIENCE:
        return GoOn(left_out=left_out + 1)
    return GiveUp(metric="gradient", why=f"the gradient was not finite {PATIENCE} updates in a row")


def after_evaluation(loss: float) -> GiveUp | None:
    """Decide after an evaluation."""
    return None if math.isfinite(loss) else GiveUp(metric="eval_loss", why=f"eval_loss is {loss}")
