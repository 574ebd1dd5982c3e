"""One step of a shared process: members' batches through the engine in few passes, and what to do if one fails.

A pass that runs out of memory is divided, and what was gathered for the updates under way is gathered again; one that
fails otherwise is tried member by member, so that only the one who caused it ends. After an error of the device itself
nothing in this process can be computed any more: all members resume elsewhere, from their checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stoker.cookbooks.language.compute.passes import AdapterSlotRows, PassResult, is_out_of_memory
from stoker.cookbooks.language.compute.slots import Slots
from stoker.cookbooks.language.examples import IGNORED, MemberRows
from stoker.cookbooks.language.shared.pass_schedule import (
    Costs,
    MemberPassShape,
    MultiAdapterPass,
    OversizedMember,
    plan_passes,
    shrunk,
)
from stoker.cookbooks.language.shared.tenant import AdapterMember, Update
from stoker.core.errors import OutOfMemory, ProcessLost, StokerError
from stoker.core.frozen import changed

# Members' rows, each of its own shape, laid into the arrays of one pass.

_NOBODY = -1
"""The first segment of padding in packed rows; others go down from here."""


class MemberBatch(Protocol):
    """A batch of one member, as its cursor gives it."""

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """`[rows, T]`."""

    @property
    def labels(self) -> npt.NDArray[Any]:
        """`[rows, T]`, the token after each, or `IGNORED`."""

    @property
    def segments(self) -> npt.NDArray[Any] | None:
        """`[rows, T]` of packed rows."""


def lay_rows(
    one: MultiAdapterPass, batches: Mapping[int, MemberBatch], denominators: Sequence[float]
) -> AdapterSlotRows:
    """Return the engine's input: rows `first` to `first + rows` of each member; padding where a member has fewer."""
    shape = (len(one.slots), one.rows, one.length)
    tokens = np.zeros(shape, dtype=np.int64)
    labels = np.full(shape, IGNORED, dtype=np.int64)
    is_packed = any(batch.segments is not None for batch in batches.values())
    segments = np.broadcast_to(_padding(one.length, batches), shape).copy() if is_packed else None
    for place, slot in enumerate(one.slots):
        batch = batches.get(slot)
        if batch is None:
            continue
        shown = batch.tokens[one.first : one.first + one.rows]
        rows, length = shown.shape
        tokens[place, :rows, :length] = shown
        labels[place, :rows, :length] = batch.labels[one.first : one.first + one.rows]
        if segments is not None:
            packed = 0 if batch.segments is None else batch.segments[one.first : one.first + one.rows]
            segments[place, :rows, :length] = packed
    return AdapterSlotRows(slots=one.slots, tokens=tokens, labels=labels, segments=segments, denominators=denominators)


def _padding(length: int, batches: Mapping[int, MemberBatch]) -> npt.NDArray[np.int32]:
    """Return the segments of padding, of which no token is part: none is longer than the longest of a member.

    Attention is paid within padding, too, and takes the square of its length.
    """
    longest = max(_longest(batch) for batch in batches.values())
    return _NOBODY - np.arange(length, dtype=np.int32) // longest


def _longest(batch: MemberBatch) -> int:
    """Return how long the longest segment of a batch is."""
    if batch.segments is None:
        return int(batch.tokens.shape[1])
    return max(int(np.unique(row, return_counts=True)[1].max()) for row in batch.segments)


_ON_CPU = Costs(pass_tokens=128)
_ON_GPU = Costs(pass_tokens=1024)
"""On an H200 a pass that is recorded costs 550 tokens however small it is; the more passes, the more are recorded."""
_WIDE = 2
"""So many passes of the same members are as large as any will be, one to run and one to record: there is memory for
all then. If they grew one by one, hardly any would fit into what smaller ones had left."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of one member's update, read when first asked for."""

    parts: list[tuple[PassResult, int]] = field(default_factory=list)
    """Each pass's result, and the member's place in it."""
    padded_tokens: int = 0

    @property
    def loss(self) -> float:
        return sum(result.losses[place] for result, place in self.parts)

    @property
    def is_finite(self) -> bool:
        return all(result.finite[place] for result, place in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStepResults:
    """How a step ended, by slot."""

    done: dict[int, Tally]
    failed: dict[int, Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEvaluationResults:
    """Mean losses over the held-out tokens, by slot, and who failed."""

    losses: dict[int, float]
    failed: dict[int, Exception]


class MultiAdapterStepper:
    """Computes steps; remembers what did not fit, and whose places are kept."""

    def __init__(self, *, is_gpu: bool, tell: Callable[[str], None]) -> None:
        self._is_gpu = is_gpu
        self._tell = tell
        self._costs = _ON_GPU if is_gpu else _ON_CPU
        self._kept: dict[int, MemberPassShape] = {}
        self._shapes: dict[int, MemberPassShape] = {}
        self._wide: Counter[tuple[int, ...]] = Counter()
        self._unrecorded = ""

    def keep_place(self, slot: int) -> None:
        """Go on showing nothing to a slot whose member failed, so that the others' passes have the shape they had."""
        if slot in self._shapes:
            self._kept[slot] = self._shapes[slot]

    def take_place(self, slot: int) -> None:
        """A slot has a member again, or is no longer to be shown anything."""
        self._kept.pop(slot, None)
        self._shapes.pop(slot, None)
        # The member there now may be larger, and the memory of the one before was freed.
        self._wide = Counter({slots: count for slots, count in self._wide.items() if slot not in slots})

    @property
    def _is_short(self) -> bool:
        """Whether something did not fit: rows are then of their own, for these can be divided."""
        return self._costs.most_tokens is not None

    def train(self, slots: Slots, members: Mapping[int, AdapterMember]) -> MemberStepResults:
        """Make one update of each member."""
        failed: dict[int, Exception] = {}
        pending: dict[int, tuple[AdapterMember, Update]] = {}
        for slot, member in members.items():
            try:
                pending[slot] = (member, member.look_ahead())
            except Exception as error:  # noqa: BLE001 - its data are its own business
                failed[slot] = error
        done: dict[int, Tally] = {}
        singly = False
        while pending:
            try:
                done |= self._gather(slots, pending, singly=singly)
            except _PassFailed as failure:
                done |= failure.done
                pending = {slot: one for slot, one in pending.items() if slot not in failure.done}
                slots.forget(tuple(pending))
                singly = self._recover(slots, failure, pending, failed) or singly
            else:
                break
        self._note_unrecorded(slots)
        return MemberStepResults(done=done, failed=failed)

    def evaluate(self, slots: Slots, members: Mapping[int, AdapterMember]) -> MemberEvaluationResults:
        """Return each member's mean loss over what was held out of its data."""
        failed: dict[int, Exception] = {}
        pending = dict(members)
        losses: dict[int, float] = {}
        singly = False
        while pending:
            try:
                losses = self._score(slots, pending, singly=singly)
            except _PassFailed as failure:
                singly = self._recover(slots, failure, pending, failed) or singly
            else:
                break
        return MemberEvaluationResults(losses={slot: losses[slot] for slot in pending}, failed=failed)

    def _gather(
        self, slots: Slots, pending: Mapping[int, tuple[AdapterMember, Update]], *, singly: bool
    ) -> dict[int, Tally]:
        tallies = {slot: Tally() for slot in pending}
        updated: set[int] = set()
        for number in range(max(len(update.batches) for _, update in pending.values())):
            batches = {
                slot: (u.batches if self._is_short else u.close)[number]
                for slot, (_, u) in pending.items()
                if number < len(u.batches)
            }
            passes = self._passes({slot: pending[slot][0] for slot in batches}, batches, singly=singly)
            last_of = {slot: at for at, one in enumerate(passes) for slot in one.slots}
            for at, one in enumerate(passes):
                closes = {
                    slot
                    for slot in one.slots
                    if slot in batches and last_of[slot] == at and number + 1 == len(pending[slot][1].batches)
                }
                try:
                    result = self._show(slots, one, batches, pending, closes)
                except Exception as error:
                    if isinstance(error, StokerError):
                        raise
                    done = {slot: tallies[slot] for slot in updated}
                    is_close = any(pending[slot][0].is_close for slot in one.slots if slot in batches)
                    raise _PassFailed(one, error, done, is_close=is_close) from error
                for place, slot in enumerate(one.slots):
                    if slot in batches:
                        tallies[slot].parts.append((result, place))
                        tallies[slot].padded_tokens += one.rows * one.length
                updated |= closes
        return tallies

    def _show(
        self,
        slots: Slots,
        one: MultiAdapterPass,
        batches: Mapping[int, MemberRows],
        pending: Mapping[int, tuple[AdapterMember, Update]],
        closes: set[int],
    ) -> PassResult:
        absent: tuple[Any, Any] = (None, None)
        who = [pending.get(slot, absent) if slot in batches else absent for slot in one.slots]
        denominators = [float(update.supervised) if update else 0.0 for _, update in who]
        rows = lay_rows(one, {slot: batches[slot] for slot in one.slots if slot in batches}, denominators)
        rates = [member.rate if member else 0.0 for member, _ in who]
        return slots.step(rows, update=[slot in closes for slot in one.slots], rates=rates)

    def _score(self, slots: Slots, pending: Mapping[int, AdapterMember], *, singly: bool) -> dict[int, float]:
        sums, counts = dict.fromkeys(pending, 0.0), dict.fromkeys(pending, 0)
        for number in range(max(len(member.held_out) for member in pending.values())):
            batches = {
                slot: (m.held_out if self._is_short else m.held_out_close)[number]
                for slot, m in pending.items()
                if number < len(m.held_out)
            }
            for one in self._passes({slot: pending[slot] for slot in batches}, batches, singly=singly, keeps=False):
                rows = lay_rows(one, {slot: batches[slot] for slot in one.slots}, [0.0] * len(one.slots))
                try:
                    losses, tokens = slots.losses(rows)
                except Exception as error:
                    if isinstance(error, StokerError):
                        raise
                    is_close = any(pending[slot].is_close for slot in one.slots)
                    raise _PassFailed(one, error, {}, is_close=is_close) from error
                for place, slot in enumerate(one.slots):
                    sums[slot] += losses[place]
                    counts[slot] += tokens[place]
        return {slot: sums[slot] / max(1, counts[slot]) for slot in pending}

    def _passes(
        self,
        members: Mapping[int, AdapterMember],
        batches: Mapping[int, MemberRows],
        *,
        singly: bool,
        keeps: bool = True,
    ) -> tuple[MultiAdapterPass, ...]:
        shapes = [member.shape_of(batches[slot], is_coarse=self._is_gpu) for slot, member in members.items()]
        if singly:
            return tuple(one for shape in shapes for one in plan_passes([shape], self._costs))
        if not keeps:
            return plan_passes(shapes, self._costs)
        passes = plan_passes(shapes, self._costs, self._kept)
        if self._is_gpu and not self._is_short:
            passes = tuple(self._widened(one, shapes) for one in passes)
        for one in passes:
            present = [shape for shape in shapes if shape.slot in one.slots]
            usual = max(shape.kind[0] for shape in present)
            for shape in present:
                self._shapes[shape.slot] = changed(shape, rows=one.rows, length=one.length, usual=usual)
        return passes

    def _widened(self, one: MultiAdapterPass, shapes: Sequence[MemberPassShape]) -> MultiAdapterPass:
        if self._wide[one.slots] >= _WIDE:
            return one
        self._wide[one.slots] += 1
        # Of members that differ the mean: each was given memory for its own.
        largest = [shape.largest for shape in shapes if shape.slot in one.slots]
        return changed(one, length=max(one.length, -(-sum(largest) // len(largest))))

    def _recover(
        self, slots: Slots, failure: _PassFailed, pending: dict[int, Any], failed: dict[int, Exception]
    ) -> bool:
        """Make the next try likelier to succeed; says whether members are to be tried one by one."""
        one, error = failure.one, failure.error
        live = tuple(slot for slot in one.slots if slot in pending)
        self._kept.clear()
        if not is_out_of_memory(error):
            if _is_broken(error):
                raise ProcessLost(f"the device no longer answers: {_in_short(error)}") from error
            if len(live) > 1:
                return True
            for slot in live:
                pending.pop(slot)
                failed[slot] = error
            return False
        if self._let_go(slots, error):
            self._tell("memory ran short: recorded steps, which only save time, are let go of")
            return False
        whole = MultiAdapterPass(slots=live, first=one.first, rows=one.rows, length=one.length)
        verdict = shrunk(whole, is_close=failure.is_close and not self._is_short)
        if isinstance(verdict, OversizedMember):
            pending.pop(verdict.slot)
            hint = "fewer tokens a row (max_seq_len), or a smaller rank"
            failed[verdict.slot] = OutOfMemory(f"{verdict.why}: {_in_short(error)}", hint=hint)
            failed[verdict.slot].__cause__ = error
        else:
            self._costs = changed(self._costs, most_tokens=verdict.most_tokens)
            self._tell(f"{verdict.why} ({_in_short(error)})")
        return False

    def _note_unrecorded(self, slots: Slots) -> None:
        """Tell once that steps are slower than they might be, and why."""
        if slots.why_not_recorded != self._unrecorded:
            self._unrecorded = slots.why_not_recorded
            self._tell(f"a step could not be recorded, and runs plainly: {_in_short(self._unrecorded)}")

    def _let_go(self, slots: Slots, error: BaseException) -> bool:
        """Free what the failed pass held; says whether there was more to be freed than that."""
        # The frames of the pass hold its activations.
        error.__traceback__ = None
        if self._is_gpu:
            torch.cuda.empty_cache()
        return slots.let_go()


class _PassFailed(Exception):
    """A pass raised. Members updated before it stay updated."""

    def __init__(self, one: MultiAdapterPass, error: Exception, done: dict[int, Tally], *, is_close: bool) -> None:
        """`is_close`: it held rows that are several laid end to end, as long as memory was not short."""
        super().__init__(str(error))
        self.is_close = is_close
        self.one = one
        self.error = error
        self.done = done


def _in_short(error: object) -> str:
    """Return the first two sentences of what it says: torch continues with advice for programmers."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return ". ".join(line.split(". ")[:2]).removesuffix(".")


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)
