"""Short rows laid end to end: the same sequences, none of which sees another, in fewer rows with less padding."""

from __future__ import annotations

import numpy as np

from stoker.cookbooks.language.data.batches import IGNORED, MemberRows
from stoker.cookbooks.language.data.packing import pack
from stoker.model.frozen import changed

_WORTH = 0.9
"""Of the rows: on an H200 tokens in rows of several sequences take a fourteenth longer than in rows of one."""


def closed_up(rows: MemberRows, width: int) -> MemberRows:
    """Give the rows in as few rows of `width` as they go into; as they are if that saves little, or they are packed.

    What comes after a sequence's last label teaches nothing, and is left out.
    """
    if rows.segments is not None:
        return rows
    is_label = rows.labels != IGNORED
    lengths = [int(length) for length in is_label.shape[1] - np.argmax(is_label[:, ::-1], axis=1)]
    taught = [number for number, teaches in enumerate(is_label.any(axis=1)) if teaches]
    laid = pack([lengths[number] for number in taught], width)
    if not taught or len(laid) > _WORTH * len(rows.tokens):
        return rows
    size = len(laid), width
    tokens, labels = np.zeros(size, dtype=np.int64), np.full(size, IGNORED, dtype=np.int64)
    segments = np.empty(size, dtype=np.int32)
    for row, places in enumerate(laid):
        begin = 0
        for segment, number in enumerate(taught[place] for place in places):
            end = begin + lengths[number]
            tokens[row, begin:end] = rows.tokens[number, : lengths[number]]
            labels[row, begin:end] = rows.labels[number, : lengths[number]]
            segments[row, begin:end] = segment
            begin = end
        segments[row, begin:] = len(places)
    return changed(rows, tokens=tokens, labels=labels, segments=segments)
