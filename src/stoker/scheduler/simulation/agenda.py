"""The agenda: what happens when, taken out in the order of time.

Seconds are drawers, and only the drawer that is open is sorted. With tens of thousands of jobs running, that costs a
tenth of what one heap of all of them does.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")
_BY_TIME = itemgetter(0, 1)


class CalendarQueue(Generic[T]):
    """Things by time; of those at the same time the one with the smaller number comes first."""

    def __init__(self) -> None:
        self._drawers: dict[int, list[tuple[float, int, T]]] = {}
        self._seconds: list[int] = []
        """Of all drawers but the open one, as a heap."""
        self._open: list[tuple[float, int, T]] = []
        """Sorted, the next one last."""
        self._opened = -1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, at_s: float, number: int, thing: T) -> None:
        """Put something in, not before what was last taken out."""
        second = int(at_s)
        self._count += 1
        if second <= self._opened:
            insort(self._open, (at_s, number, thing), key=_reversed)
            return
        drawer = self._drawers.get(second)
        if drawer is None:
            self._drawers[second] = [(at_s, number, thing)]
            heappush(self._seconds, second)
        else:
            drawer.append((at_s, number, thing))

    @property
    def next_s(self) -> float:
        """When the next one comes."""
        if not self._open:
            self._open_next()
        return self._open[-1][0]

    def take(self) -> tuple[float, int, T]:
        """Take out what comes next."""
        if not self._open:
            self._open_next()
        self._count -= 1
        return self._open.pop()

    def _open_next(self) -> None:
        self._opened = heappop(self._seconds)
        self._open = self._drawers.pop(self._opened)
        self._open.sort(key=_BY_TIME, reverse=True)


def _reversed(entry: tuple[float, int, T]) -> tuple[float, int]:
    return -entry[0], -entry[1]
