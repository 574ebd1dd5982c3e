"""One member of a company: its settings, data, counters and curve; everything about it but its numbers in the banks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stoker.cookbooks.language.company.closing_up import closed_up, is_worth_closing_up
from stoker.cookbooks.language.company.curve import CurveBook
from stoker.cookbooks.language.company.judging import Judged
from stoker.cookbooks.language.company.passes import Shape, bucket
from stoker.cookbooks.language.company.rates import rate_at, warmup_of
from stoker.cookbooks.language.company.turns import Standing
from stoker.cookbooks.language.data.batches import Cursor, MemberRows, Position, evaluation_rows
from stoker.cookbooks.language.data.examples import ExampleSet
from stoker.cookbooks.language.engine.adapters import AdapterSpec, Optim, Pairs
from stoker.cookbooks.language.settings import LoraArgs
from stoker.model.errors import BadInput
from stoker.model.frozen import fields_of
from stoker.plan.authoring import Seat

_NOT_LEARNED = frozenset(
    {
        "base",
        "base_files",
        "checkpoint_every",
        "checkpoints",
        "base_name",
        "label",
        "threads",
        "turns",
        "most",
        "adapter_index",
    }
)
"""Arguments that change nothing about what is learned, or are known by content elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """All that one update of a member is made from."""

    batches: tuple[MemberRows, ...]
    """One for each pass."""
    close: tuple[MemberRows, ...]
    """The same, rows laid end to end where that is quicker."""
    supervised: int
    """Tokens that are learned, over all of them."""
    tokens: int
    """All tokens that are no padding."""
    after: Position
    """Where its data go on after it."""


class Member:
    """Someone who is trained."""

    def __init__(self, seat: Seat, *, vocabulary: int, closes_up: bool = False) -> None:
        """Read its data. Raises `BadInput` for data that this base can't be shown.

        `closes_up`: its rows may be laid end to end.
        """
        args: LoraArgs = seat.args
        self.seat = seat
        self.slot = seat.number
        self.args = args
        self.examples: ExampleSet = seat.inputs["examples"].load()
        _check(self.examples, vocabulary)
        self._cursor = self._cursor_at(Position())
        self.per_epoch = -(-self._cursor.batches_per_epoch // args.accumulate)
        self.updates = args.steps or args.epochs * self.per_epoch
        self._warmup = warmup_of(self.updates, args.warmup_percent)
        self._lengths = self.examples.lengths[self.examples.kept]
        self.is_close = closes_up and not args.packing and args.batch > 1 and is_worth_closing_up(self._lengths)
        """Whether its rows are laid end to end, as long as there is memory for that."""
        self.held_out = tuple(
            evaluation_rows(self.examples, row_tokens=args.max_seq_len, batch=args.batch, is_packed=args.packing)
        )
        self.held_out_close = self._laid(self.held_out)
        self.update = 0
        """How many updates it has behind it."""
        self.curve = CurveBook(updates=self.updates, per_epoch=self.per_epoch)
        self.judged = Judged()
        self.before: float | None = None
        """Its evaluation before the first update: that of the base."""
        self.left_out = 0
        self.best: Pairs | None = None
        self.notes: list[str] = []
        self.cost_s = 0.0
        self._position = self._cursor.position
        self._ahead: list[Update] = []

    @property
    def spec(self) -> AdapterSpec:
        args = self.args
        return AdapterSpec(
            rank=args.rank,
            alpha=args.alpha,
            targets=args.targets,
            dropout=args.dropout,
            seed=args.seed,
            rslora=args.rslora,
        )

    @property
    def optim(self) -> Optim:
        clip = math.inf if self.args.clip is None else self.args.clip
        return Optim(weight_decay=self.args.weight_decay, clip=clip)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that decide what is learned, plain."""
        named = {one.name: getattr(self.args, one.name) for one in fields(self.args) if one.name not in _NOT_LEARNED}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}

    @property
    def config(self) -> dict[str, Any]:
        """What a checkpoint is bound to: settings and data."""
        return {**self.settings, "examples": str(self.seat.inputs["examples"].digest)}

    @property
    def standing(self) -> Standing:
        return Standing(slot=self.slot, turns=self.args.turns, updates=self.update, eval_loss=self.judged.last)

    @property
    def kept_loss(self) -> float | None:
        """The evaluation of the weights that are kept if it ends now: what it is ranked by."""
        return self.judged.best if self.args.keep == "best" else self.judged.last

    @property
    def epoch(self) -> int:
        """The epoch that its last update belongs to, from 1."""
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
        """Give what its next update is made from; asked twice, the same."""
        self._read_on(1)
        return self._ahead[0]

    def prepare(self) -> None:
        """Have what the update after the next is made from ready."""
        if self.update + 1 < self.updates:
            self._read_on(2)

    def updated(self) -> None:
        """Take note that the update is done."""
        self._position = self.look_ahead().after
        self._ahead.pop(0)
        self.update += 1

    def shape_of(self, batch: MemberRows, *, is_coarse: bool) -> Shape:
        """Say what it brings to a pass. Coarse: with shapes that are few."""
        rows, length = batch.tokens.shape
        if not is_coarse:
            return Shape(slot=self.slot, rows=rows, length=bucket(length, self.args.max_seq_len, is_coarse=False))
        args, is_laid = self.args, batch.segments is not None and not self.args.packing
        if is_laid:
            usual = math.ceil(args.batch * float(self._lengths.mean()))
            largest = int(np.sort(self._lengths)[-args.batch :].sum())
        else:
            usual = largest = args.max_seq_len if args.packing else int(self._lengths.max())
        most = args.max_seq_len * (args.batch if is_laid else 1)
        padded, usual, largest = (bucket(one, most, is_coarse=True) for one in (length, usual, largest))
        # A whole batch's rows always, also at the end of an epoch.
        rows = 1 if is_laid else args.batch
        return Shape(slot=self.slot, rows=rows, length=padded, usual=usual, largest=largest, is_laid=is_laid)

    def state(self) -> dict[str, Any]:
        """Give where it stands, plain: the part of a checkpoint that is not in the banks."""
        return {
            "step": self.update,
            "rng": {"seed": self.args.seed, "epoch": self._position.epoch, "batch": self._position.batch},
            "sched": {
                "judged": fields_of(self.judged),
                "curve": self.curve.state(),
                "before": self.before,
                "left_out": self.left_out,
                "cost_s": self.cost_s,
                "notes": list(self.notes),
            },
            "best": self.best,
            "config": self.config,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        said = state["sched"]
        self.update = state["step"]
        self.judged = Judged(**said["judged"])
        self.curve.go_on(said["curve"])
        self.before, self.left_out, self.cost_s = said["before"], said["left_out"], said["cost_s"]
        self.notes = list(said["notes"])
        self.best = state["best"]
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
            is_packed=args.packing,
            at=position,
        )


def _check(examples: ExampleSet, vocabulary: int) -> None:
    """Refuse tokens that the base has no row for: on a GPU they would end the process, and everybody in it."""
    largest = int(examples.tokens.max(initial=0))
    if largest >= vocabulary:
        raise BadInput(
            f"the data hold token {largest}, and the base knows {vocabulary}",
            hint="was it tokenised with the tokenizer of another base?",
        )
