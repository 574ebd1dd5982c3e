"""Rows of several lengths laid end to end: the same sequences, none of which sees another, in one row without padding.

Rows that are padded to the longest of them waste what the others lack, and have as many shapes as there are lengths.
The sum of several lengths varies little: few shapes, and each of them can be recorded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stoker.cookbooks.language.data.batches import IGNORED, MemberRows
from stoker.model.frozen import changed

_WORTH = 0.85
"""Of the longest: on an H200 a row of several sequences takes a fourteenth longer than as many rows of one, and what
it is padded with costs as much again."""


def is_worth_closing_up(lengths: npt.NDArray[np.int64]) -> bool:
    """Say whether examples of such lengths are quicker end to end than in rows of their own."""
    return len(lengths) > 0 and float(lengths.mean()) < _WORTH * float(lengths.max())


def closed_up(rows: MemberRows) -> MemberRows:
    """Give all rows as one. What comes after a row's last label teaches nothing, and is left out."""
    is_label = rows.labels != IGNORED
    lengths = is_label.shape[1] - np.argmax(is_label[:, ::-1], axis=1)
    taught = np.flatnonzero(is_label.any(axis=1))
    if not len(taught):
        return rows
    tokens = [rows.tokens[row, : lengths[row]] for row in taught]
    labels = [rows.labels[row, : lengths[row]] for row in taught]
    segments = np.repeat(np.arange(len(taught), dtype=np.int32), lengths[taught])
    return changed(
        rows, tokens=np.concatenate(tokens)[None], labels=np.concatenate(labels)[None], segments=segments[None]
    )
