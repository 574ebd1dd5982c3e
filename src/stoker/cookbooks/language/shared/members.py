"""One training: its settings, data, counters and curve. Its weights are elsewhere: in the banks, or in a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stoker.authoring import Member
from stoker.cookbooks.language.arguments import IGNORED, FullArgs, LoraArgs, Objective
from stoker.cookbooks.language.compute.banks import AdapterSpec, Optim, Pairs
from stoker.cookbooks.language.compute.objectives import ReferenceLogps
from stoker.cookbooks.language.examples import Cursor, ExampleSet, MemberRows, Position, evaluation_rows
from stoker.cookbooks.language.shared.curves import (
    AnswerRanking,
    CurveRecorder,
    MemberEvaluations,
    rate_at,
    warmup_of,
)
from stoker.cookbooks.language.shared.pass_schedule import AdapterProgress, MemberPassShape, bucket
from stoker.core.errors import BadInput
from stoker.core.frozen import changed, frozen

# Concatenated rows: the same sequences, isolated from each other, in one row without padding.
#
# Rows padded to the longest of them waste computation, and have as many shapes as there are lengths. The sum of several
# lengths varies little: few shapes, and each of them can be recorded.

_WORTH = 0.85
"""Relative to the longest: on an H200 a row of several sequences takes a fourteenth longer than as many rows of one,
and its padding costs the same again."""


def is_worth_closing_up(lengths: npt.NDArray[np.int64]) -> bool:
    """Return True if examples of such lengths are faster concatenated than in rows of their own."""
    return len(lengths) > 0 and float(lengths.mean()) < _WORTH * float(lengths.max())


def closed_up(rows: MemberRows) -> MemberRows:
    """Return all rows as one. Tokens after a row's last label are left out."""
    is_label = rows.labels != IGNORED
    lengths = is_label.shape[1] - np.argmax(is_label[:, ::-1], axis=1)
    taught = np.flatnonzero(is_label.any(axis=1))
    if not len(taught):
        return rows

    def joined(array: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.concatenate([array[row, : lengths[row]] for row in taught])[None]

    segments = np.repeat(np.arange(len(taught), dtype=np.int32), lengths[taught])
    # Every side of a pair has labels.
    answers = None if rows.answers is None else changed(rows.answers, places=joined(rows.answers.places))
    return changed(
        rows, tokens=joined(rows.tokens), labels=joined(rows.labels), segments=segments[None], answers=answers
    )


# Pairs of answers in one update or evaluation, and how they are ranked.


@frozen
class AnswerTotals:
    """What the losses of some rows of pairs are divided by."""

    pairs: int = 0
    chosen_tokens: int = 0

    @classmethod
    def of(cls, batches: Iterable[MemberRows]) -> AnswerTotals:
        """Return those of rows; zero without pairs."""
        found = [rows.answers for rows in batches if rows.answers is not None]
        return cls(pairs=sum(one.pairs for one in found), chosen_tokens=sum(one.chosen_tokens for one in found))


_NOT_LEARNED = frozenset(
    {
        "base",
        "base_files",
        "checkpoint_every",
        "checkpoints",
        "base_name",
        "label",
        "threads",
        "ranks",
        "gradient_checkpointing",
        "turns",
        "most",
        "adapter_index",
    }
)
"""Arguments that do not change what is learned, or whose content is elsewhere in the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The input of one update of a member."""

    batches: tuple[MemberRows, ...]
    """One for each pass."""
    close: tuple[MemberRows, ...]
    """The same, concatenated if that is faster."""
    supervised: int
    """Number of learned tokens."""
    answers: AnswerTotals
    """Of pairs."""
    tokens: int
    """Number of tokens without padding."""
    after: Position
    """The position of its data after it."""

    @property
    def weight(self) -> int:
        """What its mean loss is of: pairs, or else learned tokens."""
        return self.answers.pairs or self.supervised


Args = TypeVar("Args", LoraArgs, FullArgs)


class TrainedMember(Generic[Args]):
    """A training of an adapter or of all weights."""

    def __init__(self, attempt: Member, *, vocabulary: int, closes_up: bool = False, mixes: str = "") -> None:
        """Read its data. Raises `BadInput` for tokens that the base does not have.

        `closes_up`: its rows may be concatenated. `mixes`: the family of a base that does not keep the texts of one row
        apart, so that they are not packed.
        """
        self.attempt = attempt
        self.args: Args = attempt.args
        self.notes: list[str] = []
        if self.args.packing and mixes:
            self.args = changed(self.args, packing=False)
            self.notes.append(f"{mixes} does not keep texts of one row apart: one text per row, packing=false.")
            attempt.job.log(self.notes[-1])
        args = self.args
        self.examples: ExampleSet = attempt.inputs["examples"].load()
        _check(self.examples, vocabulary)
        self._cursor = self._cursor_at(Position())
        self.per_epoch = -(-self._cursor.batches_per_epoch // args.accumulate)
        self.updates = args.steps or args.epochs * self.per_epoch
        self._warmup = warmup_of(self.updates, args.warmup_percent)
        self._lengths = self.examples.lengths[self.examples.texts_of(self.examples.kept).flatten()]
        is_single = args.batch * self.examples.sides == 1
        self.is_close = closes_up and not self.args.packing and not is_single and is_worth_closing_up(self._lengths)
        """True if its rows are concatenated while memory suffices."""
        self.held_out = tuple(
            evaluation_rows(self.examples, row_tokens=args.max_seq_len, batch=args.batch, is_packed=self.args.packing)
        )
        self.update = 0
        """Number of its updates."""
        self.curve = CurveRecorder(updates=self.updates, per_epoch=self.per_epoch)
        self.judged = MemberEvaluations()
        self.before_ranking: AnswerRanking | None = None
        self.before: float | None = None
        """Its evaluation before the first update: that of the base."""
        self._position = self._cursor.position
        self._ahead: list[Update] = []

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that decide what is learned, as plain data."""
        named = {one.name: getattr(self.args, one.name) for one in fields(self.args) if one.name not in _NOT_LEARNED}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}

    @property
    def config(self) -> dict[str, Any]:
        """The identity of a checkpoint: settings and data."""
        return {**self.settings, "examples": str(self.attempt.inputs["examples"].digest)}

    @property
    def kept_loss(self) -> float | None:
        """The evaluation of the weights that are kept if it ends now: its rank."""
        return self.judged.best if self.args.keep == "best" else self.judged.last

    @property
    def kept_ranking(self) -> AnswerRanking | None:
        """The same of the answers of pairs."""
        return self.judged.best_ranking if self.args.keep == "best" else self.judged.last_ranking

    @property
    def epoch(self) -> int:
        """The epoch of its last update, from 1."""
        return max(1, -(-self.update // self.per_epoch))

    @property
    def is_at_epoch_end(self) -> bool:
        return self.update > 0 and (self.update % self.per_epoch == 0 or self.update >= self.updates)

    @property
    def rate(self) -> float:
        """The learning rate of its next update."""
        return self._rate_of(self.update)

    @property
    def last_rate(self) -> float:
        """The learning rate of its last update."""
        return self._rate_of(max(0, self.update - 1))

    def look_ahead(self) -> Update:
        """Return the input of its next update; repeated calls return the same."""
        self._read_on(1)
        return self._ahead[0]

    def prepare(self) -> None:
        """Prepare the input of the update after the next."""
        if self.update + 1 < self.updates:
            self._read_on(2)

    def updated(self) -> None:
        """Record that the update is done."""
        self._position = self.look_ahead().after
        self._ahead.pop(0)
        self.update += 1

    def state(self) -> dict[str, Any]:
        """Return its state as plain data: the part of a checkpoint that is not its weights."""
        return {
            "step": self.update,
            "rng": {"seed": self.args.seed, "epoch": self._position.epoch, "batch": self._position.batch},
            "sched": {
                "judged": self.judged.state(),
                "curve": self.curve.state(),
                "before": self.before,
                "before_ranking": None if self.before_ranking is None else self.before_ranking.state(),
                "notes": list(self.notes),
            },
            "config": self.config,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        said = state["sched"]
        self.update = state["step"]
        self.judged = MemberEvaluations.from_state(said["judged"])
        self.before, self.before_ranking = said["before"], AnswerRanking.from_state(said["before_ranking"])
        self.curve.resume(said["curve"])
        self.notes = list(said["notes"])
        self._position = Position(epoch=state["rng"]["epoch"], batch=state["rng"]["batch"])
        self._cursor = self._cursor_at(self._position)

    def _read_on(self, count: int) -> None:
        while len(self._ahead) < count:
            first = (self.update + len(self._ahead)) % self.per_epoch * self.args.accumulate
            passes = min(self.args.accumulate, self._cursor.batches_per_epoch - first)
            batches = tuple(self._cursor.next() for _ in range(passes))
            self._ahead.append(
                Update(
                    batches=batches,
                    close=self._laid(batches),
                    supervised=sum(batch.supervised for batch in batches),
                    answers=AnswerTotals.of(batches),
                    tokens=sum(batch.tokens_used for batch in batches),
                    after=self._cursor.position,
                )
            )

    def _laid(self, batches: tuple[MemberRows, ...]) -> tuple[MemberRows, ...]:
        return tuple(closed_up(rows) for rows in batches) if self.is_close else batches

    def _rate_of(self, update: int) -> float:
        args = self.args
        return rate_at(update, peak=args.lr, schedule=args.schedule, warmup=self._warmup, updates=self.updates)

    def _cursor_at(self, position: Position) -> Cursor:
        args = self.args
        return Cursor(
            self.examples,
            row_tokens=args.max_seq_len,
            batch=args.batch,
            seed=args.seed,
            is_packed=self.args.packing,
            at=position,
        )


class AdapterMember(TrainedMember[LoraArgs]):
    """An adapter that is trained in a shared process."""

    def __init__(  # noqa: PLR0913 - its attempt, and what its base is like
        self,
        attempt: Member,
        *,
        vocabulary: int,
        closes_up: bool = False,
        mixes: str = "",
        targets: tuple[str, ...] = (),
        whole: tuple[str, ...] = (),
        is_transposed: bool = False,
    ) -> None:
        """Read its data, as `TrainedMember` does.

        `targets`: the meaning of its targets in the base, whose matrices may be kept transposed. `whole`: full names of
        the modules that it trains whole.
        """
        super().__init__(attempt, vocabulary=vocabulary, closes_up=closes_up, mixes=mixes)
        self.slot = attempt.number
        self._targets = targets
        self._whole = whole
        self._is_transposed = is_transposed
        self.held_out_close = self._laid(self.held_out)
        self.held_out_answers = AnswerTotals.of(self.held_out)
        self.reference: ReferenceLogps | None = None
        """Of dpo: set by the shared process, and the same for all members with these data."""
        self.left_out = 0
        self._best: Callable[[], Pairs] | None = None
        self.cost_s = 0.0

    @property
    def spec(self) -> AdapterSpec:
        args = self.args
        return AdapterSpec(
            rank=args.rank,
            alpha=args.alpha,
            targets=self._targets or args.targets,
            dropout=args.dropout,
            seed=args.seed,
            rslora=args.rslora,
            dora=args.dora,
            whole=self._whole,
            is_transposed=self._is_transposed,
        )

    @property
    def best(self) -> Pairs | None:
        """The weights at its best evaluation. Waits until they are copied from the device."""
        return None if self._best is None else self._best()

    def set_best(self, weights: Callable[[], Pairs]) -> None:
        """Set what returns the best weights, now or later."""
        self._best = weights

    @property
    def objective(self) -> Objective | None:
        return self.args.objective

    @property
    def optim(self) -> Optim:
        clip = math.inf if self.args.clip is None else self.args.clip
        return Optim(weight_decay=self.args.weight_decay, clip=clip, b_rate=self.args.lora_plus)

    @property
    def evaluation_key(self) -> tuple[object, ...]:
        """What its evaluation before training depends on, beside the base."""
        args = self.args
        return (self.attempt.inputs["examples"].digest, args.objective, args.beta, args.max_seq_len, args.packing)

    @property
    def standing(self) -> AdapterProgress:
        return AdapterProgress(slot=self.slot, turns=self.args.turns, updates=self.update, eval_loss=self.judged.last)

    def shape_of(self, batch: MemberRows, *, is_coarse: bool) -> MemberPassShape:
        """Return its shape in a pass. Coarse: few different shapes."""
        rows, length = batch.tokens.shape
        if not is_coarse:
            length = bucket(length, self.args.max_seq_len, is_coarse=False)
            return MemberPassShape(slot=self.slot, rows=rows, length=length, objective=self.objective)
        args, is_laid = self.args, batch.segments is not None and not self.args.packing
        every = args.batch * self.examples.sides
        if is_laid:
            usual = math.ceil(every * float(self._lengths.mean()))
            largest = int(np.sort(self._lengths)[-every:].sum())
        else:
            usual = largest = args.max_seq_len if self.args.packing else int(self._lengths.max())
        most = args.max_seq_len * (every if is_laid else 1)
        padded, usual, largest = (bucket(one, most, is_coarse=True) for one in (length, usual, largest))
        # Always the rows of a whole batch, also at the end of an epoch.
        rows = 1 if is_laid else every
        return MemberPassShape(
            slot=self.slot,
            rows=rows,
            length=padded,
            usual=usual,
            largest=largest,
            is_laid=is_laid,
            objective=self.objective,
        )

    def state(self) -> dict[str, Any]:
        """Return its state as plain data: the part of a checkpoint that is not in the banks."""
        state = super().state()
        reference = None if self.reference is None else self.reference.state()
        more = {"left_out": self.left_out, "cost_s": self.cost_s, "reference": reference}
        return {**state, "sched": {**state["sched"], **more}, "best": self.best}

    def resume(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        super().resume(state)
        said = state["sched"]
        if self.reference is not None:
            self.reference.resume(said["reference"])
        self.left_out, self.cost_s = said["left_out"], said["cost_s"]
        best: Pairs | None = state["best"]
        if best is not None:
            self.set_best(lambda: best)


def _check(examples: ExampleSet, vocabulary: int) -> None:
    """Raise for tokens that the base does not have: on a GPU they would end the process with all its members."""
    largest = int(examples.tokens.max(initial=0))
    if largest >= vocabulary:
        raise BadInput(
            f"the data have token {largest}; the base's vocabulary has {vocabulary}",
            hint="tokenise it with the tokenizer of this base",
        )
