from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cookbooks.language.arguments import Objective
from stoker.cookbooks.language.shared.pass_schedule import (
    Costs,
    MemberPassShape,
    MultiAdapterPass,
    OversizedMember,
    PassTokenLimit,
    bucket,
    plan_passes,
    shrunk,
)

CHEAP, DEAR = Costs(pass_tokens=1), Costs(pass_tokens=1_000_000)


def shape(slot: int, rows: int, length: int) -> MemberPassShape:
    return MemberPassShape(slot=slot, rows=rows, length=length)


def test_members_of_one_shape_are_computed_at_once() -> None:
    assert plan_passes([shape(2, 4, 64), shape(0, 4, 64)], CHEAP) == (
        MultiAdapterPass(slots=(0, 2), first=0, rows=4, length=64),
    )


def test_members_are_padded_to_each_other_only_where_that_is_cheaper_than_a_pass() -> None:
    shapes = [shape(0, 4, 64), shape(1, 4, 72), shape(2, 4, 512)]
    assert [one.slots for one in plan_passes(shapes, DEAR)] == [(0, 1, 2)]
    assert sorted(one.slots for one in plan_passes(shapes, CHEAP)) == [(0,), (1,), (2,)]
    assert sorted(one.slots for one in plan_passes(shapes, Costs(pass_tokens=128))) == [(0, 1), (2,)]


def test_a_limit_divides_rows_first_and_then_members() -> None:
    shapes = [shape(slot, 4, 100) for slot in range(4)]
    by_rows = plan_passes(shapes, Costs(pass_tokens=1, most_tokens=800))
    assert [(one.slots, one.first, one.rows) for one in by_rows] == [((0, 1, 2, 3), 0, 2), ((0, 1, 2, 3), 2, 2)]
    by_members = plan_passes(shapes, Costs(pass_tokens=1, most_tokens=200))
    assert {one.slots for one in by_members} == {(0, 1), (2, 3)}
    assert {one.rows for one in by_members} == {1}


def test_what_is_reserved_divides_members_evenly_and_keeps_their_rows_together() -> None:
    shapes = [shape(slot, 4, 100) for slot in range(8)]

    def parts(reserved: int | None, most: int | None = None) -> list[tuple[tuple[int, ...], int]]:
        costs = Costs(pass_tokens=1, most_members=reserved, most_tokens=most)
        return [(one.slots, one.rows) for one in plan_passes(shapes, costs)]

    assert parts(None) == parts(8) == [(tuple(range(8)), 4)]
    assert parts(7) == parts(5) == [((0, 1, 2, 3), 4), ((4, 5, 6, 7), 4)]
    assert parts(3) == [((0, 1, 2), 4), ((3, 4, 5), 4), ((6, 7), 4)]
    assert parts(1) == [((slot,), 4) for slot in range(8)]
    # A limit that was found since divides what is left of them.
    assert parts(4, most=800) == [(slots, 2) for slots in ((0, 1, 2, 3), (4, 5, 6, 7)) for _ in range(2)]


def test_a_place_of_one_who_went_is_kept_in_a_pass_of_its_shape() -> None:
    shapes = [shape(0, 4, 64), shape(2, 4, 64)]
    kept = {1: shape(1, 4, 64), 3: shape(3, 4, 72)}
    assert [one.slots for one in plan_passes(shapes, CHEAP, kept)] == [(0, 1, 2)]


def test_members_stay_together_by_their_usual_length_however_long_they_are_now() -> None:
    def now(*lengths: int) -> list[MemberPassShape]:
        return [
            MemberPassShape(slot=n, rows=1, length=length, usual=(64, 64, 640)[n]) for n, length in enumerate(lengths)
        ]

    costs = Costs(pass_tokens=128)
    assert plan_passes(now(64, 80, 640), costs) == (
        MultiAdapterPass(slots=(2,), first=0, rows=1, length=640),
        MultiAdapterPass(slots=(0, 1), first=0, rows=1, length=80),
    )
    assert {one.slots for one in plan_passes(now(600, 56, 700), costs)} == {(0, 1), (2,)}
    gone = {1: MemberPassShape(slot=1, rows=1, length=80, usual=64)}
    assert (0, 1) in {one.slots for one in plan_passes([now(96, 0, 0)[0], now(0, 0, 640)[2]], costs, gone)}


def test_several_rows_laid_end_to_end_are_no_hopeless_one() -> None:
    verdict = shrunk(MultiAdapterPass(slots=(7,), first=0, rows=1, length=640), is_close=True)
    assert isinstance(verdict, PassTokenLimit)
    assert verdict.most_tokens == 320


def test_more_empty_places_than_members_are_not_kept() -> None:
    kept = {slot: shape(slot, 4, 64) for slot in (1, 2)}
    assert [one.slots for one in plan_passes([shape(0, 4, 64)], CHEAP, kept)] == [(0,)]


def test_what_did_not_fit_is_halved_down_to_a_single_row() -> None:
    verdict = shrunk(MultiAdapterPass(slots=(0, 1), first=0, rows=4, length=64))
    assert isinstance(verdict, PassTokenLimit)
    assert verdict.most_tokens == 256
    assert "2 adapters x 4 rows x 64 tokens" in verdict.why
    last = shrunk(MultiAdapterPass(slots=(7,), first=3, rows=1, length=64))
    assert isinstance(last, OversizedMember)
    assert last.slot == 7


@pytest.mark.parametrize(("length", "expected"), [(1, 8), (8, 8), (9, 16), (100, 104), (61, 62)])
def test_lengths_are_padded_finely_but_not_beyond_the_most(length: int, expected: int) -> None:
    assert bucket(length, 62 if length == 61 else 512, is_coarse=False) == expected


def test_coarse_lengths_are_few_and_waste_little() -> None:
    lengths = {bucket(length, 2048, is_coarse=True) for length in range(128, 2049)}
    assert len(lengths) <= 20
    assert all(bucket(length, 2048, is_coarse=True) <= length * 1.25 for length in range(128, 2049))


shapes_of_members = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=9).map(
    lambda sizes: [shape(slot, rows, length) for slot, (rows, length) in enumerate(sizes)]
)


@given(shapes_of_members, st.integers(0, 500), st.none() | st.integers(1, 300))
def test_every_row_of_every_member_is_in_exactly_one_pass(
    shapes: list[MemberPassShape], pass_tokens: int, most_tokens: int | None
) -> None:
    passes = plan_passes(shapes, Costs(pass_tokens=pass_tokens, most_tokens=most_tokens))
    seen = Counter(
        (slot, row) for one in passes for slot in one.slots for row in range(one.first, one.first + one.rows)
    )
    assert all(seen[one.slot, row] == 1 for one in shapes for row in range(one.rows))
    assert max(seen.values()) == 1
    for one in passes:
        assert one.length >= max(shapes[slot].length for slot in one.slots)
        assert most_tokens is None or one.tokens <= most_tokens or (len(one.slots) == 1 and one.rows == 1)


@given(shapes_of_members)
def test_halving_ends(shapes: list[MemberPassShape]) -> None:
    costs = Costs(pass_tokens=10)
    for _ in range(40):
        verdict = shrunk(max(plan_passes(shapes, costs), key=lambda one: one.tokens))
        if isinstance(verdict, OversizedMember):
            return
        assert costs.most_tokens is None or verdict.most_tokens < costs.most_tokens
        costs = Costs(pass_tokens=10, most_tokens=verdict.most_tokens)
    raise AssertionError("it goes on for ever")


def test_both_rows_of_a_pair_stay_in_one_pass_and_objectives_are_never_mixed() -> None:
    def pairs(slot: int, objective: Objective | None, rows: int = 8) -> MemberPassShape:
        return MemberPassShape(slot=slot, rows=rows, length=100, objective=objective)

    mixed = plan_passes([pairs(0, None), pairs(1, "orpo"), pairs(2, "dpo-sigmoid"), pairs(3, "orpo")], DEAR)
    assert sorted(one.slots for one in mixed) == [(0,), (1, 3), (2,)]
    for most, divided in ((700, [0, 2, 4, 6]), (900, [0, 4]), (250, [0, 2, 4, 6]), (100, [0, 2, 4, 6])):
        limited = plan_passes([pairs(1, "orpo"), pairs(3, "orpo")], Costs(pass_tokens=1, most_tokens=most))
        assert sorted({one.first for one in limited}) == divided
        assert {one.rows % 2 for one in limited} == {0}
    one = MultiAdapterPass(slots=(1,), first=0, rows=2, length=100, objective="orpo")
    assert isinstance(shrunk(one), OversizedMember)
    # Concatenated rows are one row, whatever is in it.
    laid = MemberPassShape(slot=1, rows=1, length=800, is_laid=True, objective="orpo")
    assert [one.rows for one in plan_passes([laid], Costs(pass_tokens=1, most_tokens=400))] == [1]


def test_where_memory_is_reserved_members_of_other_shapes_are_not_padded_beyond_it() -> None:
    shapes = [MemberPassShape(slot=slot, rows=2, length=256) for slot in (0, 1)]
    shapes += [MemberPassShape(slot=slot, rows=1, length=512) for slot in (2, 3)]
    wide = plan_passes(shapes, Costs(pass_tokens=4096))
    assert [(one.slots, one.rows, one.length) for one in wide] == [((0, 1, 2, 3), 2, 512)]
    divided = plan_passes(shapes, Costs(pass_tokens=4096, most_members=1))
    assert all(one.tokens <= 512 for one in divided)
    assert sorted((one.slots, one.rows, one.length) for one in divided) == [
        ((0,), 2, 256), ((1,), 2, 256), ((2,), 1, 512), ((3,), 1, 512)
    ]  # fmt: skip


def test_where_memory_is_reserved_no_pass_has_empty_slots_only() -> None:
    shapes = [MemberPassShape(slot=slot, rows=1, length=64) for slot in range(6)]
    before = plan_passes(shapes, Costs(pass_tokens=128, most_members=2))
    kept = {slot: shapes[slot] for slot in (2, 3)}
    after = plan_passes([one for one in shapes if one.slot not in kept], Costs(pass_tokens=128, most_members=2), kept)
    assert [one.slots for one in before] == [(0, 1), (2, 3), (4, 5)]
    assert [one.slots for one in after] == [(0, 1), (4, 5)]
    # Beside a member the empty slot stays, so that the numbers of the others come from the same kernels.
    one_gone = plan_passes(
        [one for one in shapes if one.slot != 3], Costs(pass_tokens=128, most_members=2), {3: shapes[3]}
    )
    assert [one.slots for one in one_gone] == [(0, 1), (2, 3), (4, 5)]
