from __future__ import annotations

from stoker.scheduler.waiting import (
    NOBODY,
    Waiting,
    first_of_priority,
    last_of_priority,
    line_of,
    places,
    priority_of,
)


def two_lines() -> Waiting:
    waiting = Waiting()
    waiting.open_line(0b01)
    waiting.open_line(0b10)
    return waiting


def test_the_first_is_the_oldest_of_the_lines_that_a_mask_names() -> None:
    waiting = two_lines()
    waiting.add(1)
    waiting.add(0)
    assert line_of(waiting.first(0b11)) == 1
    assert line_of(waiting.first(0b01)) == 0
    assert waiting.take(1) == 0
    assert line_of(waiting.first(0b11)) == 0
    assert waiting.first(0b10) == NOBODY
    assert waiting.first(0b100) == NOBODY


def test_a_higher_priority_goes_before_everybody_who_came_earlier() -> None:
    waiting = two_lines()
    waiting.add(0, priority=0)
    waiting.add(1, priority=5)
    waiting.add(0, priority=-3)
    waiting.add(0, priority=9)
    assert [priority_of(waiting.ranks[line]) for line in (0, 1)] == [9, 5]
    taken = []
    while waiting.bits:
        line = line_of(waiting.first(0b11))
        taken.append(waiting.take(line))
    assert taken == [3, 1, 0, 2]
    assert len(waiting) == 0
    assert waiting.levels == {}


def test_ranks_of_one_priority_lie_together_and_count_places() -> None:
    waiting = two_lines()
    for _ in range(3):
        waiting.add(0, priority=2)
    waiting.add(1, priority=1)
    first, third = waiting.rank_at(0, 0), waiting.rank_at(0, 2)
    assert third - first == places(2)
    assert first_of_priority(third) <= first < third <= last_of_priority(first) < waiting.ranks[1]
    assert waiting.rank_at(0, 3) == NOBODY


def test_lines_that_have_a_bit_in_common_both_count() -> None:
    waiting = Waiting()
    waiting.open_line(0b01)
    waiting.open_line(0b11)
    waiting.add(0)
    waiting.add(1)
    waiting.take(1)
    assert waiting.bits == 0b01
    assert waiting.lines(0b01) == [0, 1]


def test_lengths_are_told_by_priority() -> None:
    waiting = two_lines()
    waiting.add(0, priority=1)
    waiting.add(0)
    waiting.add(0)
    assert waiting.lengths(0) == {1: 1, 0: 2}
    assert (waiting.length(0), waiting.length(1), len(waiting)) == (3, 0, 3)
    assert waiting.levels == {1: 1, 0: 2}
