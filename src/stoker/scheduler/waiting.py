"""Jobs that wait, in a line for each shape, so that the next one is found without looking at all of them.

Lines are strict about priority and first come, first served within one. A line's head stands for all of it: whoever
chooses looks at the heads, of which there are as many as shapes, however many jobs wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter

Picker = Callable[[Sequence[int]], tuple[int, ...]]

NOBODY = 1 << 120
"""The rank of a line that is empty: after everybody."""

_LINE_BITS = 16
_ORDER_BITS = 40
_ORDERS = (1 << (_ORDER_BITS + _LINE_BITS)) - 1
_MASKS_KNOWN = 50_000
_FEW = 40


def priority_of(rank: int) -> int:
    """Give the priority that a rank was made of."""
    return -(rank >> (_ORDER_BITS + _LINE_BITS))


def line_of(rank: int) -> int:
    """Give the line that a rank was made of."""
    return rank & ((1 << _LINE_BITS) - 1)


def first_of_priority(rank: int) -> int:
    """Give the first rank of the same priority."""
    return rank & ~_ORDERS


def last_of_priority(rank: int) -> int:
    """Give the last rank of the same priority."""
    return rank | _ORDERS


def places(count: int) -> int:
    """Give the difference between ranks that are so many jobs apart."""
    return count << _LINE_BITS


class Waiting:
    """All lines. What a line's jobs may be placed as is a few bits of one number; a mask names lines by these bits."""

    def __init__(self) -> None:
        self.ranks: list[int] = [NOBODY]
        """Of each line's head: priority and order of coming in one number; smaller goes first. The last is nobody's."""
        self.bits = 0
        """What waits at all."""
        self.levels: dict[int, int] = {}
        """How many wait, by priority."""
        self._bits: list[int] = []
        self._lines: list[dict[int, deque[int]]] = []
        self._lengths: list[int] = []
        self._with_bit: dict[int, list[int]] = {}
        """The lines that have a bit, which are few."""
        self._alike: list[list[int]] = []
        """For each line the others that have a bit in common with it."""
        self._pickers: dict[int, Picker] = {}
        self._count = 0
        self._next_order = 0

    def __len__(self) -> int:
        return self._count

    def open_line(self, bits: int) -> int:
        """Begin a line for jobs that may be placed in these ways, a bit for each; gives its number."""
        line, left, alike = len(self._bits), bits, set()
        while left:
            lowest = left & -left
            alike.update(self._with_bit.setdefault(lowest, []))
            self._with_bit[lowest].append(line)
            left ^= lowest
        for other in alike:
            self._alike[other].append(line)
        self._alike.append(sorted(alike))
        self._bits.append(bits)
        self._lines.append({})
        self._lengths.append(0)
        self.ranks.insert(-1, NOBODY)
        self._pickers.clear()
        return line

    def length(self, line: int) -> int:
        """Say how many wait in a line."""
        return self._lengths[line]

    def lengths(self, line: int) -> dict[int, int]:
        """Say how many wait in a line, by priority."""
        return {priority: len(queue) for priority, queue in self._lines[line].items()}

    def lines(self, mask: int) -> list[int]:
        """Give the lines that a mask names."""
        if mask.bit_count() > _FEW:
            return [line for line, bits in enumerate(self._bits) if bits & mask]
        found: list[int] = []
        while mask:
            lowest = mask & -mask
            found += self._with_bit.get(lowest, ())
            mask ^= lowest
        return found if len(found) < 2 else sorted(set(found))

    def first(self, mask: int) -> int:
        """Give the rank of the first job in the lines that a mask names; `NOBODY` if they are empty."""
        return min((self._pickers.get(mask) or self.picker(mask))(self.ranks))

    def picker(self, mask: int) -> Picker:
        """Give what picks, from something that every line has, that of the lines which a mask names: two or more."""
        picker = self._pickers.get(mask)
        if picker is None:
            if len(self._pickers) >= _MASKS_KNOWN:
                self._pickers.clear()
            lines = self.lines(mask) or [-1]
            picker = self._pickers[mask] = itemgetter(*lines, lines[0])
        return picker

    def add(self, line: int, priority: int = 0) -> int:
        """Put a job at the end of its line; gives its order, which names it."""
        order = self._next_order
        self._next_order = order + 1
        queues = self._lines[line]
        queue = queues.get(priority)
        if queue is None:
            queues[priority] = deque((order,))
            self.bits |= self._bits[line]
            self._find_head(line)
        else:
            queue.append(order)
        self.levels[priority] = self.levels.get(priority, 0) + 1
        self._lengths[line] += 1
        self._count += 1
        return order

    def take(self, line: int) -> int:
        """Take the first job out of a line; gives its order."""
        rank = self.ranks[line]
        priority = priority_of(rank)
        queue = self._lines[line][priority]
        order = queue.popleft()
        self._lengths[line] -= 1
        if queue:
            self.ranks[line] = rank + ((queue[0] - order) << _LINE_BITS)
        else:
            del self._lines[line][priority]
            self._find_head(line)
        left = self.levels[priority] - 1
        if left:
            self.levels[priority] = left
        else:
            del self.levels[priority]
        self._count -= 1
        return order

    def rank_at(self, line: int, place: int) -> int:
        """Give the rank of the job at a place of its line, 0 for the head; `NOBODY` if the line is shorter."""
        queues = self._lines[line]
        for priority in sorted(queues, reverse=True) if len(queues) > 1 else queues:
            queue = queues[priority]
            if place < len(queue):
                return _rank(priority, queue[place], line)
            place -= len(queue)
        return NOBODY

    def _find_head(self, line: int) -> None:
        queues = self._lines[line]
        if queues:
            priority = max(queues)
            self.ranks[line] = _rank(priority, queues[priority][0], line)
            return
        self.ranks[line] = NOBODY
        self.bits &= ~self._bits[line]
        for other in self._alike[line]:
            if self._lengths[other]:
                self.bits |= self._bits[other]


def _rank(priority: int, order: int, line: int) -> int:
    return (((-priority << _ORDER_BITS) + order) << _LINE_BITS) + line
