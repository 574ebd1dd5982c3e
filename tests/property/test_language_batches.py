"""Packing and cursors against what they promise, for any lengths, seeds and places to stop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import examples

np = pytest.importorskip("numpy")

from stoker.cookbooks.language.arguments import IGNORED  # noqa: E402 - as below
from stoker.cookbooks.language.examples import (  # noqa: E402 - numpy may be missing
    Cursor,
    ExampleFacts,
    ExampleSet,
    MemberRows,
    Position,
    evaluation_rows,
    pack,
)

WIDEST = 24
PAD = 9999
FACTS: ExampleFacts = {
    "examples": 0, "held_out": 0, "tokens": 0, "trained_tokens": 0, "longest": 0, "cut": 0, "skipped": 0,
    "skipped_lines": [], "max_seq_len": WIDEST, "train_on": "all", "forms": {}, "template": "", "pad": PAD, "notes": [],
}  # fmt: skip

lengths_of_examples = st.lists(st.integers(2, WIDEST), min_size=1, max_size=40)


def _examples(lengths: list[int], held_out: int = 0) -> ExampleSet:
    """Return examples whose tokens tell which example and place they are of; every third token is not learned."""
    total = sum(lengths)
    tokens = [100 * number + place for number, length in enumerate(lengths) for place in range(length)]
    return ExampleSet(
        tokens=np.array(tokens, dtype=np.int32),
        trained=np.arange(total) % 3 != 0,
        starts=np.cumsum([0, *lengths], dtype=np.int64),
        held_out=np.arange(held_out, dtype=np.int64),
        facts=FACTS,
    )


def _pieces(rows: MemberRows) -> list[list[int]]:
    """Return the examples that stand in some rows, as their tokens."""
    found = []
    for number, row in enumerate(rows.tokens):
        segments = np.zeros(len(row)) if rows.segments is None else rows.segments[number]
        for segment in dict.fromkeys(segments.tolist()):
            piece = [int(token) for token in row[segments == segment] if token != PAD]
            found += [piece] if piece else []
    return found


def _equal(one: MemberRows, other: MemberRows) -> bool:
    return (
        np.array_equal(one.tokens, other.tokens)
        and np.array_equal(one.labels, other.labels)
        and (one.segments is None) == (other.segments is None)
        and (one.segments is None or np.array_equal(one.segments, other.segments))
        and (one.epoch, one.ends_epoch, one.supervised) == (other.epoch, other.ends_epoch, other.supervised)
    )


@given(st.lists(st.integers(1, WIDEST), max_size=200))
def test_packing_loses_nothing_overfills_nothing_and_is_first_fit(lengths):
    rows = pack(lengths, WIDEST)
    assert sorted(place for row in rows for place in row) == list(range(len(lengths)))
    simple: list[list[int]] = []
    for place, length in enumerate(lengths):
        fitting = (row for row in simple if sum(lengths[one] for one in row) + length <= WIDEST)
        row = next(fitting, None)
        if row is None:
            simple.append([place])
        else:
            row.append(place)
    assert rows == simple


@pytest.mark.parametrize("length", [0, -1, WIDEST + 1])
def test_what_no_row_can_hold_is_refused(length):
    with pytest.raises(ValueError, match="does not go into a row"):
        pack([3, length], WIDEST)


@settings(max_examples=examples(20, 50))
@given(lengths_of_examples, st.integers(1, 5), st.integers(0, 3), st.booleans(), st.data())
def test_every_epoch_has_every_example_once_and_as_many_batches(lengths, batch, seed, is_packed, data):
    held_out = data.draw(st.integers(0, len(lengths) - 1))
    examples = _examples(lengths, held_out)
    cursor = Cursor(examples, row_tokens=WIDEST, batch=batch, seed=seed, is_packed=is_packed)
    wanted = sorted(examples.example(int(number))[0].tolist() for number in examples.kept)
    for epoch in range(3):
        pieces = []
        for place in range(cursor.batches_per_epoch):
            assert cursor.position == Position(epoch=epoch, batch=place)
            rows = cursor.next()
            assert rows.epoch == epoch
            assert rows.ends_epoch == (place + 1 == cursor.batches_per_epoch)
            assert 1 <= len(rows.tokens) <= batch
            assert rows.tokens.shape[1] <= WIDEST
            pieces += _pieces(rows)
        assert sorted(pieces) == wanted


@settings(max_examples=examples(20, 50))
@given(lengths_of_examples, st.integers(1, 5), st.booleans())
def test_a_label_is_the_next_token_of_the_same_example_or_ignored(lengths, batch, is_packed):
    examples = _examples(lengths)
    learned = dict(zip(examples.tokens.tolist(), examples.trained.tolist(), strict=True))
    cursor = Cursor(examples, row_tokens=WIDEST, batch=batch, seed=0, is_packed=is_packed)
    total = 0
    for _ in range(cursor.batches_per_epoch):
        rows = cursor.next()
        for tokens, labels in zip(rows.tokens.tolist(), rows.labels.tolist(), strict=True):
            for place, (token, label) in enumerate(zip(tokens, labels, strict=True)):
                after = tokens[place + 1] if place + 1 < len(tokens) else PAD
                # Of one example if and only if it is the next number.
                is_next = token != PAD and after == token + 1
                assert label == (after if is_next and learned[after] else IGNORED)
        assert rows.supervised == int((rows.labels != IGNORED).sum())
        assert rows.tokens_used == int((rows.tokens != PAD).sum())
        total += rows.supervised
    firsts = examples.starts[:-1]
    assert total == int(examples.trained.sum() - examples.trained[firsts].sum())


@settings(max_examples=examples(20, 50))
@given(lengths_of_examples, st.integers(1, 5), st.integers(0, 12), st.booleans())
def test_a_cursor_goes_on_where_another_stopped(lengths, batch, steps, is_packed):
    examples = _examples(lengths)
    said: dict[str, Any] = {"row_tokens": WIDEST, "batch": batch, "seed": 3, "is_packed": is_packed}
    whole = Cursor(examples, **said)
    for _ in range(steps):
        whole.next()
    resumed = Cursor(examples, at=whole.position, **said)
    assert all(_equal(whole.next(), resumed.next()) for _ in range(5))


def test_seeds_and_epochs_shuffle_differently_and_always_the_same():
    examples = _examples([2] * 12)

    def order(seed: int, epoch: int) -> list[int]:
        cursor = Cursor(examples, row_tokens=8, batch=12, seed=seed, at=Position(epoch=epoch))
        return [int(row[0]) // 100 for row in cursor.next().tokens]

    assert order(0, 0) == [5, 3, 7, 8, 11, 2, 4, 1, 10, 0, 6, 9]
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_the_held_out_examples_come_always_in_the_same_order():
    examples = _examples([5, 4, 3, 6], held_out=3)
    rows = evaluation_rows(examples, row_tokens=10, batch=2)
    assert [piece[0] // 100 for batch in rows for piece in _pieces(batch)] == [0, 1, 2]
    packed = evaluation_rows(examples, row_tokens=10, batch=2, is_packed=True)
    assert [[piece[0] // 100 for piece in _pieces(batch)] for batch in packed] == [[0, 1, 2]]
    assert evaluation_rows(_examples([3]), row_tokens=10, batch=2) == []


@pytest.mark.parametrize(
    "said",
    [
        {"batch": 0},
        {"at": Position(batch=9)},
        {"at": Position(epoch=-1)},
        {"row_tokens": 2},
        {"row_tokens": 2, "is_packed": True},
    ],
)
def test_a_cursor_over_what_cannot_be_is_refused(said):
    with pytest.raises(ValueError, match=r"batch|epoch|row"):
        Cursor(_examples([3, 4]), **{"row_tokens": 8, "batch": 1, "seed": 0, **said})


def test_there_must_be_something_to_train_on():
    with pytest.raises(ValueError, match="no examples to train on"):
        Cursor(_examples([3], held_out=1), row_tokens=8, batch=1, seed=0)


@settings(max_examples=examples(40, 400))
@given(
    st.lists(st.tuples(st.integers(4, WIDEST), st.integers(4, WIDEST)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(0, 99),
    st.sampled_from(["completion", "all"]),
)
def test_both_sides_of_every_pair_come_once_an_epoch_side_by_side_with_their_answers(pairs, batch, seed, train_on):
    whole = _examples([length for pair in pairs for length in pair])
    facts: ExampleFacts = {**FACTS, "sides": 2, "train_on": train_on}
    made = ExampleSet(
        tokens=whole.tokens, trained=whole.trained, starts=whole.starts, held_out=whole.held_out, facts=facts
    )
    cursor, seen = Cursor(made, row_tokens=WIDEST, batch=batch, seed=seed), []
    ends = False
    while not ends:
        rows = cursor.next()
        ends, answers = rows.ends_epoch, rows.answers
        assert answers is not None
        texts = answers.texts[answers.texts >= 0]
        assert (len(answers.texts), len(texts)) == (2 * batch, 2 * answers.pairs)
        assert texts[::2].tolist() == (texts[1::2] - 1).tolist()
        seen += texts[::2].tolist()
        for row, text in enumerate(texts):
            ids, trained = made.example(int(text))
            assert rows.tokens[row, : len(ids)].tolist() == ids.tolist()
            # The answer is where its tokens are learned; a chosen text may have labels for its prompt, too.
            assert np.array_equal(answers.places[row, : len(ids) - 1] == row, trained[1:])
            has_label = rows.labels[row, : len(ids) - 1] != IGNORED
            is_whole = train_on == "all" and row % 2 == 0
            assert np.array_equal(has_label, np.ones_like(has_label) if is_whole else trained[1:])
        assert answers.chosen_tokens == int((rows.labels[::2] != IGNORED).sum())
    assert sorted(seen) == list(range(0, 2 * len(pairs), 2))
