"""Nodes that miss and wait for room, in the order of the plan.

Nodes with equal needs are interchangeable, so only the first of each group is ever tried: a hundred thousand waiting
nodes cost as much as a handful. A node that was passed over often enough holds back those behind it.
"""

from __future__ import annotations

import heapq

from stoker.model.frozen import changeable
from stoker.model.resources import Needs
from stoker.plan.cache import Product
from stoker.plan.graph import Node
from stoker.plan.resolve import Execute

_ROOM = 256
_PATIENCE = 32


@changeable
class Waiting:
    """A node that would run now if there were room."""

    name: str
    node: Node
    execute: Execute
    inputs: dict[str, tuple[Product, ...]]
    rank: tuple[int, ...]
    """Its place in the plan, which no other node has."""
    needs: Needs
    """What it holds while it runs, its company filled in."""
    refusals: int = 0
    waits_for: str = ""
    """What was last said about its wait for devices."""

    def __lt__(self, other: Waiting) -> bool:
        return self.rank < other.rank

    def is_first_refusal(self) -> bool:
        """Count a refusal; says whether it was the first."""
        self.refusals += 1
        return self.refusals == 1

    @property
    def has_waited_enough(self) -> bool:
        return self.refusals > _PATIENCE


class WaitingRoom:
    """Waiting nodes by what they need."""

    def __init__(self) -> None:
        self._groups: dict[Needs, list[Waiting]] = {}
        self._count = 0

    @property
    def is_full(self) -> bool:
        """True when taking in more would only cost memory."""
        return self._count >= _ROOM

    def enter(self, waiting: Waiting) -> None:
        """Let a node wait."""
        self._count += 1
        heapq.heappush(self._groups.setdefault(waiting.needs, []), waiting)

    def first_of_each(self) -> list[Waiting]:
        """Give the first node of each group, in the order of the plan."""
        return sorted(group[0] for group in self._groups.values() if group)

    def leave(self, waiting: Waiting) -> None:
        """Take the first node of its group out."""
        heapq.heappop(self._groups[waiting.needs])
        self._count -= 1

    def drop(self, names: set[str]) -> list[Waiting]:
        """Take out those that will never run; gives them."""
        dropped = []
        for needs, group in self._groups.items():
            gone = [waiting for waiting in group if waiting.name in names]
            if gone:
                kept = [waiting for waiting in group if waiting.name not in names]
                heapq.heapify(kept)
                self._groups[needs] = kept
                self._count -= len(gone)
                dropped += gone
        return dropped

    def empty(self) -> list[str]:
        """Take everybody out."""
        names = [waiting.name for group in self._groups.values() for waiting in group]
        self._groups.clear()
        self._count = 0
        return names
