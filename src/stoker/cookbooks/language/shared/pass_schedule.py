"""In which passes of the engine members' batches are computed: decided purely, from their shapes alone.

Members of one pass are padded to a common number of rows and a common length. Padding costs, and so does every pass:
members are put together where that is cheaper. A pass that did not fit into memory halves what a pass may hold; first
the rows of its members are divided, then its members; a single row that does not fit can't be helped, unless it is
several laid end to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from stoker.cookbooks.language.arguments import Turns
from stoker.core.frozen import frozen

_FINEST = 8
"""Lengths are padded to a multiple of this at least."""


@frozen
class MemberPassShape:
    """What one member brings to a pass."""

    slot: int
    rows: int
    length: int
    usual: int = 0
    """The length that its rows mostly have, by which members are put together: so that they stay together. 0: this."""
    largest: int = 0
    """The length that none of its rows exceeds. 0: this."""
    is_laid: bool = False
    """Its row is several laid end to end. Such are never in a pass with others: both would be padded to both."""

    @property
    def kind(self) -> tuple[int, int]:
        """What members are put together by."""
        return (self.usual or self.length, self.rows)


@frozen
class MultiAdapterPass:
    """Members that are computed at once, each with so many rows (from `first` on) of so many tokens."""

    slots: tuple[int, ...]
    first: int
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return len(self.slots) * self.rows * self.length


@frozen
class Costs:
    """What decides how members are put together."""

    pass_tokens: int
    """A pass costs as much as so many tokens, however small it is."""
    most_tokens: int | None = None
    """No pass may hold more; None: no such limit was met."""


@frozen
class PassTokenLimit:
    """Passes may hold no more than so many tokens from here on."""

    most_tokens: int
    why: str


@frozen
class OversizedMember:
    """Not even one row of this member fits."""

    slot: int
    why: str


def bucket(length: int, most: int, *, is_coarse: bool) -> int:
    """Return the length that rows are padded to; never above `most` unless they are longer themselves.

    Coarse (a step is compiled or recorded for each length): four lengths between a power of two and the next.
    """
    step = max(_FINEST, (1 << (length - 1).bit_length()) // 8) if is_coarse and length > 1 else _FINEST
    return max(length, min(most, -(-length // step) * step))


def plan_passes(
    shapes: Sequence[MemberPassShape], costs: Costs, kept: Mapping[int, MemberPassShape] | None = None
) -> tuple[MultiAdapterPass, ...]:
    """Divide members among passes; every row of every member is in exactly one.

    `kept` are places of members that went away: each stays in a pass of its kind, so that the others' numbers come from
    the same kernels as before, bit for bit.
    """
    return _planned(tuple(shapes), costs, tuple(kept.values()) if kept else ())


def shrunk(failed: MultiAdapterPass, *, is_close: bool = False) -> PassTokenLimit | OversizedMember:
    """Decide what to do after a pass did not fit into memory. `is_close`: its rows are several laid end to end."""
    what = f"{len(failed.slots)} adapters x {failed.rows} rows x {failed.length} tokens did not fit into memory"
    if len(failed.slots) == 1 and failed.rows == 1 and not is_close:
        return OversizedMember(slot=failed.slots[0], why=what)
    most = failed.tokens // 2 if is_close else max(failed.length, failed.tokens // 2)
    return PassTokenLimit(most_tokens=most, why=f"{what}: from here on {most} tokens at once")


@lru_cache(maxsize=1024)
def _planned(
    shapes: tuple[MemberPassShape, ...], costs: Costs, kept: tuple[MemberPassShape, ...]
) -> tuple[MultiAdapterPass, ...]:
    passes: list[MultiAdapterPass] = []
    layouts = [[one for one in shapes if one.is_laid is is_laid] for is_laid in (False, True)]
    for together in (group for layout in layouts for group in _together(layout, costs.pass_tokens)):
        rows, length = max(one.rows for one in together), max(one.length for one in together)
        slots = {one.slot for one in together}
        kind = (max(one.kind[0] for one in together), rows)
        is_laid = together[0].is_laid
        empty = {one.slot for one in kept if one.kind == kind and one.is_laid is is_laid} - slots
        # More empty places than members cost more than they are worth.
        if len(empty) <= len(slots) and (
            costs.most_tokens is None or len(slots | empty) * rows * length <= costs.most_tokens
        ):
            slots |= empty
        passes += _within(
            MultiAdapterPass(slots=tuple(sorted(slots)), first=0, rows=rows, length=length), costs.most_tokens
        )
    return tuple(passes)


def _together(shapes: Sequence[MemberPassShape], pass_tokens: int) -> list[list[MemberPassShape]]:
    """Put members together so that passes and padding cost least: the best cut of them in order of size."""
    ordered = sorted(shapes, key=lambda one: (*one.kind, one.slot))
    alike = [list(group) for _, group in groupby(ordered, key=lambda one: one.kind)]
    # best[i]: the least cost of the first i groups, and where its last pass begins.
    best: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(alike) + 1):
        best.append(min(_costs_from(alike, end, best, pass_tokens)))
    cuts: list[list[MemberPassShape]] = []
    end = len(alike)
    while end:
        begin = best[end][1]
        cuts.append([one for group in alike[begin:end] for one in group])
        end = begin
    return cuts


def _costs_from(
    alike: list[list[MemberPassShape]], end: int, best: list[tuple[int, int]], pass_tokens: int
) -> Iterator[tuple[int, int]]:
    """Return what the first `end` groups cost if their last pass begins here, or there: cost and place."""
    length, _ = alike[end - 1][0].kind
    members = rows = 0
    for start in reversed(range(end)):
        one = alike[start][0]
        members += len(alike[start])
        rows = max(rows, one.rows)
        yield best[start][0] + pass_tokens + members * rows * length, start


def _within(whole: MultiAdapterPass, most: int | None) -> list[MultiAdapterPass]:
    """Divide a pass until it holds no more than it may: rows first, then members."""
    if most is None or whole.tokens <= most:
        return [whole]
    rows = max(1, most // (len(whole.slots) * whole.length))
    members = len(whole.slots) if rows * len(whole.slots) * whole.length <= most else max(1, most // whole.length)
    return [
        MultiAdapterPass(
            slots=whole.slots[at : at + members], first=first, rows=min(rows, whole.rows - first), length=whole.length
        )
        for first in range(0, whole.rows, rows)
        for at in range(0, len(whole.slots), members)
    ]


# Whose turn it is: which members of a shared process train in its next step.
#
# Members that ask for `synchronized` train in every step. Those that ask for `round_robin` take turns among themselves,
# one in each step; of those that ask for `priority` the one with the worst evaluation trains, one never evaluated
# before all others.


@frozen
class AdapterProgress:
    """What decides about a member's turn."""

    slot: int
    turns: Turns
    updates: int
    """How many it has behind it."""
    eval_loss: float | None
    """Of its last evaluation."""


def whose_turn(step: int, members: Sequence[AdapterProgress]) -> tuple[int, ...]:
    """Return the slots that train in this step of the shared process, in their order."""
    chosen = [one.slot for one in members if one.turns == "synchronized"]
    in_turn = sorted(one.slot for one in members if one.turns == "round_robin")
    if in_turn:
        chosen.append(in_turn[step % len(in_turn)])
    by_worst = [one for one in members if one.turns == "priority"]
    if by_worst:
        chosen.append(min(by_worst, key=_worst_first).slot)
    return tuple(sorted(chosen))


def _worst_first(one: AdapterProgress) -> tuple[float, int, int]:
    loss = math.inf if one.eval_loss is None else one.eval_loss
    # No member is evaluated yet: the one with the fewest updates, so that all come to an evaluation.
    return (-loss, one.updates, one.slot)


# How often a member's state is written and its progress reported: so that little is lost, and little is spent on it.

LEAST_S = 60.0
"""Default interval between two checkpoints."""
SHARE = 50
"""A checkpoint that took a second is followed by this many without one, at least."""
REPORTS_PER_S = 20.0
COUNTED_S = 5.0
"""How long tokens are counted before the count restarts."""


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
