"""Shelves and ladders: nodes kept so that the first of the best is found without looking at all of them.

A shelf has cells of equally good nodes; a ladder's cells are in order. RAM and cores order nothing for device jobs,
they only admit: nodes that lie between the same two amounts that any shape asks for admit the same shapes, and stand
behind one gate of their cell.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heappop, heappush
from typing import Generic, TypeVar

At = TypeVar("At")
Gate = tuple[float, float]
"""The most RAM and cores that any shape asks for and these nodes have left."""
_FEW = 8
"""So few are looked through faster than kept in order."""


class Bucket:
    """Nodes that are equal for placement; the first of them is known."""

    __slots__ = ("_heap", "_queued", "members")

    def __init__(self, order: int) -> None:
        self.members = {order}
        # Only where there are many. Nodes that went stay in it until they come up, so that going costs nothing.
        self._heap: list[int] | None = None
        self._queued: set[int] | None = None

    def add(self, order: int) -> None:
        self.members.add(order)
        if self._heap is not None and self._queued is not None and order not in self._queued:
            self._queued.add(order)
            heappush(self._heap, order)

    def first(self) -> int:
        members, heap, queued = self.members, self._heap, self._queued
        if heap is None or queued is None:
            if len(members) <= _FEW:
                return min(members)
            heap = self._heap = sorted(members)
            queued = self._queued = set(members)
        while heap[0] not in members:
            queued.discard(heappop(heap))
        return heap[0]


class Cell:
    """Equally good nodes, by their gate."""

    __slots__ = ("buckets",)

    def __init__(self, gate: Gate, order: int) -> None:
        self.buckets = {gate: Bucket(order)}

    def add(self, gate: Gate, order: int) -> None:
        bucket = self.buckets.get(gate)
        if bucket is None:
            self.buckets[gate] = Bucket(order)
        else:
            bucket.add(order)

    def remove(self, gate: Gate, order: int) -> None:
        members = self.buckets[gate].members
        members.discard(order)
        if not members:
            del self.buckets[gate]

    def first(self, ram_bytes: int, cores: int) -> int:
        """Give the first node whose gate admits this much; -1 if there is none."""
        best = -1
        for (ram_left, cores_left), bucket in self.buckets.items():
            if ram_left >= ram_bytes and cores_left >= cores:
                order = bucket.first()
                if best < 0 or order < best:
                    best = order
        return best


class Shelf(Generic[At]):
    """Cells by what their nodes have in common."""

    __slots__ = ("cells",)

    def __init__(self) -> None:
        self.cells: dict[At, Cell] = {}

    def add(self, at: At, gate: Gate, order: int) -> None:
        cell = self.cells.get(at)
        if cell is None:
            self.cells[at] = Cell(gate, order)
            self._opened(at)
        else:
            cell.add(gate, order)

    def remove(self, at: At, gate: Gate, order: int) -> None:
        cell = self.cells[at]
        cell.remove(gate, order)
        if not cell.buckets:
            del self.cells[at]
            self._closed(at)

    def _opened(self, at: At) -> None:
        """A cell that was not there is."""

    def _closed(self, at: At) -> None:
        """A cell that was there is not."""


class Ladder(Shelf[float]):
    """Cells by how much is left, in order."""

    __slots__ = ("rungs",)

    def __init__(self) -> None:
        super().__init__()
        self.rungs: list[float] = []

    def best(self, least: float, ram_bytes: int, cores: int) -> tuple[float, int]:
        """Give the highest rung from `least` on that has a node whose gate admits this much, and that node, or -1."""
        for rung in reversed(self.rungs):
            if rung < least:
                break
            order = self.cells[rung].first(ram_bytes, cores)
            if order >= 0:
                return rung, order
        return 0, -1

    def _opened(self, at: float) -> None:
        insort(self.rungs, at)

    def _closed(self, at: float) -> None:
        del self.rungs[bisect_left(self.rungs, at)]


class Ladders:
    """Ladders by how many jobs are there already."""

    __slots__ = ("by_jobs",)

    def __init__(self) -> None:
        self.by_jobs: list[Ladder] = []

    def at(self, jobs: int) -> Ladder:
        while len(self.by_jobs) <= jobs:
            self.by_jobs.append(Ladder())
        return self.by_jobs[jobs]


def amount_at(amounts: list[float], left: float) -> float:
    """Give the most that any shape asks for and that is left; below all of them: -1."""
    place = bisect_right(amounts, left)
    return amounts[place - 1] if place else -1
