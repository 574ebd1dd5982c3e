"""Which node may go next: the state of a plan while it runs, and every move it may make. Pure: no clock, no I/O.

    waiting → ready → running → done
                ↑        │    → failed | cancelled | diverged
                └── parked      (backing off, leased elsewhere, twin in flight, short of permits)
    done → waiting                rewind: its bytes are needed and gone
    waiting → pruned              something it needs will never come

Ready nodes come out in the order of the plan, so that sequential and parallel runs start the same work in one order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from enum import Enum

from stoker.model.frozen import changeable, fresh


class State(Enum):
    """Where a node stands."""

    WAITING = "waiting"
    READY = "ready"
    PARKED = "parked"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"
    PRUNED = "pruned"


ENDED = frozenset({State.DONE, State.FAILED, State.DIVERGED, State.CANCELLED, State.PRUNED})


@changeable
class _Place:
    rank: tuple[int, ...]
    needs: set[str]
    feeds: list[str] = fresh(factory=list)
    state: State = State.WAITING


class Schedule:
    """The nodes of one run by name. Every method that changes something says what follows from it."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._ready: list[tuple[tuple[int, ...], str]] = []
        self._open = 0

    def add(self, name: str, *, rank: tuple[int, ...], needs: Iterable[str]) -> None:
        """Add a node; what it needs must be there already. It is ready at once if all of that is done."""
        wanted = set(needs)
        missing = {one for one in wanted if self._places[one].state is not State.DONE}
        self._places[name] = _Place(rank=rank, needs=missing)
        for one in wanted:
            self._places[one].feeds.append(name)
        self._open += 1
        if not missing:
            self._make_ready(name)

    def state(self, name: str) -> State:
        return self._places[name].state

    def has_ended(self, name: str) -> bool:
        return self._places[name].state in ENDED

    def rank(self, name: str) -> tuple[int, ...]:
        return self._places[name].rank

    @property
    def is_over(self) -> bool:
        return self._open == 0

    def next_ready(self) -> str | None:
        """Take the first ready node in the plan's order; it is running now."""
        while self._ready:
            rank, name = heapq.heappop(self._ready)
            place = self._places[name]
            if place.state is State.READY and place.rank == rank:
                place.state = State.RUNNING
                return name
        return None

    def park(self, name: str) -> None:
        """Put a node aside until `unpark`."""
        self._places[name].state = State.PARKED

    def unpark(self, name: str) -> None:
        """Make a parked node ready again."""
        if self._places[name].state is State.PARKED:
            self._make_ready(name)

    def done(self, name: str) -> list[str]:
        """A node has its result; gives the nodes that became ready."""
        place = self._places[name]
        place.state = State.DONE
        self._open -= 1
        freed = []
        for consumer in place.feeds:
            waiting = self._places[consumer]
            waiting.needs.discard(name)
            if not waiting.needs and waiting.state is State.WAITING:
                self._make_ready(consumer)
                freed.append(consumer)
        return freed

    def end(self, name: str, state: State) -> list[str]:
        """A node ended without a result; gives everything downstream that is pruned by that."""
        place = self._places[name]
        place.state = state
        self._open -= 1
        pruned: list[str] = []
        waiting = list(place.feeds)
        while waiting:
            consumer = waiting.pop()
            below = self._places[consumer]
            if below.state in (State.WAITING, State.READY, State.PARKED):
                below.state = State.PRUNED
                self._open -= 1
                pruned.append(consumer)
                waiting.extend(below.feeds)
        return sorted(pruned, key=lambda one: self._places[one].rank)

    def rewind(self, name: str, *, then: str) -> None:
        """A done node must run again because `then` needs its bytes; `then` waits for it."""
        place = self._places[name]
        if place.state is State.DONE:
            self._open += 1
            self._make_ready(name)
        if then not in place.feeds:
            place.feeds.append(then)
        waiting = self._places[then]
        waiting.state = State.WAITING
        waiting.needs.add(name)

    def fan_out(self, name: str, instances: list[str], *, needs: Iterable[str]) -> None:
        """Add the instances of a node that was taken, in their order, and make it wait for them."""
        place = self._places[name]
        for position, instance in enumerate(instances):
            self.add(instance, rank=(*place.rank, position), needs=needs)
            self._places[instance].feeds.append(name)
        place.needs.update(instances)
        if instances:
            place.state = State.WAITING

    def _make_ready(self, name: str) -> None:
        place = self._places[name]
        place.state = State.READY
        heapq.heappush(self._ready, (place.rank, name))
