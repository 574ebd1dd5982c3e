"""Examples as tokens: one long array, the start of each example, learned tokens, held-out examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import numpy.typing as npt

from stoker.cookbooks.language.arguments import IGNORED
from stoker.core import jsontext
from stoker.core.frozen import changed, frozen

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_FACTS = "facts.json"
_WEIGHT_TURN = 1 << 32
"""The turns of a seed from here on choose examples by weight; those below are orders of epochs."""


class SourceFacts(TypedDict):
    """What became of one source of several, or of a weighted one."""

    name: str
    weight: float
    """How often its examples are drawn in an epoch."""
    first: int
    """The index of its first example; they follow each other."""
    examples: int
    held_out: int
    tokens: int
    cut: int
    skipped: int


class ExampleFacts(TypedDict):
    """The result of the tokenising stage."""

    examples: int
    """Number of examples, held-out ones included."""
    held_out: int
    tokens: int
    trained_tokens: int
    """Number of tokens that are learned."""
    longest: int
    """Tokens of the longest example."""
    cut: int
    """Number of examples longer than `max_seq_len`."""
    skipped: int
    """Number of examples without a token to learn."""
    skipped_lines: list[int]
    """Line numbers of the first of them, from 1."""
    max_seq_len: int
    train_on: str
    forms: dict[str, int]
    """Number of lines by form."""
    template: str
    """The chat template: `tokenizer`, `chatml`, or empty without chats."""
    pad: int
    """The padding token."""
    notes: list[str]
    """Notes for the user, one sentence each."""
    sides: NotRequired[int]
    """Texts of an example: 2 of a pair, first the chosen one; otherwise 1."""
    sources: NotRequired[list[SourceFacts]]
    """Each source, if there are several or one has a weight."""


@frozen
class ExampleSet:
    """All examples of one file with one tokenizer. A pair is two texts, one after the other."""

    tokens: Tokens
    trained: Flags
    """True for a token that is learned: predicted from the tokens before it."""
    starts: Ints
    """The start of each text, and the end of the last."""
    held_out: Ints
    """Indexes of the held-out examples, ascending."""
    facts: ExampleFacts

    @property
    def sides(self) -> int:
        return self.facts.get("sides", 1)

    @property
    def lengths(self) -> Ints:
        """The length of each text."""
        return np.diff(self.starts)

    @property
    def kept(self) -> Ints:
        """Indexes of the training examples, ascending."""
        is_kept = np.ones((len(self.starts) - 1) // self.sides, dtype=bool)
        is_kept[self.held_out] = False
        return np.flatnonzero(is_kept).astype(np.int64)

    def texts_of(self, numbers: Ints) -> Ints:
        """Return the indexes of the texts of examples: `[examples, sides]`."""
        return numbers[:, None] * self.sides + np.arange(self.sides)

    def drawn(self, seed: int) -> Ints:
        """Return the indexes of the examples of an epoch: all training examples, by the weights of their sources.

        Of a weight of 2.5 each example is there twice, and half of them, chosen by the seed, once more.
        """
        kept = self.kept
        sources = self.facts.get("sources", [])
        if all(source["weight"] == 1 for source in sources):
            return kept
        parts = []
        for turn, source in enumerate(sources):
            own = kept[(kept >= source["first"]) & (kept < source["first"] + source["examples"])]
            times = int(source["weight"])
            more = int((source["weight"] - times) * len(own) + 0.5)
            some = drawn_order(seed, _WEIGHT_TURN + turn, len(own))[:more]
            parts += [own] * times + [own[np.sort(some)]]
        return np.sort(np.concatenate(parts), kind="stable")

    def example(self, number: int) -> tuple[Tokens, Flags]:
        """Return the tokens of a text, and which of them are learned."""
        begin, end = self.starts[number], self.starts[number + 1]
        return self.tokens[begin:end], self.trained[begin:end]


def write_examples(value: ExampleSet, folder: Path) -> None:
    """Write examples into a folder; arrays that are files there already stay as they are."""
    for name, array in _arrays(value):
        path = folder / f"{name}.npy"
        if getattr(array, "filename", None) != path:
            np.save(path, array, allow_pickle=False)
    (folder / _FACTS).write_text(jsontext.dumps(value.facts, indent=2), encoding="utf-8", newline="")


def read_examples(folder: Path) -> ExampleSet:
    """Read what `write_examples` wrote; the long arrays are memory-mapped."""
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


class ArrayFile:
    """An array that grows in a file, so that it takes no memory: the same bytes that numpy saves."""

    def __init__(self, path: Path, dtype: type[np.generic]) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self._count = 0
        self._write_header()

    def append(self, array: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        self._file.write(array.astype(self._dtype, copy=False).tobytes())
        self._count += len(array)

    def finish(self) -> npt.NDArray[Any]:
        """Close the file and return the array, memory-mapped."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        mapped: npt.NDArray[Any] = np.load(self._path, mmap_mode="r" if self._count else None)
        return mapped

    def close(self) -> None:
        """Close the file, whole or not."""
        self._file.close()

    def _write_header(self) -> None:
        # Its length does not depend on the count: numpy leaves space for any.
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(self._file, header)


# Batches of one member: shuffled by seed and epoch, resumable anywhere.
#
# The seed decides once which examples share a row, so that every epoch has the same number of batches; the order of
# rows is drawn again for each epoch. The same seed gives the same batches on every machine.


# Packing of examples into rows: first fit. Pure.


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Return rows of indexes into `lengths`, no row longer than `row_tokens`; every index is in one row.

    Rows are in the order of their first example, and so are the indexes in a row. Raises `ValueError` for a length
    above `row_tokens`.
    """
    rows: list[list[int]] = []
    # A tree over the free space of all rows: a node has the maximum of the rows below it.
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


# Orders drawn from a seed, the same on every machine and with every version.


def drawn_order(seed: int, turn: int, count: int) -> npt.NDArray[np.int64]:
    """Return a random order of `count` indexes; `turn` distinguishes the orders of one seed."""
    # Raw bits of a named generator: numpy guarantees those, but not its shuffles.
    drawn = np.random.Philox(key=[seed, turn]).random_raw(count)
    return np.argsort(drawn, kind="stable").astype(np.int64)


@frozen
class Position:
    """The position of a cursor: before this batch of this epoch, both from 0."""

    epoch: int = 0
    batch: int = 0


@frozen
class AnswerRows:
    """The answers in rows of pairs: each text has one."""

    places: Ints
    """`[rows, T]`: the answer of a label among those of the rows, -1 if it is not of one. Even ones are chosen."""
    texts: Ints
    """The index of each answer's text; -1 for those that a smaller batch lacks."""
    pairs: int
    chosen_tokens: int
    """Number of labels of chosen texts."""


@frozen
class MemberRows:
    """Rows of one member, padded to the longest of them."""

    tokens: Ints
    """`[rows, T]`, padded."""
    labels: Ints
    """`[rows, T]`: the next token, or `IGNORED`; never one of another example."""
    segments: npt.NDArray[np.int32] | None
    """`[rows, T]`: the example of a token within its row, from 0; padding is one more. None: one example per row."""
    supervised: int
    """Number of labels that count."""
    tokens_used: int
    """Number of tokens without padding."""
    epoch: int = 0
    """From 0."""
    ends_epoch: bool = False
    answers: AnswerRows | None = None
    """Of pairs: two rows each."""


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
        kept = examples.drawn(seed)
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
            message = f"batch {at} is beyond the {self.batches_per_epoch} batches of an epoch"
            raise ValueError(message)

    @property
    def position(self) -> Position:
        """Where to resume; it alone determines what `next` returns."""
        return self._at

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self._rows) // self._batch)

    def next(self) -> MemberRows:
        """Return the next batch: never of two epochs, so the last one of an epoch may have fewer rows."""
        at = self._at
        if at.epoch != self._epoch:
            self._epoch, self._turns = at.epoch, drawn_order(self._seed, at.epoch + 1, len(self._rows))
        turns = self._turns[at.batch * self._batch : (at.batch + 1) * self._batch]
        is_last = at.batch + 1 == self.batches_per_epoch
        self._at = Position(epoch=at.epoch + 1) if is_last else Position(epoch=at.epoch, batch=at.batch + 1)
        rows = [self._rows[turn] for turn in turns]
        laid = _laid(self._examples, rows, self._batch, is_packed=self._is_packed)
        return changed(laid, epoch=at.epoch, ends_epoch=is_last)


def evaluation_rows(examples: ExampleSet, *, row_tokens: int, batch: int, is_packed: bool = False) -> list[MemberRows]:
    """Return the held-out examples as batches, always the same and in the same order; empty if none is held out."""
    return list(_evaluation(examples, row_tokens, batch, is_packed=is_packed))


def _evaluation(examples: ExampleSet, row_tokens: int, batch: int, *, is_packed: bool) -> Iterator[MemberRows]:
    rows = _rows(examples, examples.held_out, row_tokens, is_packed=is_packed)
    for first in range(0, len(rows), batch):
        yield _laid(examples, rows[first : first + batch], batch, is_packed=is_packed)


def _rows(examples: ExampleSet, numbers: Ints, row_tokens: int, *, is_packed: bool) -> list[Ints]:
    """Return the indexes of the texts in each row; of a pair, whose texts get a row each, both."""
    texts = examples.texts_of(numbers)
    lengths = examples.lengths[texts]
    if not is_packed or examples.sides > 1:
        if lengths.size and lengths.max() > row_tokens:
            message = f"an example of {lengths.max()} tokens does not go into a row of {row_tokens}"
            raise ValueError(message)
        return list(texts)
    # The longest first: then the short ones fill what is left, and about a twentieth fewer rows are needed.
    ordered = np.argsort(-lengths[:, 0], kind="stable")
    return [numbers[ordered[places]] for places in pack(lengths[ordered, 0].tolist(), row_tokens)]


def _laid(examples: ExampleSet, rows: Sequence[Ints], batch: int, *, is_packed: bool) -> MemberRows:
    if examples.sides > 1:
        texts = np.concatenate(rows)
        return _with_answers(examples, _filled(examples, list(texts[:, None]), is_packed=False), texts, batch)
    return _filled(examples, rows, is_packed=is_packed)


def _with_answers(examples: ExampleSet, rows: MemberRows, texts: Ints, batch: int) -> MemberRows:
    """Return rows of pairs with their answers; where prompts are learned, with labels for those of chosen texts."""
    count, labels = len(texts), rows.labels
    places = np.where(labels != IGNORED, np.arange(count)[:, None], -1)
    if examples.facts.get("train_on") == "all":
        ahead = np.pad(rows.tokens[::2, 1:], ((0, 0), (0, 1)))
        is_within = np.arange(labels.shape[1]) < examples.lengths[texts[::2]][:, None] - 1
        labels = labels.copy()
        labels[::2] = np.where(is_within, ahead, IGNORED)
    every = np.full(examples.sides * batch, -1, dtype=np.int64)
    every[:count] = texts
    answers = AnswerRows(
        places=places,
        texts=every,
        pairs=count // examples.sides,
        chosen_tokens=int((labels[::2] != IGNORED).sum()),
    )
    return changed(rows, labels=labels, supervised=int((labels != IGNORED).sum()), answers=answers)


def _filled(examples: ExampleSet, rows: Sequence[Ints], *, is_packed: bool) -> MemberRows:
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
    )
