"""The division of members' batches into passes: decided purely, from their shapes.

Members of one pass are padded to a common number of rows and a common length. Padding costs, and so does every pass:
members are combined if that is cheaper. If memory is reserved for fewer members in a pass than there are, a pass is
divided among its members from the start. A pass that did not fit into memory halves the limit of a pass; first the rows
of its members are divided, then its members. A single row that does not fit is an error, unless it is several
concatenated ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from stoker.cookbooks.language.arguments import Objective, Turns
from stoker.core.frozen import changed, frozen

_FINEST = 8
"""Lengths are padded to a multiple of this at least."""


@frozen
class MemberPassShape:
    """The shape of one member in a pass."""

    slot: int
    rows: int
    length: int
    usual: int = 0
    """The usual length of its rows, by which members are combined, so that they stay together. 0: this."""
    largest: int = 0
    """The maximum length of its rows. 0: this."""
    is_laid: bool = False
    """True if its row is several concatenated ones. Such are never combined with others: both would be padded."""
    objective: Objective | None = None
    """Of pairs. Members with different objectives are never combined."""

    @property
    def kind(self) -> tuple[int, int]:
        """Key by which members are combined."""
        return (self.usual or self.length, self.rows)


@frozen
class MultiAdapterPass:
    """Members that are computed at once, each with so many rows (from `first` on) of so many tokens."""

    slots: tuple[int, ...]
    first: int
    rows: int
    length: int
    objective: Objective | None = None
    """Of pairs."""

    @property
    def grain(self) -> int:
        """Rows that stay together: two of a pair, unless it is in a concatenated row."""
        return 1 if self.objective is None else min(2, self.rows)

    @property
    def tokens(self) -> int:
        return len(self.slots) * self.rows * self.length


@frozen
class Costs:
    """Costs by which members are combined."""

    pass_tokens: int
    """A pass costs as much as so many tokens, however small it is."""
    most_tokens: int | None = None
    """Maximum of a pass; None: no limit found yet."""
    most_members: int | None = None
    """Maximum of a pass, for which memory is reserved; None: for all members in one pass."""


@frozen
class PassTokenLimit:
    """New maximum number of tokens of a pass."""

    most_tokens: int
    why: str


@frozen
class OversizedMember:
    """Not even one row of this member fits."""

    slot: int
    why: str


def bucket(length: int, most: int, *, is_coarse: bool) -> int:
    """Return the length that rows are padded to; at most `most`, unless they are longer themselves.

    Coarse, because a step is compiled or recorded for each length: four lengths between two powers of two.
    """
    step = max(_FINEST, (1 << (length - 1).bit_length()) // 8) if is_coarse and length > 1 else _FINEST
    return max(length, min(most, -(-length // step) * step))


def plan_passes(
    shapes: Sequence[MemberPassShape], costs: Costs, kept: Mapping[int, MemberPassShape] | None = None
) -> tuple[MultiAdapterPass, ...]:
    """Divide members among passes; every row of every member is in exactly one.

    `kept` are slots of former members: each stays in a pass of its kind, so that the others' numbers come from the same
    kernels as before, bit for bit.
    """
    return _planned(tuple(shapes), costs, tuple(kept.values()) if kept else ())


def shrunk(failed: MultiAdapterPass, *, is_close: bool = False) -> PassTokenLimit | OversizedMember:
    """Decide what follows a pass that did not fit into memory. `is_close`: its rows are concatenated ones."""
    what = f"{len(failed.slots)} adapters x {failed.rows} rows x {failed.length} tokens did not fit into memory"
    if len(failed.slots) == 1 and failed.rows <= failed.grain and not is_close:
        return OversizedMember(slot=failed.slots[0], why=what)
    most = failed.tokens // 2 if is_close else max(failed.grain * failed.length, failed.tokens // 2)
    return PassTokenLimit(most_tokens=most, why=f"{what}: now at most {most} tokens at once")


@lru_cache(maxsize=1024)
def _planned(
    shapes: tuple[MemberPassShape, ...], costs: Costs, kept: tuple[MemberPassShape, ...]
) -> tuple[MultiAdapterPass, ...]:
    passes: list[MultiAdapterPass] = []
    kinds = sorted({(one.is_laid, one.objective or "") for one in shapes})
    layouts = [[one for one in shapes if (one.is_laid, one.objective or "") == kind] for kind in kinds]
    for together in (group for layout in layouts for group in _together(layout, costs.pass_tokens)):
        rows, length = max(one.rows for one in together), max(one.length for one in together)
        slots = {one.slot for one in together}
        kind = (max(one.kind[0] for one in together), rows)
        like = together[0]
        empty = {
            one.slot
            for one in kept
            if one.kind == kind and one.is_laid is like.is_laid and one.objective == like.objective
        } - slots
        # More empty slots than members cost more than they are worth.
        if len(empty) <= len(slots) and (
            costs.most_tokens is None or len(slots | empty) * rows * length <= costs.most_tokens
        ):
            slots |= empty
        whole = MultiAdapterPass(
            slots=tuple(sorted(slots)), first=0, rows=rows, length=length, objective=like.objective
        )
        for part in _as_reserved(whole, costs.most_members, together):
            passes += _within(part, costs.most_tokens)
    return tuple(passes)


def _together(shapes: Sequence[MemberPassShape], pass_tokens: int) -> list[list[MemberPassShape]]:
    """Combine members so that passes and padding cost least: the best division in order of size."""
    ordered = sorted(shapes, key=lambda one: (*one.kind, one.slot))
    alike = [list(group) for _, group in groupby(ordered, key=lambda one: one.kind)]
    # best[i]: the minimum cost of the first i groups, and where their last pass starts.
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
    """Return the minimum cost of the first `end` groups over the starts of their last pass, and that start."""
    length, _ = alike[end - 1][0].kind
    members = rows = 0
    for start in reversed(range(end)):
        one = alike[start][0]
        members += len(alike[start])
        rows = max(rows, one.rows)
        yield best[start][0] + pass_tokens + members * rows * length, start


def _as_reserved(
    whole: MultiAdapterPass, most: int | None, members: Sequence[MemberPassShape]
) -> list[MultiAdapterPass]:
    """Divide a pass into parts with as many members as memory is reserved for, of nearly the same size.

    Members with other numbers of rows are not padded to each other then: that would be more tokens than any has.
    """
    if most is None or len(whole.slots) <= most:
        return [whole]
    if len({one.rows for one in members}) == 1:
        present = {one.slot for one in members}
        return [part for part in _parts(whole, most) if present.intersection(part.slots)]
    parts: list[MultiAdapterPass] = []
    for rows, group in groupby(sorted(members, key=_rows_of), key=_rows_of):
        alike = list(group)
        slots, length = sorted(one.slot for one in alike), max(one.length for one in alike)
        parts += _parts(changed(whole, slots=tuple(slots), rows=rows, length=length), most)
    return parts


def _parts(whole: MultiAdapterPass, most: int) -> Iterator[MultiAdapterPass]:
    count = -(-len(whole.slots) // most)
    size = -(-len(whole.slots) // count)
    return (changed(whole, slots=whole.slots[at : at + size]) for at in range(0, len(whole.slots), size))


def _rows_of(one: MemberPassShape) -> int:
    return one.rows


def _within(whole: MultiAdapterPass, most: int | None) -> list[MultiAdapterPass]:
    """Divide a pass until it is within the limit: rows first, then members."""
    if most is None or whole.tokens <= most:
        return [whole]
    grain = whole.grain
    rows = max(1, most // (len(whole.slots) * whole.length * grain)) * grain
    fits = rows * len(whole.slots) * whole.length <= most
    members = len(whole.slots) if fits else max(1, most // (whole.length * grain))
    return [
        changed(whole, slots=whole.slots[at : at + members], first=first, rows=min(rows, whole.rows - first))
        for first in range(0, whole.rows, rows)
        for at in range(0, len(whole.slots), members)
    ]


# The turn of members: which ones train in the next step.
#
# Members with `synchronized` train in every step. Those with `round_robin` take turns, one in each step; of those with
# `priority` the one with the worst evaluation trains, one without an evaluation first.


@frozen
class AdapterProgress:
    """The state that decides a member's turn."""

    slot: int
    turns: Turns
    updates: int
    """Number of its updates."""
    eval_loss: float | None
    """Of its last evaluation."""


def whose_turn(step: int, members: Sequence[AdapterProgress]) -> tuple[int, ...]:
    """Return the slots that train in this step, in order."""
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
    # No member is evaluated yet: the one with the fewest updates, so that each reaches an evaluation.
    return (-loss, one.updates, one.slot)


# Intervals of checkpoints and reports.

LEAST_S = 60.0
"""Default interval between two checkpoints."""
SHARE = 50
"""Minimum ratio of the time between checkpoints to the time that one takes."""
REPORTS_PER_S = 20.0
COUNTED_S = 5.0
"""How long tokens are counted before the count restarts."""


def is_checkpoint_due(updates_since: int, *, every: int | None, since_s: float, cost_s: float) -> bool:
    """Return True if a checkpoint is due: each `every` updates, or by the time since the last one and its duration."""
    if updates_since <= 0:
        return False
    if every is not None:
        return updates_since >= every
    return since_s >= max(LEAST_S, SHARE * cost_s)


_NOT_LOGGED = frozenset({"tokens_per_s", "peak_bytes", "cost_s"})
"""Metrics of the whole process; they are not in a training's log."""


def progress_text(update: int, updates: int, metrics: Mapping[str, float]) -> str:
    """Return the line of a training's log for an update."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name not in _NOT_LOGGED)
    return f"update {update} of {updates}: {shown}"


def is_report_due(since_s: float, *, is_special: bool) -> bool:
    """Return True if an update is to be reported: first, last and evaluated ones always, others at an interval."""
    return is_special or since_s >= 1.0 / REPORTS_PER_S
