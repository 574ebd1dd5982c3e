"""The line: the first waiting job of every class and priority, kept in order as jobs come and go.

The queue tells it of every head that changes; a choice then looks at whole levels of priority as masks over shapes, and
at single heads only where one of them may start. It is a sequence of heads in the order in which they would go if
every one fitted everywhere.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from stoker.coordinator.matching.heads import Head

NumberOf = Callable[[int], int]
"""Gives the number of the shape that a class's jobs are placed as."""

_STEPS = 4
"""Going through heads in order costs about this much less for each than looking up the first of a shape."""


class Level:
    """Heads of one priority, or of no priority that counts any more."""

    __slots__ = ("_by_seq", "_of_shape", "_order", "counts", "mask")

    def __init__(self) -> None:
        self.mask = 0
        """The shapes that wait at this level."""
        self.counts: dict[int, int] = {}
        """How many jobs wait, by shape."""
        self._by_seq: dict[int, Head] = {}
        self._order: list[tuple[int, int]] = []
        self._of_shape: dict[int, list[int]] = {}

    def add(self, head: Head, number: int) -> None:
        """Take in a head whose jobs are placed as this shape."""
        self.mask |= 1 << number
        self._by_seq[head.seq] = head
        insort(self._order, (head.seq, number))
        insort(self._of_shape.setdefault(number, []), head.seq)
        self.counts[number] = self.counts.get(number, 0) + head.count

    def remove(self, head: Head, number: int) -> None:
        """Take it out again."""
        del self._by_seq[head.seq]
        del self._order[bisect_left(self._order, (head.seq, number))]
        seqs = self._of_shape[number]
        del seqs[bisect_left(seqs, head.seq)]
        self.counts[number] -= head.count
        if not seqs:
            del self._of_shape[number], self.counts[number]
            self.mask &= ~(1 << number)

    def first(self, mask: int) -> tuple[Head, int] | None:
        """Give the oldest head among these shapes, and its shape's number."""
        mask &= self.mask
        if not mask:
            return None
        if mask.bit_count() * _STEPS > len(self._order):
            seq, number = next(place for place in self._order if mask >> place[1] & 1)
        else:
            of_shape = self._of_shape
            seq, number = min([(of_shape[number][0], number) for number in bits_of(mask)])
        return self._by_seq[seq], number

    def numbers(self, mask: int) -> list[int]:
        """Give those of these shapes that wait here, in the order of their oldest heads."""
        return sorted(bits_of(mask & self.mask), key=lambda number: self._of_shape[number][0])

    def head_of(self, seq: int) -> Head | None:
        """Give the head that a job is, if it is one."""
        return self._by_seq.get(seq)

    def __iter__(self) -> Iterator[Head]:
        """Go through all heads, the oldest first."""
        return (self._by_seq[seq] for seq, _ in self._order)


class Line(Sequence[Head]):
    """All heads."""

    def __init__(self, number_of: NumberOf, heads: Iterable[Head] = ()) -> None:
        """Make one from heads in any order."""
        self._number_of = number_of
        self._heads: dict[tuple[int, int], Head] = {}
        self._numbers: dict[int, int] = {}
        self._by_age: list[tuple[float, int, int, int]] = []
        self.levels: dict[int, Level] = {}
        """By priority."""
        self.priorities: list[int] = []
        """Negated, so that the highest comes first."""
        for head in heads:
            self.put(head)

    def put(self, head: Head) -> None:
        """Let this be the head of its class and priority, instead of whichever was."""
        self.drop(head.class_id, head.priority)
        self._heads[head.class_id, head.priority] = head
        insort(self._by_age, _age(head))
        number = self._numbers.get(head.class_id)
        if number is None:
            number = self._numbers[head.class_id] = self._number_of(head.class_id)
        level = self.levels.get(head.priority)
        if level is None:
            level = self.levels[head.priority] = Level()
            insort(self.priorities, -head.priority)
        level.add(head, number)

    def drop(self, class_id: int, priority: int) -> None:
        """Nobody of this class waits at this priority any more."""
        head = self._heads.pop((class_id, priority), None)
        if head is None:
            return
        del self._by_age[bisect_left(self._by_age, _age(head))]
        level = self.levels[priority]
        level.remove(head, self._numbers[class_id])
        if not level.mask:
            del self.levels[priority]
            del self.priorities[bisect_left(self.priorities, -priority)]

    def heads_of(self, seqs: Iterable[int]) -> list[Head]:
        """Give those of these jobs that are heads."""
        levels = self.levels.values()
        return [head for seq in seqs for level in levels if (head := level.head_of(seq)) is not None]

    def renumber(self) -> None:
        """Ask for every class's shape again: machines' lists name words that they did not name before."""
        heads = list(self._heads.values())
        self.clear()
        for head in heads:
            self.put(head)

    def clear(self) -> None:
        """Nobody waits."""
        self._heads.clear()
        self._numbers.clear()
        self._by_age.clear()
        self.levels.clear()
        self.priorities.clear()

    def starved(self, before_s: float) -> Level | None:
        """Give those who have waited since before that time, as a level of their own; nothing: there are none."""
        if not self._by_age or self._by_age[0][0] >= before_s:
            return None
        level = Level()
        for since_s, _, class_id, priority in self._by_age:
            if since_s >= before_s:
                break
            level.add(self._heads[class_id, priority], self._numbers[class_id])
        return level

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Head]:
        for negated in self.priorities:
            yield from self.levels[-negated]

    @overload
    def __getitem__(self, at: int) -> Head: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Head]: ...
    def __getitem__(self, at: int | slice) -> Head | Sequence[Head]:
        return list(self)[at]


def bits_of(mask: int) -> list[int]:
    """Give the numbers of the bits that are set."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def _age(head: Head) -> tuple[float, int, int, int]:
    return head.since_s, head.seq, head.class_id, head.priority
