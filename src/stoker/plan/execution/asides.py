"""Nodes put aside: until a moment comes (backing off, a lease elsewhere), or until a twin's work is done.

Also nodes that are cancelled by themselves, while the others go on, and how often a node was decided about again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.model.digests import Digest
from stoker.model.frozen import changeable

SHORTEST_POLL_S = 0.02
LONGEST_POLL_S = 1.0
# How often a node is decided about again because something changed before it began, after a pause that doubles.
_MOST_DECISIONS = 6
_FIRST_PAUSE_S = 0.05


@changeable
class _Moment:
    due_s: float
    pause_s: float
    is_due: bool = False


class Asides:
    """Who waits for time to pass, and who waits for the same work to be done by another node."""

    def __init__(self) -> None:
        self._moments: dict[str, _Moment] = {}
        self._outdated: dict[str, int] = {}
        self._in_flight: dict[Digest, str] = {}
        self._twins: dict[Digest, list[str]] = {}

    def back_off(self, name: str, delay_s: float, now_s: float) -> None:
        """Put a node aside for a while."""
        self._moments[name] = _Moment(due_s=now_s + delay_s, pause_s=delay_s)

    def decide_later(self, name: str, now_s: float) -> bool:
        """Put a node aside that was outdated before it began; False if that happened too often."""
        count = self._outdated[name] = self._outdated.get(name, 0) + 1
        if count > _MOST_DECISIONS:
            return False
        self.back_off(name, _FIRST_PAUSE_S * (2 ** (count - 1)), now_s)
        return True

    def has_begun(self, name: str) -> None:
        """A node began: what was decided about it held."""
        self._outdated.pop(name, None)

    def poll_later(self, name: str, now_s: float) -> bool:
        """Put a node aside until it is time to look again, longer each time; says whether this is the first time."""
        before = self._moments.get(name)
        pause_s = min(LONGEST_POLL_S, before.pause_s * 1.5) if before else SHORTEST_POLL_S
        self._moments[name] = _Moment(due_s=now_s + pause_s, pause_s=pause_s)
        return before is None

    def due(self, now_s: float) -> list[str]:
        """Give the nodes whose moment has come, each once."""
        names = []
        for name, moment in self._moments.items():
            if not moment.is_due and now_s >= moment.due_s:
                moment.is_due = True
                names.append(name)
        return names

    def nap_s(self, now_s: float, longest_s: float) -> float:
        """Say how long nothing here needs attention."""
        waits = [moment.due_s - now_s for moment in self._moments.values() if not moment.is_due]
        return max(0.0, min([longest_s, *waits]))

    def forget(self, name: str) -> None:
        """A node goes on: it is not put aside any more."""
        self._moments.pop(name, None)

    def take_off(self, key: Digest, name: str) -> bool:
        """A node is about to do the work of a key. False: another node already is, and this one waits for it."""
        if key in self._in_flight:
            self._twins.setdefault(key, []).append(name)
            return False
        self._in_flight[key] = name
        return True

    def land(self, key: Digest) -> list[str]:
        """The work of a key is over; gives the nodes that waited for it."""
        self._in_flight.pop(key, None)
        return self._twins.pop(key, [])

    def release_all(self) -> list[str]:
        """Give everybody back, because the run is stopping."""
        names = [*self._moments, *(name for twins in self._twins.values() for name in twins)]
        self._moments.clear()
        self._twins.clear()
        return names


class CancelledNodes:
    """Nodes to be cancelled while the others go on. `add` from one other thread at a time, the rest from the loop."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._looked_for: frozenset[str] = frozenset()
        self._open: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._names)

    def __contains__(self, name: str) -> bool:
        """Return True if a node is one of them, or an instance of one that fans out."""
        return name.partition("[")[0] in self._names

    def add(self, names: Iterable[str]) -> None:
        """Ask for more of them to be cancelled."""
        self._names = self._names.union(names)

    def still_open(self, nodes: Iterable[str], has_ended: Callable[[str], bool]) -> list[str]:
        """Return those among a plan's nodes that have not ended. All nodes are looked through only after `add`."""
        if self._looked_for is not self._names:
            self._looked_for = self._names
            self._open = [name for name in nodes if name in self]
        self._open = [name for name in self._open if not has_ended(name)]
        return self._open
