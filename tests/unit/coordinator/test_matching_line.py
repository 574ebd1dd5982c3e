"""The line has its heads in order, however they come and go."""

from __future__ import annotations

from stoker.coordinator.matching.heads import Head
from stoker.coordinator.matching.line import Line, bits_of


def head(class_id: int, priority: int = 0, *, seq: int, since_s: float = 0.0, count: int = 1) -> Head:
    return Head(class_id=class_id, priority=priority, seq=seq, since_s=since_s, count=count)


def line(*heads: Head) -> Line:
    """A line in which two classes each are one shape."""
    return Line(lambda class_id: class_id // 2, heads)


def test_heads_stand_by_priority_and_then_by_age():
    found = line(head(1, seq=5), head(2, seq=3), head(3, 7, seq=9), head(4, -1, seq=1))
    assert [one.class_id for one in found] == [3, 2, 1, 4]
    assert [one.class_id for one in found[1:3]] == [2, 1]
    assert len(found) == 4


def test_a_new_head_of_a_class_takes_the_place_of_the_old_one():
    found = line(head(1, seq=1), head(2, seq=2))
    found.put(head(1, seq=3))
    assert [(one.class_id, one.seq) for one in found] == [(2, 2), (1, 3)]


def test_a_level_goes_with_its_last_head():
    found = line(head(1, 5, seq=1))
    found.drop(1, 5)
    found.drop(1, 5)
    assert (len(found), found.priorities, found.levels) == (0, [], {})


def test_classes_of_one_shape_count_together_and_the_oldest_goes_first():
    level = line(head(2, seq=8, count=10), head(3, seq=4, count=5), head(4, seq=1)).levels[0]
    assert level.counts == {1: 15, 2: 1}
    first = level.first(1 << 1)
    assert first is not None
    assert (first[0].class_id, first[1]) == (3, 1)
    assert level.first(1 << 5) is None
    assert level.numbers(0b110) == [2, 1]


def test_the_first_is_the_same_whichever_way_it_is_looked_for():
    many = line(*[head(class_id, seq=1000 - class_id) for class_id in range(200)]).levels[0]
    few = many.first(1 << 3 | 1 << 70)
    assert few is not None
    assert few[1] == 70
    most = many.first((1 << 100) - 1)
    assert most is not None
    assert most[0].class_id == 199


def test_who_starved_is_found_by_age_whatever_the_priority():
    found = line(head(1, 9, seq=1, since_s=50.0), head(2, seq=2, since_s=10.0), head(2, 4, seq=3, since_s=20.0))
    assert found.starved(10.0) is None
    starved = found.starved(21.0)
    assert starved is not None
    assert [one.seq for one in starved] == [2, 3]


def test_shapes_are_asked_for_again_when_they_may_be_others():
    numbers = {1: 0, 2: 0}
    found = Line(lambda class_id: numbers[class_id], [head(1, seq=1), head(2, seq=2)])
    assert found.levels[0].mask == 0b1
    numbers[2] = 3
    found.renumber()
    assert found.levels[0].mask == 0b1001


def test_bits_are_counted_from_the_lowest():
    assert bits_of(0b101001) == [0, 3, 5]
    assert bits_of(0) == []
