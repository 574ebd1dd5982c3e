"""Examples as tokens: one long array of them, where each example begins, which tokens are learned, what is held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, cast

import numpy as np
import numpy.typing as npt

from stoker.core import jsontext
from stoker.core.frozen import frozen

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_FACTS = "facts.json"


class ExampleFacts(TypedDict):
    """What the tokenising stage found."""

    examples: int
    """To train on and held out."""
    held_out: int
    tokens: int
    trained_tokens: int
    """Tokens that are learned."""
    longest: int
    """Tokens of the longest example."""
    cut: int
    """Examples that were longer than `max_seq_len`."""
    skipped: int
    """Examples with nothing to learn in them."""
    skipped_lines: list[int]
    """Where the first of them stand in the file, from 1."""
    max_seq_len: int
    train_on: str
    forms: dict[str, int]
    """How many lines of which form there are."""
    template: str
    """Whose chat template was used: `tokenizer`, `chatml`, or nothing where there are no chats."""
    pad: int
    """The token that fills rows."""
    notes: list[str]
    """One sentence each, for people."""


@frozen
class ExampleSet:
    """All examples of one file under one tokenizer."""

    tokens: Tokens
    trained: Flags
    """Whether a token is learned: predicted from what stands before it."""
    starts: Ints
    """Where each example begins, and the end of the last."""
    held_out: Ints
    """Numbers of the examples that are held out, ascending."""
    facts: ExampleFacts

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @property
    def kept(self) -> Ints:
        """Numbers of the examples to train on, ascending."""
        is_kept = np.ones(len(self.starts) - 1, dtype=bool)
        is_kept[self.held_out] = False
        return np.flatnonzero(is_kept).astype(np.int64)

    def example(self, number: int) -> tuple[Tokens, Flags]:
        """Return the tokens of an example, and which of them are learned."""
        begin, end = self.starts[number], self.starts[number + 1]
        return self.tokens[begin:end], self.trained[begin:end]


def write_examples(value: ExampleSet, folder: Path) -> None:
    """Write examples into a folder."""
    for name, array in _arrays(value):
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    (folder / _FACTS).write_text(jsontext.dumps(value.facts, indent=2), encoding="utf-8", newline="")


def read_examples(folder: Path) -> ExampleSet:
    """Read what `write_examples` wrote; the long arrays stay on the disk until they are used."""
    read: dict[str, Any] = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r" if name in {"tokens", "trained"} else None)
        for name in ("tokens", "trained", "starts", "held_out")
    }
    facts = cast("ExampleFacts", jsontext.loads((folder / _FACTS).read_bytes()))
    return ExampleSet(facts=facts, **read)


def _arrays(value: ExampleSet) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    yield "tokens", value.tokens.astype(np.int32, copy=False)
    yield "trained", value.trained.astype(np.bool_, copy=False)
    yield "starts", value.starts.astype(np.int64, copy=False)
    yield "held_out", value.held_out.astype(np.int64, copy=False)


# Rows of tokens for one member, batch after batch: shuffled by seed and epoch, and resumable anywhere.
#
# Which examples share a row is settled once, by the seed, so that every epoch has the same number of batches; the order
# of the rows is drawn again for each epoch. The same seed gives the same batches on every machine.


# Putting examples into rows: each into the first row that has room for it. Pure.


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Return rows of places in `lengths`, no row longer than `row_tokens`; every place stands in one row.

    Rows are in the order in which they were begun, and so are the places in a row. Raises `ValueError` for a length
    that no row can hold.
    """
    rows: list[list[int]] = []
    # A tree over the room of all rows that could be needed: a node knows the most room of any row below it.
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [row_tokens] * (2 * leaves)
    for place, length in enumerate(lengths):
        if not 0 < length <= row_tokens:
            message = f"an example of {length} tokens does not go into a row of {row_tokens}"
            raise ValueError(message)
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        row = node - leaves
        if row == len(rows):
            rows.append([])
        rows[row].append(place)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows


# Orders that are drawn from a seed, the same on every machine and with every version.


def drawn_order(seed: int, turn: int, count: int) -> npt.NDArray[np.int64]:
    """Draw an order of `count` places; `turn` tells apart the orders of one seed."""
    # Raw bits of a named generator: numpy promises those for ever, its shuffles it does not.
    drawn = np.random.Philox(key=[seed, turn]).random_raw(count)
    return np.argsort(drawn, kind="stable").astype(np.int64)


IGNORED: Final = -100
"""The label of a token whose successor is not learned."""


@frozen
class Position:
    """Where a cursor stands: before this batch of this epoch, both from 0."""

    epoch: int = 0
    batch: int = 0


@frozen
class MemberRows:
    """Some rows of one member, as wide as the longest of them."""

    tokens: Ints
    """`[rows, T]`, filled up with the padding token."""
    labels: Ints
    """`[rows, T]`: the token after each, or `IGNORED`; never one of another example."""
    segments: npt.NDArray[np.int32] | None
    """`[rows, T]`: which example of its row a token belongs to, from 0; padding is one more. None: one each."""
    supervised: int
    """Labels that count."""
    tokens_used: int
    """Tokens that are no padding."""
    epoch: int = 0
    """From 0."""
    ends_epoch: bool = False


class Cursor:
    """The batches of one member, from a position on, without end."""

    def __init__(
        self,
        examples: ExampleSet,
        *,
        row_tokens: int,
        batch: int,
        seed: int,
        is_packed: bool = False,
        at: Position = Position(),  # noqa: B008 - frozen
    ) -> None:
        if batch < 1:
            message = f"a batch has one row at least, not {batch}"
            raise ValueError(message)
        self._examples = examples
        self._batch = batch
        self._seed = seed
        kept = examples.kept
        if not len(kept):
            message = "there are no examples to train on"
            raise ValueError(message)
        shuffled = kept[drawn_order(seed, 0, len(kept))] if is_packed else kept
        self._rows = _rows(examples, shuffled, row_tokens, is_packed=is_packed)
        self._is_packed = is_packed
        self._at = at
        self._epoch = -1
        self._turns: Ints = np.empty(0, dtype=np.int64)
        if not 0 <= at.batch < self.batches_per_epoch or at.epoch < 0:
            message = f"an epoch has {self.batches_per_epoch} batches, so {at} is in none"
            raise ValueError(message)

    @property
    def position(self) -> Position:
        """Where to go on from; what `next` gives follows from it alone."""
        return self._at

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self._rows) // self._batch)

    def next(self) -> MemberRows:
        """Return the next batch: never of two epochs, so that the last one of an epoch may have fewer rows."""
        at = self._at
        if at.epoch != self._epoch:
            self._epoch, self._turns = at.epoch, drawn_order(self._seed, at.epoch + 1, len(self._rows))
        turns = self._turns[at.batch * self._batch : (at.batch + 1) * self._batch]
        is_last = at.batch + 1 == self.batches_per_epoch
        self._at = Position(epoch=at.epoch + 1) if is_last else Position(epoch=at.epoch, batch=at.batch + 1)
        rows = [self._rows[turn] for turn in turns]
        return _laid(self._examples, rows, is_packed=self._is_packed, epoch=at.epoch, ends_epoch=is_last)


def evaluation_rows(examples: ExampleSet, *, row_tokens: int, batch: int, is_packed: bool = False) -> list[MemberRows]:
    """Return the held-out examples as batches, always the same and in the same order; none if nothing is held out."""
    return list(_evaluation(examples, row_tokens, batch, is_packed=is_packed))


def _evaluation(examples: ExampleSet, row_tokens: int, batch: int, *, is_packed: bool) -> Iterator[MemberRows]:
    rows = _rows(examples, examples.held_out, row_tokens, is_packed=is_packed)
    for first in range(0, len(rows), batch):
        yield _laid(examples, rows[first : first + batch], is_packed=is_packed)


def _rows(examples: ExampleSet, numbers: Ints, row_tokens: int, *, is_packed: bool) -> list[Ints]:
    """Return the numbers of the examples in each row."""
    lengths = examples.lengths[numbers]
    if not is_packed:
        if len(lengths) and lengths.max() > row_tokens:
            message = f"an example of {lengths.max()} tokens does not go into a row of {row_tokens}"
            raise ValueError(message)
        return list(numbers[:, None])
    return [numbers[places] for places in pack(lengths.tolist(), row_tokens)]


def _laid(
    examples: ExampleSet, rows: Sequence[Ints], *, is_packed: bool, epoch: int = 0, ends_epoch: bool = False
) -> MemberRows:
    starts = examples.starts
    used = [int((starts[row + 1] - starts[row]).sum()) for row in rows]
    size = len(rows), max(used)
    tokens = np.full(size, examples.facts["pad"], dtype=np.int64)
    labels = np.full(size, IGNORED, dtype=np.int64)
    segments = np.zeros(size, dtype=np.int32)
    for number, row in enumerate(rows):
        begin = 0
        for segment, example in enumerate(row):
            ids, trained = examples.example(int(example))
            end = begin + len(ids)
            tokens[number, begin:end] = ids
            labels[number, begin : end - 1] = np.where(trained[1:], ids[1:], IGNORED)
            segments[number, begin:end] = segment
            begin = end
        segments[number, begin:] = len(row)
    return MemberRows(
        tokens=tokens,
        labels=labels,
        segments=segments if is_packed else None,
        supervised=int((labels != IGNORED).sum()),
        tokens_used=sum(used),
        epoch=epoch,
        ends_epoch=ends_epoch,
    )
