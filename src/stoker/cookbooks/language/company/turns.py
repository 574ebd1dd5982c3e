"""Whose turn it is: which members of a company train in its next step.

Members that ask for `synchronized` train in every step. Those that ask for `round_robin` take turns among themselves,
one in each step; of those that ask for `priority` the one with the worst evaluation trains, one never evaluated before
all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stoker.cookbooks.language.settings import Turns
from stoker.model.frozen import frozen


@frozen
class Standing:
    """What decides about a member's turn."""

    slot: int
    turns: Turns
    updates: int
    """How many it has behind it."""
    eval_loss: float | None
    """Of its last evaluation."""


def whose_turn(step: int, members: Sequence[Standing]) -> tuple[int, ...]:
    """Give the slots that train in this step of the company, in their order."""
    chosen = [one.slot for one in members if one.turns == "synchronized"]
    in_turn = sorted(one.slot for one in members if one.turns == "round_robin")
    if in_turn:
        chosen.append(in_turn[step % len(in_turn)])
    by_worst = [one for one in members if one.turns == "priority"]
    if by_worst:
        chosen.append(min(by_worst, key=_worst_first).slot)
    return tuple(sorted(chosen))


def _worst_first(one: Standing) -> tuple[float, int, int]:
    loss = math.inf if one.eval_loss is None else one.eval_loss
    # Nobody evaluated yet: the one with the fewest updates, so that all come to an evaluation.
    return (-loss, one.updates, one.slot)
