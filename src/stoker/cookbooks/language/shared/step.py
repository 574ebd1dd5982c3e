"""One step of a shared process: members' batches in few passes, and what follows a failed pass.

A pass that runs out of memory is divided, and the current updates are computed again. One that fails otherwise is tried
member by member, so that only the member that caused it ends. After an error of the device nothing can be computed in
this process any more: all members resume elsewhere, from their checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stoker.cookbooks.language.arguments import IGNORED
from stoker.cookbooks.language.compute.passes import (
    AdapterSlotAnswers,
    AdapterSlotRows,
    LossSums,
    PassResult,
    is_out_of_memory,
)
from stoker.cookbooks.language.compute.slots import Slots
from stoker.cookbooks.language.examples import Ints, MemberRows
from stoker.cookbooks.language.shared.curves import AnswerRanking
from stoker.cookbooks.language.shared.members import AdapterMember, AnswerTotals, Update
from stoker.cookbooks.language.shared.pass_schedule import (
    Costs,
    MemberPassShape,
    MultiAdapterPass,
    OversizedMember,
    plan_passes,
    shrunk,
)
from stoker.core.errors import OutOfMemory, ProcessLost, StokerError
from stoker.core.frozen import changed

# Members' rows of different shapes in the arrays of one pass.

_NOBODY = -1
"""The first segment number of padding in packed rows; further ones count down."""


class MemberBatch(Protocol):
    """A batch of one member."""

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """`[rows, T]`."""

    @property
    def labels(self) -> npt.NDArray[Any]:
        """`[rows, T]`, the next token, or `IGNORED`."""

    @property
    def segments(self) -> npt.NDArray[Any] | None:
        """`[rows, T]` of packed rows."""


def lay_rows(
    one: MultiAdapterPass, batches: Mapping[int, MemberBatch], denominators: Sequence[float]
) -> AdapterSlotRows:
    """Return the input of a pass: rows `first` to `first + rows` of each member; padding if a member has fewer."""
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


def lay_answers(one: MultiAdapterPass, batches: Mapping[int, MemberRows]) -> tuple[Ints, Ints]:
    """Return the answers in the rows of a pass: their places, `[n, rows, T]`, and the index of each one's text."""
    is_close = any(batch.segments is not None for batch in batches.values())
    count = max(len(batch.answers.texts) for batch in batches.values() if batch.answers) if is_close else one.rows
    places = np.full((len(one.slots), one.rows, one.length), -1, dtype=np.int64)
    texts = np.full((len(one.slots), count), -1, dtype=np.int64)
    for place, slot in enumerate(one.slots):
        answers = batches[slot].answers if slot in batches else None
        if answers is None:
            continue
        shown = answers.places[one.first : one.first + one.rows]
        rows, length = shown.shape
        # Concatenated rows have all answers; otherwise a row has one.
        first = 0 if is_close else one.first
        places[place, :rows, :length] = np.where(shown < 0, -1, shown - first)
        some = answers.texts[first : first + count]
        texts[place, : len(some)] = some
    return places, texts


def _padding(length: int, batches: Mapping[int, MemberBatch]) -> npt.NDArray[np.int32]:
    """Return segments of padding, each no longer than the longest segment of a member.

    Attention is also computed within padding, and takes the square of its length.
    """
    longest = max(_longest(batch) for batch in batches.values())
    return _NOBODY - np.arange(length, dtype=np.int32) // longest


def _longest(batch: MemberBatch) -> int:
    """Return the length of the longest segment of a batch."""
    if batch.segments is None:
        return int(batch.tokens.shape[1])
    return max(int(np.unique(row, return_counts=True)[1].max()) for row in batch.segments)


_ON_CPU = Costs(pass_tokens=128)
_ON_GPU = Costs(pass_tokens=1024)
"""On an H200 a recorded pass costs 550 tokens however small it is; more passes mean more recordings."""
_WIDE = 2
"""So many passes of the same members have the maximum size, one to run and one to record: then there is memory for all.
If they grew one by one, hardly any would fit into what smaller ones left free."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """The result of one member's update, read on first use."""

    parts: list[tuple[PassResult, int]] = field(default_factory=list)
    """Each pass's result, and the member's index in it."""
    padded_tokens: int = 0

    @property
    def loss(self) -> float:
        return sum(result.losses[place] for result, place in self.parts)

    @property
    def ranking(self) -> AnswerRanking | None:
        """Of pairs."""
        found = [[row[place] for row in result.ranking] for result, place in self.parts]
        return AnswerRanking.of(*map(sum, zip(*found, strict=True))) if any(found) else None

    @property
    def is_finite(self) -> bool:
        return all(result.finite[place] for result, place in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStepResults:
    """The results of a step, by slot."""

    done: dict[int, Tally]
    failed: dict[int, Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEvaluationResults:
    """Mean losses over the held-out tokens by slot, and failures."""

    losses: dict[int, float]
    failed: dict[int, Exception]
    rankings: dict[int, AnswerRanking] = field(default_factory=dict)
    """Of members with pairs."""


class MultiAdapterStepper:
    """Computes steps; remembers what did not fit, and which slots are kept."""

    def __init__(self, *, is_gpu: bool, tell: Callable[[str], None], free: Callable[[], bool] = lambda: False) -> None:
        """`free` releases memory of the device that is needed for a moment only; it returns False if there was none."""
        self._is_gpu = is_gpu
        self._tell = tell
        self._free = free
        self._costs = _ON_GPU if is_gpu else _ON_CPU
        self._kept: dict[int, MemberPassShape] = {}
        self._shapes: dict[int, MemberPassShape] = {}
        self._wide: Counter[tuple[int, ...]] = Counter()
        self._unrecorded = ""

    def keep_place(self, slot: int) -> None:
        """Keep an empty place for a slot whose member failed, so that the passes of the others keep their shape."""
        if slot in self._shapes:
            self._kept[slot] = self._shapes[slot]

    def take_place(self, slot: int) -> None:
        """Stop keeping an empty place for a slot: it has a member again, or is removed."""
        self._kept.pop(slot, None)
        self._shapes.pop(slot, None)
        # The new member may be larger, and the memory of the former one was freed.
        self._wide = Counter({slots: count for slots, count in self._wide.items() if slot not in slots})

    @property
    def _is_short(self) -> bool:
        """True if something did not fit: rows are then not concatenated, because single rows can be divided."""
        return self._costs.most_tokens is not None

    def reserve(self, most_members: int | None) -> None:
        """Compute at most so many members in a pass; None: memory is reserved for all of them."""
        self._costs = changed(self._costs, most_members=most_members)

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
        """Return each member's mean loss over its held-out examples."""
        failed: dict[int, Exception] = {}
        pending = dict(members)
        scores: dict[int, list[float]] = {}
        singly = False
        while pending:
            try:
                scores = self._score(slots, pending, singly=singly)
            except _PassFailed as failure:
                singly = self._recover(slots, failure, pending, failed) or singly
            else:
                break
        losses = {slot: scores[slot][0] for slot in pending}
        rankings = {slot: AnswerRanking.of(*scores[slot][1:]) for slot in pending if len(scores[slot]) > 1}
        return MemberEvaluationResults(losses=losses, rankings=rankings, failed=failed)

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
        present = {slot: batches[slot] for slot in one.slots if slot in batches}
        rows = lay_rows(one, present, denominators)
        if one.objective is not None:
            totals = {slot: (pending[slot][0], pending[slot][1].answers) for slot in present}
            rows = _with_answers(rows, slots, one, present, totals)
        rates = [member.rate if member else 0.0 for member, _ in who]
        return slots.step(rows, update=[slot in closes for slot in one.slots], rates=rates)

    def _score(self, slots: Slots, pending: Mapping[int, AdapterMember], *, singly: bool) -> dict[int, list[float]]:
        """Return each member's mean loss; of pairs also accuracy and margin."""
        shown: list[tuple[MultiAdapterPass, LossSums]] = []
        for number in range(max(len(member.held_out) for member in pending.values())):
            batches = {
                slot: (m.held_out if self._is_short else m.held_out_close)[number]
                for slot, m in pending.items()
                if number < len(m.held_out)
            }
            for one in self._passes({slot: pending[slot] for slot in batches}, batches, singly=singly, keeps=False):
                rows = lay_rows(one, {slot: batches[slot] for slot in one.slots}, [0.0] * len(one.slots))
                with _as_failure_of(one, pending):
                    if one.objective is not None:
                        totals = {slot: (pending[slot], pending[slot].held_out_answers) for slot in one.slots}
                        rows = _with_answers(rows, slots, one, batches, totals)
                    shown.append((one, slots.losses(rows)))
        sums = {slot: [0.0] * (2 if member.objective is None else 3) for slot, member in pending.items()}
        # The device computes all of them before the first is read.
        for one, found in shown:
            with _as_failure_of(one, pending):
                for slot, parts in zip(one.slots, found.read, strict=True):
                    sums[slot] = [total + part for total, part in zip(sums[slot], parts, strict=True)]
        return {
            slot: [sums[slot][0] / max(1.0, sums[slot][1])] if member.objective is None else sums[slot]
            for slot, member in pending.items()
        }

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
        # The mean if members differ: each has memory of its own.
        largest = [shape.largest for shape in shapes if shape.slot in one.slots]
        return changed(one, length=max(one.length, -(-sum(largest) // len(largest))))

    def _recover(
        self, slots: Slots, failure: _PassFailed, pending: dict[int, Any], failed: dict[int, Exception]
    ) -> bool:
        """Prepare the next try; return True if members are to be tried one by one."""
        one, error = failure.one, failure.error
        live = tuple(slot for slot in one.slots if slot in pending)
        self._kept.clear()
        if not is_out_of_memory(error):
            if _is_broken(error):
                raise ProcessLost(f"device error: {_in_short(error)}") from error
            if len(live) > 1:
                return True
            for slot in live:
                pending.pop(slot)
                failed[slot] = error
            return False
        if self._let_go(slots, error):
            self._tell("out of memory: recorded steps, which only save time, are freed")
            return False
        whole = changed(one, slots=live)
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
        """Report once that steps are slower than they could be, and why."""
        if slots.why_not_recorded != self._unrecorded:
            self._unrecorded = slots.why_not_recorded
            self._tell(f"a step could not be recorded and runs slower: {_in_short(self._unrecorded)}")

    def _let_go(self, slots: Slots, error: BaseException) -> bool:
        """Free the memory of a failed pass; return True if more was freed."""
        # The frames of the pass hold its activations.
        error.__traceback__ = None
        if self._free():
            return True
        if self._is_gpu:
            torch.cuda.empty_cache()
        return slots.let_go()


def _with_answers(
    rows: AdapterSlotRows,
    slots: Slots,
    one: MultiAdapterPass,
    batches: Mapping[int, MemberRows],
    totals: Mapping[int, tuple[AdapterMember, AnswerTotals]],
) -> AdapterSlotRows:
    """Return rows of pairs with their answers, and what the base makes of them if the objective needs it.

    `totals`: members, and the pairs of all passes whose losses are summed.
    """
    assert one.objective is not None  # noqa: S101 - of pairs only
    places, texts = lay_answers(one, batches)
    who = [totals.get(slot) for slot in one.slots]
    pairs = np.array([[1.0 / of[1].pairs if of else 0.0] for of in who])
    laid = AdapterSlotAnswers(
        objective=one.objective,
        places=places,
        pair_shares=np.where(texts[:, ::2] >= 0, pairs, 0.0),
        token_shares=[1.0 / of[1].chosen_tokens if of else 0.0 for of in who],
        betas=[of[0].args.beta or 0.0 if of else 0.0 for of in who],
    )
    rows = replace(rows, answers=laid)
    tables = [of[0].reference if of else None for of in who]
    known = [(table, of) for table, of in zip(tables, texts, strict=True) if table is not None]
    if not known:
        return rows
    if not all(table.has(of) for table, of in known):
        # Of adapters with the same data only the first has to compute it.
        found = slots.reference(rows)
        for table, of, logps in zip(tables, texts, found, strict=True):
            if table is not None:
                table.put(of, logps)
    # One copy to the device for all.
    indexes = torch.as_tensor(texts, device=slots.base.device)
    blank = torch.zeros(texts.shape[1], device=slots.base.device)
    rows_of = zip(tables, indexes, strict=True)
    reference = torch.stack([blank if table is None else table.at(index) for table, index in rows_of])
    return replace(rows, answers=replace(laid, reference=reference))


class _PassFailed(Exception):
    """A pass failed. Members updated before it stay updated."""

    def __init__(self, one: MultiAdapterPass, error: Exception, done: dict[int, Tally], *, is_close: bool) -> None:
        """`is_close`: it had concatenated rows, which are used while memory suffices."""
        super().__init__(str(error))
        self.is_close = is_close
        self.one = one
        self.error = error
        self.done = done


@contextmanager
def _as_failure_of(one: MultiAdapterPass, members: Mapping[int, AdapterMember]) -> Iterator[None]:
    """Raise what goes wrong in an evaluation as a failure of this pass."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        is_close = any(members[slot].is_close for slot in one.slots)
        raise _PassFailed(one, error, {}, is_close=is_close) from error


def _in_short(error: object) -> str:
    """Return the first two sentences of an error: torch continues with advice for programmers."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return ". ".join(line.split(". ")[:2]).removesuffix(".")


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)
