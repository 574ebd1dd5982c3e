from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.cookbooks.language.arguments import IGNORED
from stoker.cookbooks.language.examples import MemberRows
from stoker.cookbooks.language.shared.pass_schedule import MultiAdapterPass
from stoker.core.frozen import changed
from tests.later import imported_later

with imported_later():
    from stoker.cookbooks.language.shared.members import closed_up, is_worth_closing_up
    from stoker.cookbooks.language.shared.step import lay_rows


def batch(lengths: list[int], *, first: int = 1, segments: Any = None) -> MemberRows:
    """Rows of counting tokens; every token but the last of a row has the next as its label."""
    size = len(lengths), max(lengths)
    tokens, labels = np.full(size, 99, dtype=np.int64), np.full(size, IGNORED, dtype=np.int64)
    for row, length in enumerate(lengths):
        tokens[row, :length] = first + np.arange(length)
        labels[row, : length - 1] = tokens[row, 1:length]
        first += length
    return MemberRows(
        tokens=tokens,
        labels=labels,
        segments=segments,
        supervised=sum(length - 1 for length in lengths),
        tokens_used=sum(lengths),
    )


def test_members_are_laid_side_by_side_with_padding_that_teaches_nothing() -> None:
    one = MultiAdapterPass(slots=(0, 2, 5), first=0, rows=2, length=4)
    rows = lay_rows(one, {0: batch([3, 2]), 5: batch([4], first=50)}, [3.0, 0.0, 3.0])
    assert rows.slots == (0, 2, 5)
    assert rows.tokens[0, :, :2].tolist() == [[1, 2], [4, 5]]
    assert rows.labels[0].tolist() == [[2, 3, IGNORED, IGNORED], [5, IGNORED, IGNORED, IGNORED]]
    assert (rows.labels[1] == IGNORED).all()
    assert rows.tokens[2, 0].tolist() == [50, 51, 52, 53]
    assert (rows.labels[2, 1] == IGNORED).all()
    assert rows.segments is None


def test_a_pass_shows_the_rows_from_its_first_on() -> None:
    rows = lay_rows(MultiAdapterPass(slots=(1,), first=2, rows=2, length=3), {1: batch([3, 3, 3])}, [6.0])
    assert rows.tokens[0].tolist() == [[7, 8, 9], [0, 0, 0]]


def test_padding_of_packed_rows_is_seen_by_nobody_and_is_no_longer_than_what_is_packed() -> None:
    packed = batch([3], segments=np.array([[0, 0, 1]], dtype=np.int32))
    other = batch([2, 3], segments=np.array([[0, 0, 1], [0, 0, 0]], dtype=np.int32))
    rows = lay_rows(MultiAdapterPass(slots=(0, 1), first=0, rows=2, length=7), {0: packed, 1: other}, [2.0, 3.0])
    pad = [-1, -1, -1, -2, -2, -2, -3]
    assert rows.segments.tolist() == [[[0, 0, 1, *pad[3:]], pad], [[0, 0, 1, *pad[3:]], [0, 0, 0, *pad[3:]]]]


def test_rows_of_their_own_stay_whole_beside_packed_ones() -> None:
    packed = batch([3], segments=np.array([[0, 0, 1]], dtype=np.int32))
    rows = lay_rows(MultiAdapterPass(slots=(0, 1), first=0, rows=1, length=5), {0: packed, 1: batch([4])}, [2.0, 3.0])
    assert rows.segments.tolist() == [[[0, 0, 1, -1, -2]], [[0, 0, 0, 0, -2]]]


def test_only_lengths_that_differ_are_worth_closing_up() -> None:
    assert not is_worth_closing_up(np.array([64, 64, 60]))
    assert is_worth_closing_up(np.array([64, 10, 30]))
    assert not is_worth_closing_up(np.array([], dtype=np.int64))


def test_rows_that_teach_nothing_stay_as_they_are() -> None:
    nothing = changed(batch([3, 3]), labels=np.full((2, 3), IGNORED))
    assert closed_up(nothing) is nothing


@given(st.lists(st.integers(2, 12), min_size=1, max_size=10))
def test_rows_laid_end_to_end_hold_every_label_with_all_that_comes_before_it(lengths: list[int]) -> None:
    rows = batch(lengths)
    laid = closed_up(rows)
    assert laid.segments is not None
    assert laid.tokens.shape == laid.labels.shape == laid.segments.shape == (1, sum(lengths) - len(lengths))
    expected = {(tuple(rows.tokens[r, : t + 1]), rows.labels[r, t]) for r, t in np.argwhere(rows.labels != IGNORED)}
    found = set()
    for t in np.flatnonzero(laid.labels[0] != IGNORED):
        begin = np.flatnonzero(laid.segments[0] == laid.segments[0, t])[0]
        found.add((tuple(laid.tokens[0, begin : t + 1]), laid.labels[0, t]))
    assert found == expected
