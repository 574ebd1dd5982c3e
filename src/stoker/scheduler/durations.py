"""How long jobs of a class are expected to take: from what its like took, or from what its submitter states.

In seconds of a device of speed 1. The class's own finished jobs count before the submitter's estimate, and that before
other jobs of the same recipe or program.
"""

from __future__ import annotations

from collections import deque
from statistics import median

ENOUGH = 3
"""So many finished jobs make an estimate."""
STATED = "stated by its submitter"
_KEPT = 15
_NEWS = 1.5
"""An estimate that changes by less than this factor stays as it is: durations differ by that much anyway."""


class _Class:
    __slots__ = ("expected_s", "like", "seen", "stated_s", "took_s")

    def __init__(self, like: str, stated_s: float | None) -> None:
        self.like = like
        self.stated_s = stated_s
        self.took_s: deque[float] = deque(maxlen=_KEPT)
        self.seen = 0
        self.expected_s: float | None = stated_s


class Durations:
    """Estimates by class."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._likes: dict[str, deque[float]] = {}
        self._waiting: dict[str, set[int]] = {}
        """Classes without an estimate, by what they are like."""
        self._changed: list[int] = []

    def put_class(self, class_id: int, like: str, stated_s: float | None) -> None:
        """Learn of a class; what is known of its like counts at once."""
        known = self._classes.get(class_id)
        if known is None:
            known = self._classes[class_id] = _Class(like, stated_s)
        known.like, known.stated_s = like, stated_s
        known.expected_s = self._estimate(known)
        if known.expected_s is None and like:
            self._waiting.setdefault(like, set()).add(class_id)

    def expected_s(self, class_id: int) -> float | None:
        """Return how long a job of a class is expected to take on a device of speed 1; None: nobody knows."""
        known = self._classes.get(class_id)
        return None if known is None else known.expected_s

    def like(self, class_id: int) -> str:
        """Return what a class is like: its recipe or program."""
        known = self._classes.get(class_id)
        return "" if known is None else known.like

    def likes(self) -> dict[str, float]:
        """Return how long runs of each recipe or program take, where enough have finished."""
        return {like: median(took_s) for like, took_s in self._likes.items() if len(took_s) >= ENOUGH}

    def based_on(self, class_id: int) -> str:
        """Return what the estimate is from."""
        known = self._classes.get(class_id)
        if known is None or known.expected_s is None:
            return ""
        if len(known.took_s) >= ENOUGH:
            return f"median of {len(known.took_s)} runs"
        return STATED if known.stated_s is not None else f"runs of {known.like}"

    def learn(self, class_id: int, took_s: float) -> bool:
        """Take in a finished job; return whether an estimate changed (`changed`)."""
        known = self._classes.get(class_id)
        if known is None or took_s <= 0.0:
            return False
        known.took_s.append(took_s)
        known.seen += 1
        if known.like:
            self._learn_like(known.like, took_s)
        if known.seen <= _KEPT or not known.seen % _KEPT:
            self._update(class_id, known)
        return bool(self._changed)

    def changed(self) -> list[int]:
        """Return the classes whose estimates changed since this was last asked."""
        changed, self._changed = self._changed, []
        return changed

    def _learn_like(self, like: str, took_s: float) -> None:
        likes = self._likes.get(like)
        if likes is None:
            likes = self._likes[like] = deque(maxlen=_KEPT)
        likes.append(took_s)
        if len(likes) >= ENOUGH and like in self._waiting:
            for class_id in sorted(self._waiting.pop(like)):
                self._update(class_id, self._classes[class_id])

    def _update(self, class_id: int, known: _Class) -> None:
        found = self._estimate(known)
        before = known.expected_s
        if found is None or (before is not None and before / _NEWS <= found <= before * _NEWS):
            return
        known.expected_s = found
        self._changed.append(class_id)

    def _estimate(self, known: _Class) -> float | None:
        if len(known.took_s) >= ENOUGH:
            return median(known.took_s)
        if known.stated_s is not None:
            return known.stated_s
        likes = self._likes.get(known.like, ()) if known.like else ()
        return median(likes) if len(likes) >= ENOUGH else None
