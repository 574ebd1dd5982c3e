"""Examples as tokens: one long array of them, where each example begins, which tokens are learned, what is held out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, cast

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
