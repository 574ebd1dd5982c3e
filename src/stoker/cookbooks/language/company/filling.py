"""Members' rows, each of its own shape, laid into the arrays of one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.cookbooks.language.company.passes import Pass
from stoker.cookbooks.language.data.batches import IGNORED
from stoker.cookbooks.language.engine.rows import Rows

_NOBODY = -1
"""The first segment of padding in packed rows; others go down from here."""


class RowsOfOne(Protocol):
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


def lay_rows(one: Pass, batches: Mapping[int, RowsOfOne], denominators: Sequence[float]) -> Rows:
    """Give what the engine is shown: rows `first` to `first + rows` of each member; whoever has fewer, padding."""
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
    return Rows(slots=one.slots, tokens=tokens, labels=labels, segments=segments, denominators=denominators)


def _padding(length: int, batches: Mapping[int, RowsOfOne]) -> npt.NDArray[np.int32]:
    """Give the segments of padding, of which nobody is part: none is longer than the longest that somebody is.

    Attention is paid within padding, too, and takes the square of its length.
    """
    longest = max(_longest(batch) for batch in batches.values())
    return _NOBODY - np.arange(length, dtype=np.int32) // longest


def _longest(batch: RowsOfOne) -> int:
    """Give how long the longest segment of a batch is."""
    if batch.segments is None:
        return int(batch.tokens.shape[1])
    return max(int(np.unique(row, return_counts=True)[1].max()) for row in batch.segments)
