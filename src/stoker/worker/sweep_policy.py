"""When to give a sweep up: if everything that has run so far failed in the same way, the rest will too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stoker.model.frozen import frozen
from stoker.model.retry import Cause
from stoker.worker.trials import TrialEnd

ENOUGH = 3
"""So many failures of one kind, and nothing that went well, are no accident."""

# Not the number that a program ended with, which is the failure itself.
_VARIABLE = re.compile(r"(?<!exit )(?<!signal )(?:0x[0-9a-fA-F]+|\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@frozen
class GiveUp:
    """Stop the sweep."""

    why: str


def decide_give_up(ends: Sequence[TrialEnd], left: int) -> GiveUp | None:
    """Decide from the trials that have ended whether those that are left are worth running.

    What was kept from earlier says nothing about how things go now. What diverged did so by its own values: others have
    other ones.
    """
    failed = [end for end in ends if end.state == "failed"]
    if not left or len(failed) < ENOUGH or any(end.state == "completed" and not end.is_kept for end in ends):
        return None
    if any(end.cause == Cause.DIVERGED for end in failed):
        return None
    kinds = {(end.cause, _kind_of(end.message)) for end in failed}
    if len(kinds) > 1:
        return None
    return GiveUp(why=f"all {len(failed)} trials that ran failed in the same way: {failed[0].message}")


def _kind_of(message: str) -> str:
    """Give a message without the numbers in it, which tell trials apart but not failures."""
    return _VARIABLE.sub("#", message)
